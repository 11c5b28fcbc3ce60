"""Laws of the catalog: sizes grow with what they measure, readers never crash, names are stable under folding."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diptych.catalog import quantities
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.hf_config import model_from_config
from diptych.catalog.model import Model
from diptych.catalog.names import fold, model_keys
from diptych.catalog.yaml_lines import read_yaml
from diptych.errors import Finding, InvalidCatalog

CATALOG = Catalog.load()
MODELS = st.sampled_from(list(CATALOG.models.values()))
DTYPES = st.sampled_from([Dtype.BF16, Dtype.FP8, Dtype.INT8, Dtype.FP4, Dtype.INT4])
KEYS = st.sampled_from(
    [
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
        *("intermediate_size", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "kv_lora_rank"),
        *("layer_types", "hybrid_override_pattern", "block_configs", "compress_ratios", "linear_attn_config"),
        *(
            "text_config",
            "quantization_config",
            "sliding_window",
            "moe_layer_freq",
            "mlp_only_layers",
            "qk_nope_head_dim",
        ),
        *("index_topk", "index_head_dim", "index_n_heads", "v_head_dim", "qk_rope_head_dim", "tie_word_embeddings"),
    ]
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 200), st.floats(), st.text(max_size=6))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)


@given(MODELS, DTYPES, st.lists(st.integers(1, 2_000_000), min_size=2, max_size=8))
def test_kv_grows_with_the_context_and_never_past_the_full_cache(
    model: Model, dtype: Dtype, contexts: list[int]
) -> None:
    ordered = np.sort(np.asarray(contexts, dtype=float))
    sizes = model.kv_bytes(ordered, dtype)
    assert np.all(np.diff(sizes) >= 0)
    assert np.all(sizes <= ordered * model.kv_bytes_per_token(dtype) * (1 + 1e-12) + model.state_bytes)
    assert float(model.kv_bytes(1, dtype)) == pytest.approx(model.kv_bytes_per_token(dtype) + model.state_bytes)


@given(MODELS)
def test_narrower_weights_are_smaller(model: Model) -> None:
    sizes = [model.weight_bytes(dtype) for dtype in (Dtype.FP32, Dtype.BF16, Dtype.FP8, Dtype.FP4, Dtype.INT4)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] > model.parameters * 0.5


@given(st.floats(1e-3, 1e6), st.sampled_from(["GB", "TB", "GiB"]))
def test_a_size_reads_the_same_as_text_and_number(value: float, unit: str) -> None:
    scale = {"GB": 1.0, "TB": 1e3, "GiB": 2**30 / 1e9}[unit]
    assert quantities.size(f"{value!r}{unit}") == pytest.approx(quantities.size(value * scale))


@given(SCALARS)
def test_readers_give_a_number_or_a_sentence(value: Any) -> None:
    readers = (quantities.size, quantities.bandwidth, quantities.compute, quantities.watts, quantities.duration)
    for read in (
        *readers,
        quantities.price,
        quantities.amount,
        quantities.share,
        quantities.byte_count,
        quantities.count,
    ):
        try:
            number = read(value)
        except ValueError:
            continue
        assert np.isfinite(number)
        assert number >= 0


@given(st.dictionaries(KEYS, VALUES, max_size=12))
def test_any_json_object_is_a_model_or_findings(config: dict[str, Any]) -> None:
    try:
        model = model_from_config(config, "any", "config.json")
    except InvalidCatalog:
        return
    assert model.num_layers >= 1
    assert np.isfinite(model.parameters)


@given(MODELS, st.data())
@settings(max_examples=200)
def test_a_damaged_config_of_any_family_never_crashes(model: Model, data: st.DataObject) -> None:
    from diptych.catalog.load import DATA

    config = json.loads((DATA / "models" / f"{model.name}.json").read_text(encoding="utf-8"))["config"]
    part = config.get("text_config", config)
    for key in data.draw(st.lists(st.sampled_from(sorted(part)), max_size=3)):
        part[key] = data.draw(VALUES)
    try:
        found = model_from_config(config, "damaged", "config.json")
    except InvalidCatalog:
        return
    assert found.parameters > 0


@given(st.text(max_size=200))
def test_any_text_is_a_document_or_findings(text: str) -> None:
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "any.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        document = read_yaml(path, findings)
    assert document is not None or findings


@given(st.lists(st.lists(st.text(max_size=8), min_size=1, max_size=6), max_size=5))
def test_any_table_is_a_book_or_findings(rows: list[list[str]]) -> None:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerows([["accelerator", "provider", "instance", "gpus", "usd_per_hour"], *rows])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "any.csv"
        path.write_bytes(stream.getvalue().encode("utf-8", "surrogatepass"))
        try:
            book = CATALOG.book(path)
        except InvalidCatalog:
            return
    assert all(offer.usd_per_hour > 0 for offer in book)


@given(st.text(max_size=40))
def test_folding_twice_is_folding_once(name: str) -> None:
    assert fold(fold(name)) == fold(name)
    assert model_keys(name) == model_keys(name.upper() if name.isascii() else name)


@given(st.text(max_size=40))
@example("~nobody-at-all/model")
@example("x" * 5000)
@example("a\0b")
@example("a\0b.csv")
def test_a_look_up_finds_or_says_so(name: str) -> None:
    for look_up in (CATALOG.accelerator, CATALOG.model, CATALOG.link, CATALOG.tier, CATALOG.book):
        try:
            found: Any = look_up(name)
        except InvalidCatalog:
            continue
        assert found.name

"""The flags of each program: whole, without contradiction, and those of the released wheels where these are at hand."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from diptych.deploy.commands.flags import Kind, flag_table
from diptych.deploy.commands.roles import FIELDS
from diptych.engines.engine import Engine

ROOT = Path(__file__).parents[3]
DATA = ROOT / "src" / "diptych" / "deploy" / "data" / "flags"
PROGRAMS = (
    "vllm",
    "sglang",
    "trtllm-serve",
    "dynamo.vllm",
    "dynamo.sglang",
    "dynamo.trtllm",
    "dynamo.frontend",
    "vllm-router",
)
TABLES = (
    "vllm",
    "sglang",
    "dynamo_vllm",
    "dynamo_sglang",
    "dynamo_trtllm",
    "dynamo_frontend",
    "vllm_router",
    "sglang_router",
)


def extractor():
    spec = importlib.util.spec_from_file_location("extract_engine_flags", ROOT / "tools" / "extract_engine_flags.py")
    module = sys.modules["extract_engine_flags"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", TABLES)
def test_the_table_is_what_the_wheel_declares(name):
    folder = os.environ.get("DIPTYCH_WHEELS", "")
    if not folder:
        pytest.skip("set DIPTYCH_WHEELS to a folder with the engines' wheels to read their flags again")
    tool = extractor()
    kept = json.loads((DATA / f"{name}.json").read_text())
    wheels = list(Path(folder).glob(f"{kept['package']}-{kept['version']}-*.whl"))
    if not wheels:
        pytest.skip(f"no {kept['package']}-{kept['version']}-*.whl in {folder}")
    assert tool.extract(name, wheels[0])["flags"] == kept["flags"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_spelling_leads_to_one_flag_and_removed_ones_are_gone(program):
    table = flag_table(program)
    for spelling, flag in table.spellings.items():
        assert table.match(spelling).flags == (flag,)
    assert not {f"--{name}" for name in table.removed} & table.spellings.keys()


@pytest.mark.parametrize("program", ["vllm", "sglang"])
def test_every_flag_that_fills_a_field_exists(program):
    table = flag_table(program)
    engine = Engine(program)
    assert [name for name in FIELDS[engine] if f"--{name}" not in table.spellings] == []


def test_tensorrt_llm_fields_are_flags_of_one_of_its_launchers():
    known = flag_table("trtllm-serve").spellings.keys() | flag_table("dynamo.trtllm").spellings.keys()
    assert [name for name in FIELDS[Engine.TRTLLM] if f"--{name}" not in known] == []


def test_kinds_of_flags_that_matter_are_as_documented():
    """A few, read by hand in the sources of vLLM 0.33.0 and SGLang 0.5.23."""
    vllm, sglang = flag_table("vllm").spellings, flag_table("sglang").spellings
    assert vllm["--kv-transfer-config"].kind is Kind.JSON
    assert vllm["-tp"].kind is Kind.INT
    assert vllm["--enable-prefix-caching"].kind is Kind.BOOLEAN
    assert vllm["--served-model-name"].kind is Kind.LIST
    assert vllm["--hf-token"].kind is Kind.OPTIONAL
    assert vllm["--port"].server
    assert sglang["--model"].name == "model-path"
    assert sglang["--disable-radix-cache"].kind is Kind.SWITCH
    assert "nixl" in sglang["--disaggregation-transfer-backend"].choices
    assert flag_table("dynamo.vllm").spellings["--disaggregation-mode"].env == "DYN_VLLM_DISAGGREGATION_MODE"

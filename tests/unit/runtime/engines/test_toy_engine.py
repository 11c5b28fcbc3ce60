"""What the toy promises beyond the contract: any format, any conversion, and an answer that shows every lost byte."""

from __future__ import annotations

import pytest
from engine_worlds import Driver, move

from diptych.boundary.codecs.convert import convert
from diptych.boundary.codecs.stored import KvShape, StoredKV
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format
from diptych.errors import InvalidInput
from diptych.runtime.engine import Step
from diptych.runtime.engines.toy import INLINE_TOKEN, UNIT_INT8, Pace, ToyEngine, ToyModel
from diptych.runtime.sampling import GREEDY, Sampled, Sampling

FORMS = [
    UNIT_INT8,
    Format(Element.INT8, INLINE_TOKEN),
    Format(Element.E4M3FN, Scaling(ScaleSource.UNIT)),
    *(Format(element) for element in (Element.FP32, Element.BF16, Element.FP16)),
]
PROMPT = tuple(range(40))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_format_gives_the_same_tokens(form: Format) -> None:
    model = ToyModel()
    assert Driver(ToyEngine(model, form=form)).answer({0: PROMPT}, 8)[0] == model.expected(PROMPT, 8)


@pytest.mark.parametrize(
    "wire", [*FORMS, Format(Element.INT4, Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP, group=8))]
)
def test_tokens_survive_every_conversion(wire: Format) -> None:
    """Through the boundary's codec and back, block by block."""
    model = ToyModel()
    driver = Driver(ToyEngine(model, form=Format(Element.FP32)))
    answers = driver.answer({0: PROMPT}, 1)
    for layer in driver.engine.memory.layers:
        shape = KvShape(1, 1, layer.parts * layer.heads * layer.tokens, 1, layer.dim)
        for block in driver.blocks[0]:
            values = StoredKV.received(shape, layer.form, bytes(layer.block(block)))
            layer.block(block)[:] = bytes(convert(convert(values, wire), layer.form).codes)
    driver.blocks[0] = (*driver.blocks[0], driver.free.pop())
    driver.decode({0: PROMPT}, answers, 8)
    assert answers[0] == model.expected(PROMPT, 8)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("position", [0, 17, 39])
def test_every_byte_of_kv_counts(layer: int, position: int) -> None:
    model = ToyModel()
    driver = Driver(ToyEngine(model))
    first = driver.answer({0: PROMPT}, 1)[0][0]
    block = driver.engine.memory.layers[layer].block(driver.blocks[0][position // 16])
    block[(position % 16) * 8] ^= 1
    blocks = (*driver.blocks[0], driver.free.pop())
    found = driver.engine.decode_step([Step(0, first, 40, blocks, GREEDY, (first,))])[0]
    assert not isinstance(found, Sampled) or found.token != model.expected(PROMPT, 2)[1]


def test_another_models_kv_is_not_read_as_ones_own() -> None:
    one, other = ToyModel(b"one"), ToyModel(b"other")
    source, target = Driver(ToyEngine(one)), Driver(ToyEngine(other))
    answers = source.answer({0: PROMPT}, 1)
    target.take(0, 60)
    move(source, target, 0, 40)
    target.decode({0: PROMPT}, answers, 8)
    assert answers[0] not in (one.expected(PROMPT, 8), other.expected(PROMPT, 8))
    assert one.identity != other.identity


def test_ends_where_asked() -> None:
    model = ToyModel(eos_after=3)
    assert model.expected(PROMPT, 10)[2:] == [model.eos]
    assert model.eos not in model.expected(PROMPT, 10, Sampling(min_tokens=5))[:5]
    assert Driver(ToyEngine(model)).answer({0: PROMPT}, 3)[0] == model.expected(PROMPT, 10)
    assert model.eos not in ToyModel().expected(PROMPT, 2000)


def test_paces() -> None:
    slept: list[float] = []
    pace = Pace(prefill_token=0.01, decode_step=0.5, decode_token=0.25, sleep=slept.append)
    Driver(ToyEngine(ToyModel(), pace=pace)).answer({0: PROMPT, 1: PROMPT}, 2)
    assert slept == pytest.approx([0.4, 0.4, 0.5, 0.5])  # layer by layer


@pytest.mark.parametrize("given", [{"key": b""}, {"layers": 0}, {"vocabulary": 1}, {"heads": 3}])
def test_models_that_are_none(given: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(given))):
        ToyModel(**given)  # type: ignore[arg-type]


def test_formats_that_it_does_not_store() -> None:
    with pytest.raises(InvalidInput, match="int4"):
        ToyEngine(form=Format(Element.INT4, Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP, group=8)))

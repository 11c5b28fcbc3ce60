"""What `check` knows of our connector inside vLLM is what the connector takes."""

from dataclasses import fields

import pytest

from diptych.engines.rules.vllm_diptych import MODULE, SERVED, settings
from diptych.errors import InvalidInput
from diptych.integrations.vllm.settings import NUMBERS, Settings

VALUES = (
    "",
    "x",
    "push",
    "pull",
    "raw",
    "fp8",
    "int8",
    "bfloat16",
    "int3",
    0,
    1,
    -1,
    0.5,
    30,
    3600,
    1e9,
    True,
    None,
    "/a.pem",
)


def test_the_keys_and_bounds_are_those_of_the_connector() -> None:
    assert set(settings()) == {each.name for each in fields(Settings)}
    assert {name: (each.low, each.high) for name, each in settings().items() if name in NUMBERS} == NUMBERS


@pytest.mark.parametrize("name", [each.name for each in fields(Settings)])
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_right_for_both_or_for_neither(name: str, value: object) -> None:
    try:
        Settings.of({name: value})
        taken = True
    except InvalidInput as error:
        alone = [each for each in error.findings if "without" not in each.problem and "leaves" not in each.problem]
        taken = not alone
    assert (settings()[name].wrong(value) == "") is taken


def test_the_module_has_the_connector_and_its_releases() -> None:
    import importlib
    from pathlib import Path

    module = importlib.import_module(MODULE)
    source = (Path(module.__file__).parent / "connector.py").read_text(encoding="utf-8")
    assert "class DiptychConnector(" in source
    assert f'KNOWN = ("{".".join(str(SERVED.first).split(".")[:2])}", "0.33")' in source

"""A stranger's description and a stranger's fuzzer: what OpenAI's own API description leads to is no 5xx."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from running import Running
from schemathesis import GenerationMode

DESCRIPTION = Path(__file__).parents[3] / "data/openapi/openai_v2.3.0.json.gz"
EXAMPLES = 300 if os.environ.get("HYPOTHESIS_PROFILE") == "exploring" else 10

schema = schemathesis.openapi.from_dict(json.loads(gzip.decompress(DESCRIPTION.read_bytes())))
schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_operation(gateway: Running, case: Any) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body = case.body | {"model": "toy"}  # or all that is tried is an unknown model
    response = case.call(base_url=f"{gateway.url}/v1", timeout=20)
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)

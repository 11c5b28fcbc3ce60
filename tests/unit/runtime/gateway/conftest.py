"""One gateway for all tests that only ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from running import Running, running


@pytest.fixture(scope="module")
def gateway() -> Iterator[Running]:
    with running(roles="prefill decode") as made:
        yield made

"""`compare`: a published value beside ours, asserted and kept for a table.

`pytest tests/published -vv` prints the table, `benchmarks/published_numbers.py` writes it to a page.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Callable[..., None]:
    """compare("what", published, ours, within): relative error at most `within`, 0 for exact to rounding.

    `in_sample` marks a value that one of our inputs was fitted on or read from, so that agreement proves little.
    """

    def check(what: str, published: float, ours: float, within: float, in_sample: bool = False) -> None:
        error = float(ours) / published - 1
        request.node.user_properties.append(
            ("compare", (what, float(published), float(ours), error, within, in_sample))
        )
        assert abs(error) <= within + 1e-12, f"{what}: published {published:g}, ours {float(ours):g} ({error:+.2%})"

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Every comparison, when asked for more words."""
    if config.get_verbosity() < 1:
        return
    for report in terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", []):
        for name, row in report.user_properties:
            if name == "compare" and report.when == "call":
                what, published, ours, error, _, in_sample = row
                note = "  in sample" if in_sample else ""
                terminalreporter.write_line(f"{what:<70} {published:>12.5g} {ours:>12.5g} {error:>+8.2%}{note}")

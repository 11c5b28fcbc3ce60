"""`compare`: a published value beside ours, asserted and kept for a table (`pytest tests/published -vv` prints it)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Callable[..., None]:
    """compare("what", published=..., ours=..., within=relative error); `within=0` means exact to rounding."""

    def check(what: str, published: float, ours: float, within: float) -> None:
        error = float(ours) / published - 1
        request.node.user_properties.append(("compare", (what, published, float(ours), error)))
        assert abs(error) <= within + 1e-12, f"{what}: published {published:g}, ours {float(ours):g} ({error:+.2%})"

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of every comparison, when asked for more words."""
    if config.get_verbosity() < 1:
        return
    for reports in (terminalreporter.stats.get("passed", []), terminalreporter.stats.get("failed", [])):
        for report in reports:
            for name, row in getattr(report, "user_properties", ()):
                if name == "compare" and report.when == "call":
                    what, published, ours, error = row
                    terminalreporter.write_line(f"{what:<64} {published:>12.5g} {ours:>12.5g} {error:>+8.2%}")

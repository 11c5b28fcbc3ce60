"""Write benchmarks/published_numbers.md: every published number that the tests hold us to, beside ours.

Run: .venv/bin/python benchmarks/published_numbers.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
Row = tuple[str, float, float, float, float, bool]
HEADER = """# Published numbers

Each is a test in `tests/published`, with its source; beyond the limit (relative error) the test fails. PrfaaS stands for
Prefill-as-a-Service: its profile of 8xH20 is not published, a line through two of its rates stands in for it.
Written by `benchmarks/published_numbers.py`.
"""


class Collector:
    """Gathers the rows that the `compare` fixture leaves on each report."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.rows += [value for name, value in report.user_properties if name == "compare"]  # type: ignore[misc]


def table(rows: list[Row]) -> str:
    """A Markdown table."""
    lines = ["| what | published | ours | error | limit |", "| --- | ---: | ---: | ---: | ---: |"]
    for what, published, ours, error, within, _ in sorted(rows):
        lines.append(f"| {what} | {published:.5g} | {ours:.5g} | {error:+.2%} | {within:.2%} |")
    return "\n".join(lines)


def main() -> int:
    collector = Collector()
    status = pytest.main(
        ["-q", "-p", "no:cacheprovider", str(HERE.parent / "tests" / "published")], plugins=[collector]
    )
    apart = [row for row in collector.rows if not row[-1]], [row for row in collector.rows if row[-1]]
    parts = [
        HEADER,
        f"## Nothing fitted on them: {len(apart[0])}\n",
        table(apart[0]),
        f"\n## In sample: {len(apart[1])}\n\nAn input of ours was fitted on these or read from them: agreement proves little.\n",
        table(apart[1]),
    ]
    (HERE / "published_numbers.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())

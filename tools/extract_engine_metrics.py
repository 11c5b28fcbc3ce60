"""List the Prometheus metrics that released engines define, for the test that panels and alerts ask for no other.

    python tools/extract_engine_metrics.py WHEEL_FOLDER > tests/data/engine_metrics/names.csv

WHEEL_FOLDER holds unpacked wheels: <folder>/vllm/vllm/..., <folder>/sglang/sglang/.... Names are facts; nothing else is taken.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path


def main() -> None:
    """Every name of both engines, with its kind, sorted."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["engine", "version", "kind", "name"])
    folder = Path(sys.argv[1])
    for engine in ("vllm", "sglang"):
        version = next((folder / engine).glob(f"{engine}-*.dist-info")).name.split("-")[1].removesuffix(".dist")
        for name, kind in sorted(dict(metrics(folder / engine / engine)).items()):
            table.writerow([engine, version, kind, name])


def metrics(source: Path) -> Iterator[tuple[str, str]]:
    """(name, kind) of every metric made in `source`."""
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        for kind, name in re.findall(r"(\w*)\(\s*name\s*=\s*\"((?:vllm|sglang):\w+)\"", text):
            yield name, next((word for word in ("counter", "gauge", "histogram") if word in kind.lower()), "unknown")


if __name__ == "__main__":
    main()

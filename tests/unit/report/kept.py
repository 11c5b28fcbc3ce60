"""Compare a text with the one kept in tests/golden; `UPDATE_GOLDEN=1 pytest ...` keeps the new one instead."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "golden"


def same(name: str, text: str, folder: Path = FOLDER) -> None:
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    file = folder / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), (
        f"{name} changed; if that is right: UPDATE_GOLDEN=1 pytest {Path(__file__).parent}"
    )

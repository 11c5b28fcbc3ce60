"""`python -m diptych.runtime.gateway SETTINGS.json [READY_FILE]`: one gateway process, as the supervisor starts it.

READY_FILE gets the port as soon as it listens.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import uvloop

from diptych.errors import InvalidInput
from diptych.runtime.gateway.server import Listening
from diptych.runtime.gateway.service import Service
from diptych.runtime.gateway.settings import Settings


async def _serve(settings: Settings, ready: Path | None) -> None:
    async with Listening(Service(settings)) as gateway:
        if ready is not None:
            beside = ready.with_suffix(".new")
            beside.write_text(str(0 if settings.unix else gateway.port), encoding="utf-8")
            beside.replace(ready)
        await gateway.until_told()


def main(arguments: list[str]) -> int:
    """Run until told to stop. 2 for settings that are wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write((__doc__ or "") + "\n")
        return 2
    try:
        settings = Settings.load(Path(arguments[0]))
        uvloop.run(_serve(settings, Path(arguments[1]) if len(arguments) > 1 else None))
    except InvalidInput as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"cannot listen: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

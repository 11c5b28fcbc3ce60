"""The gateway over other engines' workers: `python -m diptych.runtime.launch.foreign SETTINGS.json [READY_FILE]`.

Before it serves, one long prompt goes through both roles: when the engines count nothing as transferred, decode computes every
prompt itself, and nobody is served unless that was allowed; when its text is not that of decode alone, nobody is served.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import uvloop

from diptych.errors import DiptychError, Finding, InvalidInput
from diptych.runtime.gateway.server import Listening
from diptych.runtime.remote.edge import ForeignEdge
from diptych.runtime.remote.service import ForeignService
from diptych.runtime.remote.settings import Foreign


async def _serve(service: ForeignService, ready: Path | None) -> None:
    async with Listening(service, ForeignEdge(service)) as gateway:
        if ready is not None:
            beside = ready.with_suffix(".new")
            beside.write_text(str(gateway.port), encoding="utf-8")
            beside.replace(ready)
        await gateway.until_told()


def main(arguments: list[str]) -> int:
    """Run until told to stop. 2 for settings that are wrong, 1 where KV does not cross."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    try:
        if not arguments:
            raise InvalidInput(Finding("SETTINGS", "is missing", "a gateway's settings, a JSON file"))
        ready = Path(arguments[1]) if len(arguments) > 1 else None
        uvloop.run(_serve(ForeignService(Foreign.load(Path(arguments[0]))), ready))
    except InvalidInput as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (DiptychError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

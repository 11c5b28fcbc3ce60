"""The gateway over other engines' workers: `python -m diptych.runtime.launch.foreign SETTINGS.json [READY_FILE]`.

The same listening, bounds, secrets and envelope as over our own workers; requests are driven by the engines' own protocols.
Before it serves, one long prompt goes through both roles: when the engines count nothing as transferred, decode computes every
prompt itself, and nobody is served unless that was allowed.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import msgspec
import uvloop
from msgspec import Meta

from diptych.errors import DiptychError, Finding, InvalidInput
from diptych.runtime.gateway.http import Gone, Receive, Request, Response, Scope, Send
from diptych.runtime.gateway.refusal import Refusal, invalid
from diptych.runtime.gateway.server import Listening
from diptych.runtime.gateway.settings import Settings
from diptych.runtime.remote.drive import PATHS, Answer, Driver, Fleet, Policy
from diptych.runtime.remote.halves import Prefiller, Protocol

log = logging.getLogger("diptych.gateway")

_Url = Annotated[str, Meta(pattern="^https?://[^/?#]+$", max_length=300)]
Handler = Callable[[Request, Response], Awaitable[None]]


class Prefill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A prefill worker; SGLang's bootstrap server is at its host and `bootstrap_port`."""

    url: _Url
    bootstrap_host: str = ""
    bootstrap_port: Annotated[int, Meta(ge=0, le=65535)] = 0


class Foreign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything. `listen` says where and with what secrets; of its workers nothing is used."""

    listen: Settings
    protocol: Protocol
    prefills: Annotated[tuple[Prefill, ...], Meta(min_length=1, max_length=256)]
    decodes: Annotated[tuple[_Url, ...], Meta(min_length=1, max_length=256)]
    retries: Annotated[int, Meta(ge=0, le=16)] = 0
    recompute: bool = False
    canary: bool = True

    @property
    def fleet(self) -> Fleet:
        prefills = [Prefiller(each.url, each.bootstrap_host, each.bootstrap_port) for each in self.prefills]
        return Fleet(self.protocol, prefills, self.decodes, Policy(self.retries, self.recompute))


class ForeignEdge:
    """An ASGI application over a driver, and what `Listening` needs of a service."""

    def __init__(self, foreign: Foreign) -> None:
        self.foreign, self.settings = foreign, foreign.listen
        self.driver: Driver | None = None
        self.models = b""
        self.open = 0
        self.draining = False
        self._routes: dict[tuple[str, str], tuple[Handler, bool]] = {
            **{("POST", path): (self._ask, False) for path in PATHS},
            ("GET", "/v1/models"): (self._models, False),
            ("GET", "/health"): (self._health, False),
            ("GET", "/ready"): (self._health, False),
            ("GET", "/metrics"): (self._metrics, False),
            ("POST", "/admin/canary"): (self._canary, True),
        }

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the model, and send the canary. Raises DiptychError where KV does not cross."""
        self.driver = Driver(self.foreign.fleet)
        self.models = await _models_of(self.foreign.decodes)
        if self.foreign.canary:
            crossed = await self.canary()
            if not crossed and not self.foreign.recompute:
                await self.stop()
                raise DiptychError(
                    "the canary's KV did not cross: decode computes prompts itself; nothing is served unless "
                    "--policy prefill=recompute allows that"
                )
            log.info("canary: %s crossed", crossed)

    async def stop(self) -> None:
        if self.driver is not None:
            await self.driver.close()

    async def drain(self, seconds: float) -> None:
        """Take nothing new; wait for what is open."""
        self.draining = True
        end = asyncio.get_running_loop().time() + seconds
        while self.open and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)

    async def canary(self) -> float:
        """What the engines count as transferred of one long prompt. Raises DiptychError where they do not answer."""
        try:
            return await self._drive().canary(_first_name(self.models))
        except (Refusal, aiohttp.ClientError, TimeoutError) as error:
            raise DiptychError(f"the canary got no answer: {error}") from None

    def _drive(self) -> Driver:
        assert self.driver is not None
        return self.driver

    # --- requests -----------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive, self.settings.limits)
        response = Response(send, [(b"x-content-type-options", b"nosniff")])
        try:
            request.check_size()
            await self._found(request)(request, response)
        except Refusal as refusal:
            if response.status == 0:
                await response.refuse(refusal)
            else:
                await response.piece(b"data: " + refusal.envelope() + b"\n\n", last=True)
        except Gone:
            pass
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a defect while answering")
            if response.status == 0:
                await response.refuse(Refusal(500, "a defect of this server; it was noted", "internal_error"))

    def _found(self, request: Request) -> Handler:
        """Raises Refusal: nothing there, or not for this client."""
        found = self._routes.get((request.method, request.path))
        if found is None:
            raise Refusal(404, "there is nothing at this address", "not_found")
        handler, for_operators = found
        secret = self.settings.admin_token if for_operators else self.settings.api_key
        is_open = request.path in ("/health", "/ready")
        if (for_operators or (secret and not is_open)) and not _same(request, secret):
            raise Refusal(401, "the key is missing or wrong", "invalid_api_key")
        return handler

    async def _ask(self, request: Request, response: Response) -> None:
        if self.draining:
            raise Refusal(503, "this server is about to stop", "draining", after=5)
        if self.open >= self.settings.limits.requests:
            raise Refusal(429, "too many requests are open; try again later", "too_many_requests", after=1)
        body = _object(await request.body())
        self.open += 1
        try:
            answer = await _or_gone(request, self._drive().ask(request.path, body))
            try:
                await _or_gone(request, _pass_on(answer, response))
            finally:
                answer.close()
        finally:
            self.open -= 1

    # --- operators ----------------------------------------------------------------------------------------------------

    async def _models(self, request: Request, response: Response) -> None:
        await response.whole(200, self.models)

    async def _health(self, request: Request, response: Response) -> None:
        fleet = self._drive().fleet
        up = {
            role: sum(each.up for each in peers) for role, peers in (("prefill", fleet.first), ("decode", fleet.second))
        }
        is_well = up["decode"] > 0 and not self.draining
        said = {"status": "ok" if is_well else "no decode worker answers", "up": sum(up.values()), **up}
        await response.whole(200 if is_well else 503, json.dumps(said).encode())

    async def _metrics(self, request: Request, response: Response) -> None:
        lines = ["# TYPE diptych_requests_open gauge", f"diptych_requests_open {self.open}",
                 "# TYPE diptych_decisions_total counter"]  # fmt: skip
        for (what, why), count in sorted(self._drive().fleet.counts.items()):
            lines.append(f"diptych_decisions_total{{what={_quoted(what)},reason={_quoted(why)}}} {count}")
        for role, peers in (("prefill", self._drive().fleet.first), ("decode", self._drive().fleet.second)):
            lines += [
                f"diptych_worker_up{{role={_quoted(role)},worker={_quoted(each.url)}}} {int(each.up)}" for each in peers
            ]
        await response.whole(200, ("\n".join(lines) + "\n").encode(), b"text/plain; version=0.0.4; charset=utf-8")

    async def _canary(self, request: Request, response: Response) -> None:
        try:
            crossed = await self.canary()
        except DiptychError as error:
            raise Refusal(502, str(error), "canary_failed") from None
        await response.whole(200, json.dumps({"crossed": crossed, "ok": crossed > 0}).encode())


async def _pass_on(answer: Answer, response: Response) -> None:
    """A decode worker's bytes as they come; a whole answer is held back until it is whole, so that its end is its status."""
    if answer.kind != "text/event-stream":
        body = b"".join([piece async for piece in answer])
        return await response.whole(200, body, answer.kind.encode())
    await response.begin(b"text/event-stream; charset=utf-8")
    async for piece in answer:
        await response.piece(piece)
    return await response.piece(b"", last=True)


async def _or_gone(request: Request, work: Awaitable[Any]) -> Any:
    """What `work` gives, unless the client leaves first: then it is cancelled. Raises Gone."""
    working, left = asyncio.ensure_future(work), asyncio.ensure_future(request.left())
    try:
        await asyncio.wait((working, left), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Gone
    finally:
        for each in (working, left):
            each.cancel()
        await asyncio.gather(working, left, return_exceptions=True)


def _object(body: bytes) -> dict[str, Any]:
    """Raises Refusal."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise invalid("the body is no JSON object")
    return found


async def _models_of(decodes: tuple[str, ...]) -> bytes:
    """What the first decode worker that answers says of its models. Raises DiptychError."""
    why = ""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10), trust_env=False) as session:
        for url in decodes:
            try:
                async with session.get(f"{url}/v1/models") as answer:
                    body = await answer.content.read(1 << 20)
                    if answer.status == 200 and _first_name(body):
                        return body
                    why = f"{url} answered {answer.status}"
            except (aiohttp.ClientError, TimeoutError) as error:
                why = f"{url}: {type(error).__name__}"
    raise DiptychError(f"no decode worker says what it serves: {why}")


def _first_name(models: bytes) -> str:
    try:
        return str(json.loads(models)["data"][0]["id"])
    except (ValueError, KeyError, TypeError, IndexError):
        return ""


def _same(request: Request, secret: str) -> bool:
    scheme, _, said = request.headers.get(b"authorization", b"").partition(b" ")
    wanted = sha256(secret.encode()).digest()
    return bool(secret) and scheme.lower() == b"bearer" and hmac.compare_digest(sha256(said.strip()).digest(), wanted)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


async def _serve(edge: ForeignEdge, ready: Path | None) -> None:
    async with Listening(edge, edge) as gateway:
        if ready is not None:
            beside = ready.with_suffix(".new")
            beside.write_text(str(gateway.port), encoding="utf-8")
            beside.replace(ready)
        await gateway.until_told()


def main(arguments: list[str]) -> int:
    """Run until told to stop. 2 for settings that are wrong, 1 where KV does not cross."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    try:
        try:
            foreign = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=Foreign)
        except (OSError, msgspec.MsgspecError) as error:
            raise InvalidInput(Finding(arguments[0], str(error)[:300], "a gateway's settings")) from None
        uvloop.run(_serve(ForeignEdge(foreign), Path(arguments[1]) if len(arguments) > 1 else None))
    except InvalidInput as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (DiptychError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

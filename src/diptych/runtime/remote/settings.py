"""What a gateway over another engine's workers is told. One JSON file."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from diptych.errors import Finding, InvalidInput
from diptych.runtime.gateway.settings import Settings
from diptych.runtime.gateway.workforce import worker_tls
from diptych.runtime.remote.fleet import Fleet, Policy
from diptych.runtime.remote.halves import Prefiller, Protocol

_Url = Annotated[str, Meta(pattern="^https?://[^/?#]+$", max_length=300)]
_Usd = Annotated[float, Meta(ge=0)] | None


class Prefill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A prefill worker; decode finds it at its host and `bootstrap_port` where both are asked at once."""

    url: _Url
    bootstrap_host: str = ""
    bootstrap_port: Annotated[int, Meta(ge=0, le=65535)] = 0


class Foreign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything. `listen` says where and with what secrets, and what workers are told; of its workers nothing is used.

    `prefill_usd`, `decode_usd`: an hour of one worker of the role.
    """

    listen: Settings
    protocol: Protocol
    prefills: Annotated[tuple[Prefill, ...], Meta(min_length=1, max_length=256)]
    decodes: Annotated[tuple[_Url, ...], Meta(min_length=1, max_length=256)]
    retries: Annotated[int, Meta(ge=0, le=16)] = 0
    recompute: bool = False
    canary: bool = True
    prefill_usd: _Usd = None
    decode_usd: _Usd = None

    @classmethod
    def load(cls, path: Path) -> Foreign:
        """Read a file. Raises InvalidInput."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            raise InvalidInput(Finding(str(path), str(error)[:300], "a gateway's settings")) from None

    def over(self, protocol: Protocol, port: int) -> Foreign:
        """The same by another protocol; prefill workers that decode meets are met at their host, at `port` where none is said."""
        if protocol.is_sequential:
            return msgspec.structs.replace(self, protocol=protocol)
        prefills = tuple(
            Prefill(each.url, urlsplit(each.url).hostname or "", each.bootstrap_port or port) for each in self.prefills
        )
        return msgspec.structs.replace(self, protocol=protocol, prefills=prefills)

    @property
    def urls(self) -> dict[str, tuple[str, ...]]:
        """The workers' addresses by role."""
        return {"prefill": tuple(each.url for each in self.prefills), "decode": self.decodes}

    @property
    def fleet(self) -> Fleet:
        prefills = [Prefiller(each.url, each.bootstrap_host, each.bootstrap_port) for each in self.prefills]
        prices = {"prefill": self.prefill_usd, "decode": self.decode_usd}
        known = {role: usd for role, usd in prices.items() if usd is not None}
        return Fleet(self.protocol, prefills, self.decodes, Policy(self.retries, self.recompute), known)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Whom it believes, and what it shows; None for what every program believes."""
        given = self.listen.worker_ca or self.listen.worker_certificate
        return worker_tls(self.listen) if given else None

"""One answer under way: what was asked, where its pieces go, and what was noted about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from diptych.runtime.gateway.charges import GRAIN, Charge
from diptych.runtime.gateway.mailbox import Mailbox
from diptych.runtime.gateway.prefix_index import names_of
from diptych.runtime.messages import Chosen, Params


@dataclass(slots=True, eq=False)
class Answer:
    """One of a request's answers. `id` is ours and random; times are seconds of the loop's clock."""

    id: bytes
    choice: int
    prompt: tuple[int, ...]
    params: Params
    salt: bytes
    mailbox: Mailbox
    began: float
    deadline: float
    names: tuple[bytes, ...] | None = None
    first: float = 0.0
    last: float = 0.0
    count: int = 0
    cached: int = 0
    ahead: int = 0
    epoch: int = 0
    source: str = ""
    target: str = ""
    why: str = ""
    lost_role: str = ""
    held_since: float = 0.0
    refused: tuple[int, str, str, float] | None = None
    avoid: set[str] = field(default_factory=set)
    charges: list[Charge] = field(default_factory=list)
    told: dict[str, list[Chosen]] = field(default_factory=dict)
    ended: bool = False

    @property
    def todo(self) -> int:
        """Tokens that must be in KV before it goes on."""
        return len(self.prompt) + self.count

    @property
    def tpot(self) -> float:
        """Mean seconds per token after the first; more than one was given."""
        return (self.last - self.first) / (self.count - 1)

    @property
    def blocks(self) -> tuple[bytes, ...]:
        """Names of the prompt's full blocks, made when first asked for."""
        if self.names is None:
            self.names = names_of(self.prompt, GRAIN, self.salt)
        return self.names

    @property
    def prompt_told(self) -> list[Chosen]:
        """Log probabilities of the prompt's tokens behind its first, of whichever worker told them all."""
        return max(self.told.values(), key=len, default=[])

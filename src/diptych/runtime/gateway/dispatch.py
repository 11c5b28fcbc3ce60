"""Which workers take an answer: the way, then decode, then prefill; or why nobody does."""

from __future__ import annotations

from diptych.runtime.gateway.answer import Answer
from diptych.runtime.gateway.attempts import Route
from diptych.runtime.gateway.budget import RetryBudget
from diptych.runtime.gateway.charges import overlap
from diptych.runtime.gateway.outlook import Expected, Mean
from diptych.runtime.gateway.roster import Roster, Worker
from diptych.runtime.gateway.settings import OnLoss, Settings
from diptych.serving.admission import Admission
from diptych.serving.fallback import Fallback, Way
from diptych.serving.router import Router, Routing

_INFINITE = float("inf")


class Dispatch:
    """`route` is what `Attempts` asks. Decode is chosen first: its memory is what a request occupies longest."""

    def __init__(self, settings: Settings, roster: Roster) -> None:
        self._settings, self._roster = settings, roster
        self._decode = Router(Routing.LEAST_LOADED)
        self._prefill = Router(Routing.PREFIX_AWARE, overlap)
        self._whole = Router(Routing.PREFIX_AWARE, overlap)
        self.budget = RetryBudget()
        self.answer_seconds = Mean()

    def route(self, answer: Answer, losses: int, held: int, now: float) -> Route:
        """The way for an answer, with its workers. `answer.why` says the reason, `answer.refused` that of a refusal."""
        policy = self._policy(answer)
        if losses and policy is OnLoss.FAIL:
            return _refuse(answer, 503, "worker_lost", "the worker that had this request was lost")
        if losses > self._settings.retries:
            return _refuse(answer, 503, "attempts_exhausted", "this request failed on several workers")
        avoid = frozenset(answer.avoid)
        decode, prefill = self._pair(answer, avoid, now)
        whole = self._pick_whole(answer, avoid, now)
        way = self._way(answer, policy, losses, prefill is not None, decode is not None or whole is not None)
        if way is Way.APART and (decode is None or prefill is None or self._is_short(answer, whole)):
            way = Way.ON_DECODE
        if way in (Way.HOLD, Way.REFUSE):
            return self._wait(answer, held, now)
        if losses and not self.budget.take(now):
            return _refuse(answer, 503, "retry_budget", "too many requests are being tried again", 1.0)
        return self._checked(answer, way, prefill, decode, whole, losses)

    def began(self, answer: Answer) -> None:
        """Its first token is here: what its worker needs for a prompt token is learned."""
        source = answer.source or answer.target
        if answer.ahead and source:
            self._roster[source].speed.per_token.add((answer.first - answer.began) / answer.ahead)

    def finished(self, answer: Answer, now: float) -> None:
        """It is complete, and still counts on its workers: what a step takes beside so many others is learned."""
        if answer.target:
            target = self._roster[answer.target]
            target.succeeded()
            if answer.count > 1:
                target.speed.step.add(target.streams, answer.tpot)
        self.answer_seconds.add(now - answer.began)

    def _policy(self, answer: Answer) -> OnLoss:
        return self._settings.prefill_loss if answer.lost_role == "prefill" else self._settings.decode_loss

    def _way(self, answer: Answer, policy: OnLoss, losses: int, prefill: bool, decode: bool) -> Way:
        if losses and policy is OnLoss.RECOMPUTE and decode:
            answer.why = "recomputed after a loss"
            return Way.ON_DECODE
        colocates = OnLoss.COLOCATE in (self._settings.prefill_loss, self._settings.decode_loss)
        rule = Fallback(colocate=colocates, hold=True, retries=self._settings.retries)
        way = rule.way(prefill, decode, losses)
        if way is not Way.APART and not self._has("prefill"):
            way = Way.ON_DECODE if decode else Way.HOLD  # nothing was to be apart
            answer.why = "colocated"
        else:
            answer.why = {
                Way.APART: "disaggregated",
                Way.ON_DECODE: "no prefill worker that fits",
                Way.ON_PREFILL: "no decode worker",
            }.get(way, "")
        return way

    def _has(self, role: str) -> bool:
        return any(each.role == role for each in self._roster)

    def _pair(self, answer: Answer, avoid: frozenset[str], now: float) -> tuple[Worker | None, Worker | None]:
        """A decode worker, least loaded first, and a prefill worker whose KV it may read."""
        sources = self._roster.able(("prefill",), now, avoid)
        targets = self._roster.able(("decode",), now, avoid)
        first = self._decode.pick(targets, answer)
        while targets:
            target = self._decode.pick(targets, answer)
            fitting = [each for each in sources if self._roster.fits(each, target)]
            if fitting:
                return target, self._prefill.pick(fitting, answer)
            targets = [each for each in targets if each is not target]
        return first, (self._prefill.pick(sources, answer) if first is None else None)

    def _pick_whole(self, answer: Answer, avoid: frozenset[str], now: float) -> Worker | None:
        able = self._roster.able(("colocated", "decode"), now, avoid)
        picked = self._whole.pick(able, answer)
        return picked if isinstance(picked, Worker) else None

    def _is_short(self, answer: Answer, whole: Worker | None) -> bool:
        """Whether the prompt stays on one worker: few tokens left to compute there, or what only one worker can tell."""
        if whole is None:
            return False
        if answer.params.prompt_logprobs is not None:
            answer.why = "prompt logprobs"
            return True
        if answer.todo - overlap(whole, answer) < self._settings.short_prompt:
            answer.why = "short prompt"
            return True
        return False

    def _wait(self, answer: Answer, held: int, now: float) -> Route:
        """It is one of the `held` that wait, or it has waited long enough, or it would be one too many."""
        answer.held_since = answer.held_since or now
        limits = self._settings.limits
        if held > limits.held or now - answer.held_since >= limits.hold_seconds:
            return _refuse(answer, 503, "no_worker", "no worker can take this request now", 2.0)
        return Route(Way.HOLD)

    def _checked(
        self, answer: Answer, way: Way, prefill: Worker | None, decode: Worker | None, whole: Worker | None, losses: int
    ) -> Route:
        """The way as a route, unless objectives would be missed; what has begun is never refused for them."""
        apart = way is Way.APART
        target = decode if apart else (whole or prefill if way is Way.ON_DECODE else prefill)
        source = prefill if apart else target
        assert source is not None and target is not None, f"{way} without workers"  # noqa: PT018 - narrows both
        answer.ahead = source.ahead + max(1, answer.todo - overlap(source, answer))
        if not losses and not self._admits(source, target, answer.ahead):
            message = "the answer would begin or go on too slowly; try again later"
            return _refuse(answer, 429, "overloaded", message, self._until_room(source, target))
        return Route(way, source.name if apart else "", target.name)

    def _admits(self, source: Worker, target: Worker, ahead: int) -> bool:
        objectives = self._settings.objectives
        if objectives.ttft is None and objectives.tpot is None:
            return True
        if not source.ahead and not target.streams:
            return True  # no other time would be better, and what is believed of an idle worker may be old
        rule = Admission(
            ttft=objectives.ttft or _INFINITE,
            tpot=objectives.tpot or _INFINITE,
            decode_seconds=max(self.answer_seconds.value, 1e-3),
        )
        outlook = Expected(source.speed, target.speed, ahead)
        return rule.admits(outlook, target.streams - target.coming, target.coming, outlook.ttft())

    def _until_room(self, source: Worker, target: Worker) -> float:
        """Seconds after which another try is worth it: half of what waits is done, or half of what runs."""
        waiting = source.ahead * source.speed.per_token.value / 2
        running = self.answer_seconds.value / 2 if target.streams > target.coming else 0.0
        return max(1.0, waiting, running)


def _refuse(answer: Answer, status: int, code: str, message: str, after: float = 0.0) -> Route:
    answer.refused = (status, code, message, after)
    return Route(Way.REFUSE)

"""A worker that computes and answers by itself: every stream beside what the toy model says it must be."""

import pytest
from worker_parts import MODEL, ROUTE, Ended, Pace, Tokens, Worker, cancel, prompt, submit

from diptych.runtime.engine import EngineFault
from diptych.runtime.engines.toy import ToyEngine, ToyModel
from diptych.runtime.messages import Drain, Drained, Tier
from diptych.runtime.worker.commands import Gone
from diptych.serving.batching import BatchRules


@pytest.fixture
def worker(tmp_path):
    made = Worker(tmp_path, "w")
    yield made
    made.at_rest()
    made.stop()


def answer(worker, asked):
    worker.tell(asked)
    end = worker.end_of(asked.request)
    return end, worker.tokens_of(asked.request)


def test_one_request_is_answered_as_the_model_says(worker):
    tokens = prompt(11)
    end, said = answer(worker, submit(tokens, 9))
    assert (end.reason, end.generated) == ("length", 9)
    assert said == MODEL.expected(tokens, 9)


def test_many_at_once_in_chunks(worker):
    asked = [submit(prompt(length, length), 3 + length % 7) for length in range(1, 41)]
    for each in asked:
        worker.tell(each)
    for each in asked:
        assert worker.end_of(each.request).reason == "length"
        assert worker.tokens_of(each.request) == MODEL.expected(each.prompt, each.params.max_tokens)


@pytest.mark.parametrize(
    "rules", [BatchRules(64, 64), BatchRules(64, 64, mixes=False), BatchRules(256, 3, chunks=False)]
)
def test_answers_survive_preemption(tmp_path, rules):
    worker = Worker(tmp_path, "w", rules=rules, blocks=20)
    asked = [submit(prompt(10, seed), 30, seed=seed) for seed in range(6)]
    for each in asked:
        worker.tell(each)
    for each in asked:
        assert worker.end_of(each.request).reason == "length"
        assert worker.tokens_of(each.request) == MODEL.expected(each.prompt, 30)
    assert worker.core.stepper.batch.preemptions or rules.sequences == 3
    worker.at_rest()
    worker.stop()


def test_a_known_prefix_is_not_computed_again(worker):
    tokens = prompt(40)
    answer(worker, submit(tokens, 3))
    end, said = answer(worker, submit((*tokens[:32], 7, 8, 9), 3))
    assert end.cached == 32
    assert said == MODEL.expected((*tokens[:32], 7, 8, 9), 3)
    end, said = answer(worker, submit(tokens, 3))
    assert end.cached == 36  # the last token is always computed
    assert said == MODEL.expected(tokens, 3)
    assert worker.core.stepper.prompt_tokens == 40 + 3 + 4


def test_tenants_do_not_share_prefixes(worker):
    tokens = prompt(40)
    answer(worker, submit(tokens, 1, salt=b"one"))
    end, _ = answer(worker, submit(tokens, 1, salt=b"two"))
    assert end.cached == 0


def test_prompts_whose_log_probabilities_are_asked_for_are_computed_whole(worker):
    tokens = prompt(20)
    answer(worker, submit(tokens, 1))
    end, _ = answer(worker, submit(tokens, 2, prompt_logprobs=1, logprobs=1))
    assert end.cached == 0
    first = [each for each in worker.said if isinstance(each, Tokens) and each.request == end.request]
    assert [each.token for each in first[0].prompt] == list(tokens[1:])
    assert all(each.logprob is not None for each in first[0].prompt)
    assert first[1].prompt == ()
    assert all(each.tokens[0].logprob is not None for each in first)


@pytest.mark.parametrize(
    ("params", "count", "reason"),
    [
        ({}, 4, "stop"),
        ({"ignore_eos": True}, 9, "length"),
        ({"min_tokens": 6}, 7, "stop"),
    ],
)
def test_the_end_of_an_answer(tmp_path, params, count, reason):
    model = ToyModel(layers=3, eos_after=4)
    worker = Worker(tmp_path, "w", model=model)
    end, said = answer(worker, submit(prompt(11), 9, **params))
    assert (end.reason, end.generated, len(said)) == (reason, count, count)
    assert said[:4] == model.expected(prompt(11), 4) or params.get("min_tokens")
    assert [each.finish for each in worker.said if isinstance(each, Tokens)] == [""] * (count - 1) + [reason]
    worker.at_rest()
    worker.stop()


def test_a_stop_token_ends_an_answer_once_it_is_long_enough(worker):
    expected = MODEL.expected(prompt(11), 9)
    end, said = answer(worker, submit(prompt(11), 9, stop_tokens=(expected[2],)))
    assert (end.reason, said) == ("stop", expected[:3])
    end, said = answer(worker, submit(prompt(11), 9, stop_tokens=(expected[0],)))
    assert (end.reason, said) == ("stop", expected[:1])
    end, said = answer(worker, submit(prompt(11), 9, stop_tokens=(expected[2],), min_tokens=4))
    assert (end.reason, said) == ("length", expected)


def test_an_answer_is_continued_where_another_attempt_stopped(worker):
    tokens, expected = prompt(11), MODEL.expected(prompt(11), 9)
    end, said = answer(worker, submit(tokens, 9, generated=tuple(expected[:4])))
    assert (end.generated, said) == (9, expected[4:])
    assert min(each.index for each in worker.said if isinstance(each, Tokens)) == 4
    end, said = answer(worker, submit(tokens, 9, generated=tuple(expected)))
    assert (end.reason, end.generated, said) == ("length", 9, [])


def test_what_is_said_twice_is_done_once(worker):
    asked = submit(prompt(11), 9)
    for _ in range(3):
        worker.tell(asked)
    worker.end_of(asked.request)
    worker.tell(asked)
    worker.at_rest()
    assert sum(isinstance(each, Ended) for each in worker.said) == 1
    worker.tell(cancel(asked.request, epoch=5))
    worker.tell(submit(prompt(11), 9, request=asked.request, epoch=5))
    worker.at_rest()
    assert sum(isinstance(each, Ended) for each in worker.said) == 1
    worker.tell(submit(prompt(11), 9, request=asked.request, epoch=6))
    assert worker.end_of(asked.request, 6).reason == "length"


def test_a_newer_attempt_ends_an_older_one(worker):
    asked = submit(prompt(11), 100)
    worker.tell(asked)
    worker.tell(submit(prompt(11), 5, request=asked.request, epoch=2))
    assert worker.end_of(asked.request, 2).reason == "length"
    assert worker.tokens_of(asked.request, 2) == MODEL.expected(prompt(11), 5)


@pytest.mark.parametrize("when", range(0, 12, 3))
def test_cancelled_whenever(tmp_path, when):
    worker = Worker(tmp_path, "w", pace=Pace(prefill_token=0.001, decode_step=0.002))
    asked = submit(prompt(80), 150)
    worker.tell(asked)
    worker.tell(submit(prompt(30), 200, request=b"o" * 16))
    if when:
        worker.wait(
            lambda said: sum(isinstance(each, Tokens) and each.request == asked.request for each in said) >= when
        )
    worker.tell(cancel(asked.request))
    worker.tell(cancel(b"o" * 16))
    worker.at_rest()
    worker.stop()
    said = worker.tokens_of(asked.request)
    assert said == MODEL.expected(prompt(80), len(said))
    assert len(said) < 150


def test_a_gateway_that_is_gone_waits_for_nothing(worker):
    worker.tell(submit(prompt(30), 3000 // 16, request=b"g" * 16))
    worker.core.tell(Gone(ROUTE))
    worker.at_rest()
    assert not any(isinstance(each, Ended) for each in worker.said)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (submit((), 5), "bad request"),
        (submit((1, 2, 256), 5), "bad request"),
        (submit((1, 2), 5, request=bytes(16)), "bad request"),
        (submit(range(200), 58), "too large"),
    ],
)
def test_what_can_never_be_done_is_refused_at_once(worker, asked, reason):
    worker.tell(asked)
    end = worker.end_of(asked.request)
    assert (end.reason, end.retry) == (reason, False)


def test_the_largest_that_fits_is_done(worker):
    asked = submit(prompt(200), 57)
    end, said = answer(worker, asked)
    assert (end.reason, said) == ("length", MODEL.expected(asked.prompt, 57))


def test_draining_takes_nothing_new_and_says_when_it_is_done(worker):
    worker.tell(submit(prompt(11), 50, request=b"d" * 16))
    worker.tell(Drain())
    late = submit(prompt(3), 3)
    worker.tell(late)
    end = worker.end_of(late.request)
    assert (end.reason, end.retry) == ("draining", True)
    worker.wait(lambda said: any(isinstance(each, Drained) for each in said))
    assert worker.tokens_of(b"d" * 16) == MODEL.expected(prompt(11), 50)


def test_a_deadline_ends_what_takes_longer(tmp_path):
    worker = Worker(tmp_path, "w", pace=Pace(decode_step=0.01))
    asked = submit(prompt(11), 100, deadline_ms=100)
    worker.tell(asked)
    end = worker.end_of(asked.request)
    assert (end.reason, end.retry) == ("deadline", False)
    worker.at_rest()
    worker.stop()


class Breaking(ToyEngine):
    """Cannot compute sequences that hold the token 13, in one of several ways."""

    def __init__(self, way, **given):
        super().__init__(MODEL, **given)
        self.way = way

    def _check(self, asked, tokens):
        if self.way is not EngineFault and any(13 in tokens(each) for each in asked):
            raise self.way("no more")

    def prefill(self, chunks, on_layer=None):
        self._check(chunks, lambda chunk: chunk.tokens)
        return [
            EngineFault(chunk.sequence, "spoiled") if 13 in chunk.tokens else found
            for chunk, found in zip(chunks, super().prefill(chunks, on_layer), strict=True)
        ]

    def decode_step(self, steps, on_layer=None):
        self._check(steps, lambda step: (step.token,))
        return [
            EngineFault(step.sequence, "spoiled") if step.token == 13 else found
            for step, found in zip(steps, super().decode_step(steps, on_layer), strict=True)
        ]


@pytest.mark.parametrize("way", [EngineFault, MemoryError, ValueError])
def test_a_fault_ends_one_request_alone(tmp_path, way, caplog):
    worker = Worker(tmp_path, "w", engine=Breaking(way, blocks=256, block_tokens=4))
    asked = [submit((*range(20, 40), 13 if bad else 14, seed), 30) for seed in range(20, 26) for bad in (False, True)]
    for each in asked:
        worker.tell(each)
    for each in asked:
        expected = MODEL.expected(each.prompt, 30)
        right = [*each.prompt, *expected[:-1]]
        end, said = worker.end_of(each.request), worker.tokens_of(each.request)
        if 13 in right:
            assert end.reason == "engine fault"
            assert said == expected[: max(right.index(13) + 1 - len(each.prompt), 0)]
            assert end.detail == ("out of memory" if way is MemoryError else end.detail)
        else:
            assert (end.reason, said) == ("length", expected)
    worker.at_rest()
    worker.stop()


class Shelf:
    """A lower tier in a dictionary, which can be made to lie."""

    def __init__(self, engine):
        self.engine, self.kept, self.damaged = engine, {}, 0

    def on_evict(self, hash, block):
        self.kept[hash] = [bytes(layer.block(block)) for layer in self.engine.memory.layers]

    def find(self, hashes):
        return next((place for place, key in enumerate(hashes) if key not in self.kept), len(hashes))

    def fetch(self, hash, block):
        if self.damaged:
            return False
        for layer, data in zip(self.engine.memory.layers, self.kept[hash], strict=True):
            layer.block(block)[:] = data
        return True

    def report(self):
        return (Tier("shelf", len(self.kept), 1000),)


@pytest.mark.parametrize("damaged", [0, 1])
def test_evicted_blocks_come_back_from_the_tier_below(tmp_path, damaged):
    engine = ToyEngine(MODEL, blocks=24, block_tokens=4)
    shelf = Shelf(engine)
    worker = Worker(tmp_path, "w", engine=engine, tiers=shelf)
    for seed in range(6):
        answer(worker, submit(prompt(60, seed), 3))
    assert shelf.kept
    shelf.damaged = damaged
    end, said = answer(worker, submit(prompt(60, 0), 3))
    assert said == MODEL.expected(prompt(60, 0), 3)
    assert end.cached == (0 if damaged else 56)
    assert worker.at_rest().tiers[0].name == "shelf"
    worker.stop()

"""Two workers, a prompt computed by one and answered by the other: every stream beside what the toy model says."""

import time
from dataclasses import replace

import pytest
from worker_parts import MODEL, TRANSPORTS, Pace, Tokens, Worker, both, cancel, prompt, submit

from diptych.boundary.descriptor import Layout, Shard
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format
from diptych.runtime.engine import EngineFault
from diptych.runtime.engines.toy import UNIT_INT8, ToyEngine, ToyModel
from diptych.runtime.messages import Handed
from diptych.runtime.worker.owner import Limits
from diptych.serving.batching import BatchRules

OWNERSHIPS = ("push", "pull")


@pytest.fixture(params=TRANSPORTS, autouse=True)
def transport(request, monkeypatch):
    monkeypatch.setattr(Worker, "transport", request.param)


@pytest.fixture
def pair(tmp_path):
    made = Worker(tmp_path, "p", "prefill"), Worker(tmp_path, "d", "decode")
    yield made
    for each in made:
        each.at_rest()
        each.stop()


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_a_prompt_is_handed_over_and_answered(pair, ownership):
    source, target = pair
    tokens = prompt(37)
    request = both(source, target, tokens, 9, ownership)
    assert target.end_of(request).reason == "length"
    assert source.end_of(request).reason == "handed"
    assert target.tokens_of(request) == MODEL.expected(tokens, 9)
    assert source.tokens_of(request) == MODEL.expected(tokens, 1)


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_thirty_two_at_once(pair, ownership):
    source, target = pair
    asked = {
        both(source, target, prompt(length, length), 5, ownership): prompt(length, length) for length in range(1, 97, 3)
    }
    for request, tokens in asked.items():
        assert target.end_of(request).reason == "length"
        assert target.tokens_of(request) == MODEL.expected(tokens, 5)


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_what_the_target_has_of_a_prompt_does_not_cross_again(pair, ownership):
    source, target = pair
    tokens, longer = prompt(40), (*prompt(40), *prompt(9, 1))
    target.end_of(both(source, target, tokens, 3, ownership))
    request = both(source, target, longer, 3, ownership)
    end = target.end_of(request)
    assert (end.cached, target.tokens_of(request)) == (40, MODEL.expected(longer, 3))
    bytes_per_block = target.core.engine.memory.bytes_per_block
    assert end.transferred == 3 * bytes_per_block  # 49 tokens in blocks of 4, ten of which were there
    assert source.end_of(request).cached == 40
    whole = [each for each in target.said if isinstance(each, Handed)]
    assert [each.bytes for each in whole] == [10 * bytes_per_block, 3 * bytes_per_block]


@pytest.mark.parametrize("ownership", OWNERSHIPS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_was_in_the_cache_is_said_with_the_first_token(pair, ownership, count):
    """Whoever has the end of an answer has heard it: of every half, before or with the answer's last tokens."""
    source, target = pair
    target.end_of(both(source, target, prompt(40), 3, ownership))
    request = both(source, target, prompt(40), count, ownership)
    whole = submit(prompt(40), count)
    source.tell(whole)
    for worker, id in ((source, request), (target, request), (source, whole.request)):
        end = worker.end_of(id)
        told = [each.cached for each in worker.said if isinstance(each, Tokens) and each.request == id]
        assert (told[0], set(told[1:]) | {0}) == (end.cached, {0})
        assert end.cached >= 36


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_all_of_a_prompt_is_there_already(pair, ownership):
    source, target = pair
    for _ in range(2):
        request = both(source, target, prompt(40), 3, ownership)
        end = target.end_of(request)
        assert target.tokens_of(request) == MODEL.expected(prompt(40), 3)
    assert end.transferred == 0


@pytest.mark.parametrize("ownership", OWNERSHIPS)
@pytest.mark.parametrize("count", [1, 2])
def test_the_shortest_answers(pair, ownership, count):
    source, target = pair
    request = both(source, target, prompt(8), count, ownership)
    assert (target.end_of(request).generated, source.end_of(request).reason) == (count, "handed")
    assert target.tokens_of(request) == MODEL.expected(prompt(8), count)


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_a_continued_answer_is_handed_over(pair, ownership):
    source, target = pair
    expected = MODEL.expected(prompt(13), 9)
    request = both(source, target, prompt(13), 9, ownership, generated=tuple(expected[:4]))
    assert target.end_of(request).generated == 9
    assert target.tokens_of(request) == expected[4:]


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_full_targets_hold_sources_back(tmp_path, ownership):
    """Room for two prompts at the target, for three at the source: everyone is served, nobody waits for ever."""
    limits = Limits(pinned=2)
    source = Worker(tmp_path, "p", "prefill", blocks=34, limits=limits)
    target = Worker(tmp_path, "d", "decode", blocks=26)
    asked = {both(source, target, prompt(40, seed), 12, ownership): seed for seed in range(12)}
    for request, seed in asked.items():
        assert target.end_of(request).reason == "length"
        assert target.tokens_of(request) == MODEL.expected(prompt(40, seed), 12)
    for each in (source, target):
        each.at_rest()
        each.stop()


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_handoffs_beside_whole_answers_and_preemptions(tmp_path, ownership):
    """Two colocated workers with little memory: one hands prompts to the other, and both answer for themselves."""
    one, other = (Worker(tmp_path, name, blocks=30) for name in "ab")
    asked = {}
    for seed in range(24):
        tokens = prompt(24 + seed, seed)
        if seed % 3 == 0:
            asked[both(one, other, tokens, 20, ownership)] = other, tokens
        else:
            whole, worker = submit(tokens, 20), (one, other)[seed % 3 - 1]
            asked[whole.request] = worker, tokens
            worker.tell(whole)
    for request, (worker, tokens) in asked.items():
        assert worker.end_of(request).reason == "length"
        assert worker.tokens_of(request) == MODEL.expected(tokens, 20)
    assert one.core.stepper.batch.preemptions
    for each in (one, other):
        each.at_rest()
        each.stop()


STORED = {
    "int8": UNIT_INT8,
    "token": Format(Element.INT8, Scaling(ScaleSource.INLINE, ScaleGranularity.TOKEN)),
    "bf16": Format(Element.BF16),
    "fp32": Format(Element.FP32),
    "e4m3fn": Format(Element.E4M3FN, Scaling(ScaleSource.UNIT)),
}


@pytest.mark.parametrize("ownership", OWNERSHIPS)
@pytest.mark.parametrize(
    ("produced", "consumed", "wire", "said"),
    [
        ("bf16", "token", "", "quantise"),
        ("bf16", "token", "int8", ""),
        ("token", "bf16", "", "dequantise"),
        ("fp32", "bf16", "bf16", ""),
        ("bf16", "fp32", "e4m3fn", "dequantise"),
        ("e4m3fn", "token", "", "requantise"),
        ("fp32", "fp32", "", ""),
    ],
)
def test_kv_changes_its_form_on_the_way(tmp_path, ownership, produced, consumed, wire, said):
    source = Worker(tmp_path, "p", "prefill", form=STORED[produced])
    target = Worker(tmp_path, "d", "decode", form=STORED[consumed], blocks=80)
    tokens = prompt(37)
    for _ in range(2):  # the second finds the first's blocks at the target
        request = both(source, target, tokens, 9, ownership, wire=wire)
        assert target.end_of(request).reason == "length"
        assert target.tokens_of(request) == MODEL.expected(tokens, 9)
    handed = [each for each in target.said if isinstance(each, Handed)]
    assert [said in each.converted and bool(each.converted) == bool(said) for each in handed] == [True, True]
    assert handed[1].bytes < handed[0].bytes
    for each in (source, target):
        each.at_rest()
        each.stop()


@pytest.mark.parametrize("sizes", [(4, 8), (8, 4), (4, 6), (16, 4)])
@pytest.mark.parametrize("form", ["int8", "token"])
def test_blocks_of_another_size(tmp_path, sizes, form):
    source = Worker(tmp_path, "p", "prefill", block_tokens=sizes[0], form=STORED[form])
    target = Worker(tmp_path, "d", "decode", block_tokens=sizes[1], form=STORED[form])
    for tokens in (prompt(37), prompt(37), (*prompt(37), 5), prompt(1), prompt(48)):
        request = both(source, target, tokens, 9)
        assert target.end_of(request).reason == "length"
        assert target.tokens_of(request) == MODEL.expected(tokens, 9)
    for each in (source, target):
        each.at_rest()
        each.stop()


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_another_model_is_refused_with_the_contracts_reason(tmp_path, ownership):
    source = Worker(tmp_path, "p", "prefill")
    target = Worker(tmp_path, "d", "decode", model=ToyModel(key=b"other", layers=3))
    request = both(source, target, prompt(37), 9, ownership)
    for each in (source, target):
        end = each.end_of(request)
        assert (end.reason, end.retry) == ("incompatible", False)
        assert "identity.weights" in end.detail
        each.at_rest()
        each.stop()


@pytest.mark.parametrize("granularity", [ScaleGranularity.TENSOR, ScaleGranularity.HEAD])
@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_scales_that_stay_where_they_were_computed_are_refused(tmp_path, ownership, granularity):
    """Elements without their scales are other values, though both sides store the same form."""
    made = (
        Worker(tmp_path, "p", "prefill", engine=_scaled(granularity)),
        Worker(tmp_path, "d", "decode", engine=_scaled(granularity)),
    )
    request = both(*made, prompt(37), 9, ownership)
    for each in made:
        end = each.end_of(request)
        assert (end.reason, end.retry) == ("incompatible", False)
        assert "dynamic scales stay with the producer" in end.detail
        each.at_rest()
        each.stop()


def _scaled(granularity):
    return _stating(
        lambda state: replace(state, format=Format(Element.INT8, Scaling(ScaleSource.DYNAMIC, granularity)))
    )


def _stating(change):
    """An engine that says something else of how it stores its KV."""
    engine = ToyEngine(MODEL, blocks=64, block_tokens=4)
    engine.state = change(engine.state)
    return engine


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda state: replace(state, shard=Shard(tp=2, tp_rank=0)), "cannot reshard heads and layers"),
        (lambda state: replace(state, shard=Shard(tp=4)), "cannot reshard heads and layers"),
        (lambda state: replace(state, shard=Shard(pp=3, stage_layers=(1, 1, 1))), "cannot reshard heads and layers"),
        (lambda state: replace(state, shard=Shard(cp=2)), "no step deals tokens anew"),
        (lambda state: replace(state, storage=replace(state.storage, layout=Layout.LBNHC)), "cannot permute layout"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_kv_that_is_dealt_or_laid_out_otherwise_is_refused(tmp_path, change, why, turned):
    """Workers here have whole heads and layers; a peer that spreads them over ranks is told so, whoever of both it is."""
    engines = [_stating(change), None][:: -1 if turned else 1]
    pair = [Worker(tmp_path, name, engine=engine) for name, engine in zip("pd", engines, strict=True)]
    request = both(*pair, prompt(37), 9)
    for each in pair:
        end = each.end_of(request)
        assert (end.reason, end.retry) == ("incompatible", False)
        assert why in end.detail
        each.at_rest()
        each.stop()


def test_a_wire_that_nobody_can_write_is_refused(pair):
    source, target = pair
    request = both(source, target, prompt(37), 9, wire="nvfp4")
    end = source.end_of(request)
    assert (end.reason, end.retry) == ("incompatible", False)
    target.tell(cancel(request))


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_a_prompt_too_large_for_the_target(tmp_path, ownership):
    source, target = Worker(tmp_path, "p", "prefill"), Worker(tmp_path, "d", "decode", blocks=8)
    request = both(source, target, prompt(37), 9, ownership)
    assert (target.end_of(request).reason, target.end_of(request).retry) == ("too large", False)
    source.tell(cancel(request))
    for each in (source, target):
        each.at_rest()
        each.stop()


@pytest.mark.parametrize("ownership", OWNERSHIPS)
@pytest.mark.parametrize("after", [0.0, 0.005, 0.02, 0.05, 0.1, 0.2])
def test_cancelled_at_any_time_everything_is_given_back(tmp_path, ownership, after):
    pace = Pace(prefill_token=0.0005, decode_step=0.005)
    source, target = Worker(tmp_path, "p", "prefill", pace=pace), Worker(tmp_path, "d", "decode", pace=pace)
    asked = {both(source, target, prompt(60, seed), 100, ownership): seed for seed in range(4)}
    time.sleep(after)
    for request in asked:
        source.tell(cancel(request))
        target.tell(cancel(request))
    for each in (source, target):
        each.at_rest()
        for request, seed in asked.items():
            said = each.tokens_of(request)
            assert said == MODEL.expected(prompt(60, seed), len(said))
        each.stop()


@pytest.mark.parametrize("ownership", OWNERSHIPS)
@pytest.mark.parametrize("dead", [0, 1])
def test_a_peer_that_ends_is_told_and_nothing_stays_held(tmp_path, ownership, dead):
    pace = Pace(prefill_token=0.001, decode_step=0.005)
    limits = Limits(wait_ms=500, stall_ms=200)
    source = Worker(tmp_path, "p", "prefill", pace=pace, limits=limits)
    pair = source, Worker(tmp_path, "d", "decode", pace=pace, limits=limits)
    asked = [both(*pair, prompt(60, seed), 100, ownership) for seed in range(4)]
    pair[0].wait(lambda said: any(isinstance(each, Tokens) for each in said))
    pair[dead].stop()
    left = pair[1 - dead]
    for request in asked:
        end = left.end_of(request)
        assert (end.reason in ("handed", "length")) or end.retry
    left.at_rest()
    left.stop()


def test_a_source_that_nobody_listens_to_says_so(tmp_path):
    source = Worker(tmp_path, "p", "prefill")
    source.tell(submit(prompt(9), 3, "prefill", b"n" * 16, peer="d", peer_address=f"unix:{tmp_path}/nobody"))
    end = source.end_of(b"n" * 16)
    assert (end.reason, end.retry) == ("target lost", True)
    source.tell(submit(prompt(9), 3, "prefill", b"m" * 16, peer="d", peer_address="nonsense"))
    assert source.end_of(b"m" * 16).reason == "bad request"
    source.at_rest()
    source.stop()


def test_a_half_alone_waits_only_so_long(tmp_path):
    limits = Limits(wait_ms=100)
    source = Worker(tmp_path, "p", "prefill", limits=limits)
    target = Worker(tmp_path, "d", "decode", limits=limits)
    target.tell(submit(prompt(9), 3, "decode", b"1" * 16, peer="p"))
    source.tell(submit(prompt(9), 3, "prefill", b"2" * 16, peer="d", peer_address=target.address))
    assert target.end_of(b"1" * 16).reason == "expired"
    assert source.end_of(b"2" * 16).reason == "expired"
    for each in (source, target):
        each.at_rest()
        each.stop()


def test_the_engines_fault_of_a_prompt_is_told_to_both(tmp_path):
    source, target = Worker(tmp_path, "p", "prefill"), Worker(tmp_path, "d", "decode")
    engine = source.core.engine
    broken = engine.prefill
    engine.prefill = lambda chunks, on_layer: [
        EngineFault(each.sequence, "no") for each in broken(chunks, on_layer) and chunks
    ]
    request = both(source, target, prompt(9), 3)
    assert source.end_of(request).reason == "engine fault"
    assert target.end_of(request).retry
    for each in (source, target):
        each.at_rest()
        each.stop()


@pytest.mark.parametrize("chunk", [64, 16, 7])
def test_layers_leave_while_later_ones_are_computed(tmp_path, chunk):
    """Push: at every layer of every chunk, the engine waits until the layers before it are at the target."""
    source = Worker(tmp_path, "p", "prefill", rules=BatchRules(budget=chunk, sequences=4))
    target = Worker(tmp_path, "d", "decode")
    engine, seen = source.core.engine, []
    computed, size = engine.prefill, engine.memory.block_tokens

    def prefill(chunks, on_layer):
        done = chunks[0].start + len(chunks[0].tokens)
        before, full = chunks[0].start // size, -(-done // size) if chunks[0].sampling else done // size

        def at(layer):
            blocks = (MODEL.layers - layer) * before + layer * full
            seen.append(_arrived(target, blocks * engine.memory.layers[0].block_bytes))
            on_layer(layer)

        return computed(chunks, at)

    engine.prefill = prefill
    request = both(source, target, prompt(45), 5)
    assert target.end_of(request).reason == "length"
    assert target.tokens_of(request) == MODEL.expected(prompt(45), 5)
    assert len(seen) == MODEL.layers * -(-45 // chunk)
    assert all(seen)
    for each in (source, target):
        each.at_rest()
        each.stop()


def _arrived(target, size):
    """Whether so many bytes are at the target within a while."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with target.core.peers.turn:
            if any(each.arrived_bytes >= size for each in target.core.handoffs.arriving.table.reservations.values()):
                return True
        time.sleep(0.001)
    return False

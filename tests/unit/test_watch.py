"""What was measured, and the verdict on it."""

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from diptych.cli import main, watch
from diptych.cli.watch import counts_of, judge, measured, pins_of, sentence, workload_of
from diptych.errors import InvalidInput, NoFeasibleDesign, Unsupported
from diptych.planner.pins import Pins
from diptych.planner.planning import plan as make_plan

SLO = "ttft_p90<2s, tpot_p90<50ms"
BF16 = "w=bf16 a=bf16 kv=bf16"


@pytest.fixture(scope="module")
def plan():
    pins = Pins(prefill="L40S", decode="L40S", prefill_parallelism="tp1", decode_parallelism="tp1", prefill_precision=BF16,
                decode_precision=BF16)  # fmt: skip
    return make_plan("Llama-3.1-8B", "fixed:1000x100", SLO, prices="aws", rate=10, pins=pins)


def exposition(requests, isl=1000, osl=100, labels='{finished_reason="stop"}'):
    return f"""# HELP x y
vllm:request_success_total{labels} {requests - 5}
vllm:request_success_total{{finished_reason="length"}} 5.0
vllm:prompt_tokens_total{{model_name="m"}} {requests * isl}
vllm:generation_tokens_total{{model_name="m"}} {requests * osl:.1f}
vllm:time_to_first_token_seconds_bucket{{le="0.5",model_name="m"}} {requests * 0.8}
vllm:time_to_first_token_seconds_bucket{{le="1.0",model_name="m"}} {requests}
vllm:time_to_first_token_seconds_bucket{{le="+Inf",model_name="m"}} {requests}
vllm:request_time_per_output_token_seconds_bucket{{le="0.1"}} 0
vllm:request_time_per_output_token_seconds_bucket{{le="+Inf"}} {requests}
nonsense {{{{
a_number not_one
"""


def test_a_window_of_counters():
    seen = measured(counts_of(exposition(100)), counts_of(exposition(700)), 60.0)
    assert (seen.requests, seen.rate, seen.isl, seen.osl) == (600, 10, 1000, 100)
    assert seen.ttft_p90 == pytest.approx(0.75)
    assert seen.tpot_p90 is None  # all beyond the last bound


def test_too_little_and_a_restart_are_no_measurements():
    with pytest.raises(Unsupported, match="29 requests"):
        measured(counts_of(exposition(100)), counts_of(exposition(129)), 60.0)
    with pytest.raises(Unsupported, match="started anew"):
        measured(counts_of(exposition(700)), counts_of(exposition(100)), 60.0)


@pytest.mark.parametrize("text", ["", "\0\0", "x" * 10_000, '{"json": 1}', "vllm:request_success_total NaN"])
def test_what_is_no_exposition_counts_nothing(text):
    with pytest.raises(Unsupported):
        measured(counts_of(text), counts_of(text), 1.0)


def test_the_plans_workload_is_stretched_to_what_was_measured(plan):
    seen = measured({}, counts_of(exposition(600, isl=1500, osl=50)), 60.0)
    workload, notes = workload_of(plan, {"workload": "preset:chat"}, seen)
    assert not notes
    assert workload.arrivals.rate == pytest.approx(10)
    assert workload.lengths.mean_isl == pytest.approx(1500, rel=0.01)
    assert workload.lengths.mean_osl == pytest.approx(50, rel=0.05)
    assert len(workload.lengths) > 1
    workload, notes = workload_of(plan, {}, seen)
    assert notes
    assert (workload.lengths.mean_isl, workload.lengths.mean_osl) == (1500, 50)


def judged(plan, seen, monkeypatch, carried, fresh):
    """The verdict where the standing fleet carries so much and a fresh plan is this one."""

    def answer(model, workload, slo, *, inventory=None, **asked):
        found = carried if inventory is not None else fresh
        if isinstance(found, Exception):
            raise found
        return replace(plan, best=replace(plan.best, goodput=found) if inventory is not None else found)

    monkeypatch.setattr(watch, "make_plan", answer)
    return judge(plan, workload_of(plan, {}, seen)[0], seen, "aws")


def test_verdicts(plan, monkeypatch):
    seen = measured({}, counts_of(exposition(600)), 60.0)
    best = plan.best
    assert best.usd_per_hour > 0
    half = replace(best, label="another", usd_per_hour=best.usd_per_hour / 2)
    double = replace(best, label="another", usd_per_hour=best.usd_per_hour * 2)
    near = replace(best, label="another", usd_per_hour=best.usd_per_hour * 0.99)
    stay = judged(plan, seen, monkeypatch, 11.0, best)
    assert (stay.verdict, stay.saves_usd_per_hour) == ("stay", 0)
    assert judged(plan, seen, monkeypatch, 11.0, near).verdict == "stay"
    assert judged(plan, seen, monkeypatch, 11.0, double).verdict == "stay"
    cheaper = judged(plan, seen, monkeypatch, 11.0, half)
    assert (cheaper.verdict, cheaper.to) == ("move", "another")
    assert cheaper.saves_usd_per_hour == pytest.approx(best.usd_per_hour / 2)
    assert "saves" in sentence(cheaper)
    grow = judged(plan, seen, monkeypatch, 9.0, double)
    assert grow.verdict == "move"
    assert "costs" in sentence(grow)
    assert judged(plan, seen, monkeypatch, NoFeasibleDesign("none"), double).verdict == "move"
    assert judged(plan, seen, monkeypatch, 9.0, NoFeasibleDesign("none at all")).verdict == "stay"


def test_the_plans_accelerators_carry_what_they_were_planned_for(plan):
    seen = measured({}, counts_of(exposition(600)), 60.0)
    pins = pins_of(plan.best)
    assert (pins.prefill, pins.decode) == ("L40S", "L40S")
    asked = {"prices": "aws", "size_for": "average"}
    carried, said = watch._carried(plan, workload_of(plan, {}, seen)[0], seen.rate, asked)
    assert carried >= seen.rate
    assert f"carry {carried:.3g} requests/s" in said


def test_what_is_owned_is_asked_anew_and_needs_no_prices(plan, monkeypatch):
    """A plan of an inventory: nothing is rented, so that a move is to another use of what is there."""
    seen = measured({}, counts_of(exposition(600)), 60.0)
    owned = replace(
        plan, question=replace(plan.question, inventory={"L40S": 64}, prices="", pins={"engine": "vllm@0.33"})
    )
    asked = []

    def answers(carried, whole):
        def answer(model, workload, slo, *, pins, **more):
            asked.append((pins, more))
            found = carried if pins.placement else whole
            if isinstance(found, Exception):
                raise found
            return replace(plan, best=replace(plan.best, label="another", goodput=found))

        monkeypatch.setattr(watch, "make_plan", answer)
        return judge(owned, workload_of(owned, {}, seen)[0], seen, "")

    assert answers(11.0, 99.0).verdict == "stay"
    assert (answers(9.0, 20.0).verdict, answers(9.0, 20.0).to) == ("move", "another")
    short = answers(9.0, 9.5)
    assert short.verdict == "stay"
    assert "more accelerators are needed: the most that is carried by what is owned is 9.5" in short.why
    none = answers(NoFeasibleDesign("the handoff is too slow"), 20.0)
    assert none.verdict == "move"
    assert "in no shape and precision (the handoff is too slow)" in none.why
    assert {pins.engine for pins, _ in asked} == {"vllm@0.33"}
    assert all("rate" not in more and more["prices"] is None for _, more in asked)


@contextmanager
def serving(bodies):
    """An address that answers with each body in turn, and what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers.get("authorization"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bodies[min(len(asked), len(bodies)) - 1].encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_command(plan, tmp_path: Path, monkeypatch, capsys):
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
    (tmp_path / "key").write_text("a-key\n")
    monkeypatch.setattr(watch, "make_plan", lambda *_, **__: plan)
    with serving([exposition(100), exposition(110)]) as (url, asked):
        monkeypatch.setattr("sys.argv", ["diptych", "watch", str(tmp_path), "--metrics", url, "--window", "1s", "--json",
                                         "--token-file", str(tmp_path / "key")])  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1  # ten requests say nothing
        assert asked == ["Bearer a-key"] * 2
    with serving([exposition(100), exposition(105 + 35)]) as (url, _):
        monkeypatch.setattr(
            "sys.argv", ["diptych", "watch", str(tmp_path), "--metrics", url, "--window", "1s", "--json"]
        )
        with pytest.raises(SystemExit) as ended:
            main()
    told = json.loads(capsys.readouterr().out)
    assert told["measured"]["requests"] == 40
    assert told["verdict"] == ("stay" if ended.value.code in (0, None) else "move")


@pytest.mark.parametrize("url", ["ftp://x", "nothing", "file:///etc/passwd"])
def test_addresses_that_are_none(url):
    with pytest.raises(InvalidInput):
        watch.fetch(url, None)


def test_nobody_answers():
    with pytest.raises(Unsupported, match="nobody answers"):
        watch.fetch("http://127.0.0.1:9/metrics", None)

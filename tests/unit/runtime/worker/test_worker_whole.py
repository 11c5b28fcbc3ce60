"""A worker that computes and answers by itself: every stream beside what the toy model says it must be."""

import pytest
from worker_parts import MODEL, Worker, cancel, prompt, submit

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

"""What a test asks of everything that a worker has said, whether it is a thread here or a process of its own."""

import time

from diptych.runtime.messages import Ask, Ended, Failed, Load, Tokens


class Ear:
    """For a class with `said` (every message), `tell` (a message to the worker) and `wait` (until something was said)."""

    def end_of(self, request, epoch=1):
        """The last word on a request: `Ended` or `Failed`."""
        return self.wait(
            lambda said: next(
                (
                    each
                    for each in said
                    if isinstance(each, Ended | Failed) and (each.request, each.epoch) == (request, epoch)
                ),
                None,
            )
        )

    def tokens_of(self, request, epoch=1):
        """Tokens by place; a place said twice must be the same."""
        found = {}
        for each in list(self.said):
            if isinstance(each, Tokens) and (each.request, each.epoch) == (request, epoch):
                for place, token in enumerate(each.tokens, each.index):
                    assert found.setdefault(place, token.token) == token.token
        assert sorted(found) == list(range(min(found, default=0), min(found, default=0) + len(found)))
        return [found[place] for place in sorted(found)]

    def load(self):
        """What it holds now."""
        count = len(self.said)
        self.tell(Ask())
        return self.wait(lambda said: next((each for each in said[count:] if isinstance(each, Load)), None))

    def at_rest(self, seconds=10.0):
        """Until nothing is held and every block is free."""
        end = time.monotonic() + seconds
        while True:
            load = self.load()
            counts = (
                load.queued,
                load.running,
                load.handing,
                load.reservations,
                load.pins,
                load.leases,
                load.transfers,
            )
            if not any(counts) and load.blocks_free == load.blocks:
                return load
            assert time.monotonic() < end, load
            time.sleep(0.02)

"""A handoff between two workers beside a bare `recv_into` loop on the same kind of socket, in one run, in rotation.

python benchmarks/handoff.py [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue

import xxhash

from diptych.boundary.descriptor import KVState, Layout, Storage
from diptych.boundary.element import Element
from diptych.boundary.format import Format
from diptych.boundary.identity import Identity
from diptych.boundary.layers import LayerKind, Layers
from diptych.runtime.engine import Chunk, EngineFault, Prefilled, Step
from diptych.runtime.memory import allocate
from diptych.runtime.messages import Ended, Message, Params, Submit, Tokens
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.arena import Arena
from diptych.runtime.sampling import Sampled
from diptych.runtime.worker.commands import Command, Setup
from diptych.runtime.worker.core import Core
from diptych.runtime.worker.owner import Limits
from diptych.serving.batching import BatchRules

LAYERS, TOKENS = 16, 2048
SIZES = {"16 tokens, 64 KiB": 16, "64 tokens, 256 KiB": 64}
KINDS = ("unix", "tcp", "shm")
GOAL = 0.8
Turn = Callable[[], float]
NOTES = (
    "What it comes to. A bare transfer is one copy at each end, and two digests of memory that is not in the cache cost",
    "about half as much again: *digested ÷ bare, CPU* is the most that frames could reach where both ends share what one",
    "core gives. Where each end has a core, sending and receiving overlap, and the share is larger. In lent memory (shm)",
    "nothing is sent: the source digests, the target copies and digests.",
    "",
    "What was tried, on a Unix socket by two such processes without messages, with both cores free: frames of 1 MiB 77% of",
    "bare, of 512 KiB 81%, of 256 KiB 83% (what was digested is in the near cache still when it is copied; so it is done);",
    "waiting in the kernel for whole pieces instead of taking what is there, no difference; a send buffer of 4 MiB, 75%;",
    "digests on a thread of their own at one end 57%, at both 68% (handing over between threads costs more than what",
    "overlaps on two cores); two connections with frames of 256 KiB 99%, which needs an order between connections, as",
    "`done` relies on, and is not built. A reader that blocks on a socket wakes at all that is sent on it: the source's",
    "polls, which saved 8 ms of CPU a handoff. XXH3-128 reads 40 GB/s out of the cache and about 10 out of memory, so",
    "another digest would not be faster: it is memory that is waited for.",
)


def touched(size: int) -> memoryview:
    """Memory that has been written before."""
    return memoryview(bytearray(b"\x01") * size)


class Still:
    """An engine that computes nothing: a prompt's KV is whatever its blocks hold. 8 heads of 128 in bf16."""

    vocabulary, max_context, eos = 256, 1 << 20, frozenset((255,))

    def __init__(self, block_tokens: int, room: Callable[[int], memoryview] = touched) -> None:
        layers = Layers(LayerKind.FULL, LAYERS, kv_heads=8, head_dim=128, v_head_dim=128)
        storage = Storage(block_tokens, Layout.LBHNC)
        self.state = KVState(Identity("still"), (layers,), Format(Element.BF16), storage)
        self.memory = allocate(self.state, TOKENS // block_tokens + 1, room)

    def prefill(
        self, chunks: list[Chunk], on_layer: Callable[[int], None] | None = None
    ) -> list[Prefilled | EngineFault]:
        if on_layer is not None:
            for layer in range(LAYERS):
                on_layer(layer)
        return [Prefilled(Sampled(1) if chunk.sampling else None) for chunk in chunks]

    def insert(self, sequence: int, blocks: tuple[int, ...], tokens: int) -> None: ...

    def decode_step(
        self, steps: list[Step], on_layer: Callable[[int], None] | None = None
    ) -> list[Sampled | EngineFault]:
        return [Sampled(1) for _ in steps]

    def release(self, sequence: int) -> None: ...


def worker(name: str, role: str, kind: str, block_tokens: int) -> tuple[Core, SimpleQueue[Message]]:
    said: SimpleQueue[Message] = SimpleQueue()
    arena = Arena() if kind == "shm" else None

    def lent(size: int) -> memoryview:
        assert arena is not None
        room = arena.room(size)
        room[:] = b"\x01" * size
        return room

    def emit(out: list[tuple[int, Message]]) -> None:
        for _, message in out:
            said.put(message)

    setup = Setup(name, role, 1, BatchRules(budget=TOKENS), Limits(), prefixes=False)
    engine = Still(block_tokens, lent if arena else touched)
    return Core(engine, setup, emit, arena=arena), said


class Pair:
    """A target here, a source in a child, and a bare connection between the two."""

    def __init__(self, kind: str, block_tokens: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.bare_here, there = tcp_pair() if kind == "tcp" else socket.socketpair()
        orders, self.orders = socket.socketpair()
        self.child = os.fork()
        if not self.child:
            self.orders.close()
            self.bare_here.close()
            source(there, orders, kind, block_tokens)
            os._exit(0)
        there.close()
        orders.close()
        self.core, self.said = worker("target", "decode", kind, block_tokens)
        at = "tcp:127.0.0.1:0" if kind == "tcp" else f"{kind}:{self.folder.name}/t"
        self.address = str(self.core.peers.listen(Address.of(at)))

        threading.Thread(target=self.core.run, daemon=True).start()
        self.bytes = self.core.engine.memory.bytes_per_block * (TOKENS // block_tokens)
        self.room = touched(self.bytes // LAYERS)

    def bare(self) -> float:
        """As many bytes as a handoff has, layer by layer."""
        begin = time.perf_counter()
        self.order(b"b")
        for _ in range(LAYERS):
            self.take()
        return time.perf_counter() - begin

    def digested(self) -> float:
        """The same with the digests that frames have, at both ends."""
        begin = time.perf_counter()
        self.order(b"d")
        for _ in range(LAYERS):
            self.take(xxhash.xxh3_128())
        return time.perf_counter() - begin

    def take(self, digest: object = None) -> None:
        at = 0
        while at < len(self.room):
            count = self.bare_here.recv_into(self.room[at:])
            if digest is not None:
                digest.update(self.room[at : at + count])
            at += count

    def push(self) -> float:
        return self.handoff("push")

    def pull(self) -> float:
        return self.handoff("pull")

    def handoff(self, ownership: str) -> float:
        """From the two halves' submission until the target has said the first token."""
        request, params = os.urandom(16), Params(max_tokens=1)
        prompt = (1,) * TOKENS
        begin = time.perf_counter()
        self.core.tell(Command(1, Submit(request, 1, "decode", prompt, params, peer="source", ownership=ownership)))
        self.order(b"p" if ownership == "push" else b"o", request + self.address.encode())
        while not isinstance(self.said.get(timeout=60), Tokens):
            pass
        took = time.perf_counter() - begin
        while not isinstance(self.said.get(timeout=60), Ended):
            pass
        return took

    def order(self, letter: bytes, words: bytes = b"") -> None:
        self.orders.sendall(letter + struct.pack("H", len(words)) + words)

    def cpu(self) -> float:
        """CPU-seconds of both processes so far."""
        self.order(b"t")
        return time.process_time() + struct.unpack("d", self.orders.recv(8))[0]

    def close(self) -> None:
        self.orders.close()
        self.bare_here.close()
        os.waitpid(self.child, 0)
        self.core.peers.close()
        self.folder.cleanup()


def source(bare: socket.socket, orders: socket.socket, kind: str, block_tokens: int) -> None:
    """The child: sends what it is told to."""

    core, said = worker("source", "prefill", kind, block_tokens)
    threading.Thread(target=core.run, daemon=True).start()
    layers = [layer.bytes[: TOKENS // block_tokens * layer.stride] for layer in core.engine.memory.layers]
    while head := orders.recv(3, socket.MSG_WAITALL):
        words = orders.recv(struct.unpack("H", head[1:])[0], socket.MSG_WAITALL) if head[1:] != b"\0\0" else b""
        if head[:1] == b"t":
            orders.sendall(struct.pack("d", time.process_time()))
        elif head[:1] in (b"b", b"d"):
            for layer in layers:
                for at in range(0, len(layer), 1 << 20):
                    if head[:1] == b"d":
                        xxhash.xxh3_128_digest(layer[at : at + (1 << 20)])
                    bare.sendall(layer[at : at + (1 << 20)])
        else:
            request, address = words[:16], words[16:].decode()
            ownership = "push" if head[:1] == b"p" else "pull"
            half = Submit(
                request, 1, "prefill", (1,) * TOKENS, Params(max_tokens=1), peer="target", peer_address=address,
                ownership=ownership,
            )  # fmt: skip
            core.tell(Command(1, half))
            while not isinstance(said.get(timeout=60), Ended):
                pass


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


def rows(repeat: int) -> Iterable[tuple[str, dict[str, float]]]:
    for kind in KINDS:
        for name, block_tokens in SIZES.items():
            pair = Pair(kind, block_tokens)
            turns: dict[str, Turn] = {
                "bare": pair.bare, "digested": pair.digested, "push": pair.push, "pull": pair.pull,
            }  # fmt: skip
            best = dict.fromkeys(turns, 1e9)
            cpu = dict.fromkeys(turns, 1e9)
            for turn in (*turns.values(),):
                turn()
            for _ in range(repeat):
                for each, turn in turns.items():
                    before = pair.cpu()
                    best[each] = min(best[each], turn())
                    cpu[each] = min(cpu[each], pair.cpu() - before)
            gigabytes = pair.bytes / 1e9
            pair.close()
            speeds = {each: gigabytes / seconds for each, seconds in best.items()}
            yield f"{kind}, {name}", speeds | {f"{each} cpu": gigabytes / seconds for each, seconds in cpu.items()}


def line(name: str, row: dict[str, float]) -> str:
    cells = [f"{row[each]:.2f}" for each in ("bare", "digested", "push", "pull")]
    cells += [f"{row[each] / row['bare']:.0%}" for each in ("push", "pull")]
    cells += [f"{row[f'{each} cpu'] / row['bare cpu']:.0%}" for each in ("digested", "push", "pull")]
    return f"| {name} | {' | '.join(cells)} |"


def verdict(found: dict[str, dict[str, float]]) -> str:
    """Which rows reach the goal, and how near the others come."""
    shares = {name: min(row["push"], row["pull"]) / row["bare"] for name, row in found.items()}
    reached = [name for name, share in shares.items() if share >= GOAL]
    short = [f"{name} {share:.0%}" for name, share in shares.items() if share < GOAL]
    return "; ".join(
        part
        for part in (
            f"reached by {', '.join(reached)}" if reached else "",
            f"short of it {', '.join(short)}" if short else "",
        )
        if part
    )


def page(found: dict[str, dict[str, float]]) -> str:
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, xxhash {xxhash.VERSION}"
    megabytes = TOKENS * LAYERS * 2 * 8 * 128 * 2 >> 20
    lines = [
        "# A handoff beside a bare socket",
        "",
        f"GB/s between two processes on one host ({machine}), {megabytes} MiB at a time:",
        f"the KV of a prompt of {TOKENS:,} tokens, {LAYERS} layers of 8 heads of 128 in bf16, from the blocks of one worker into",
        "those of another. The best of several turns counts, turns of all columns in rotation.",
        f"Written by `benchmarks/handoff.py --write`, at a load average of {os.getloadavg()[0]:.1f}; above about 2 others ran",
        "beside it, the two ends share what is left of two cores, and the share by the clock comes down to that by CPU.",
        "",
        "*bare* is `sendall` and `recv_into` of as many bytes on a connection of the same kind (a Unix socket beside shm);",
        "*digested* the same with digests at both ends and no frames. *push* and *pull* are whole handoffs, from the submission",
        "of both halves until the target has said the first token: messages, reservation, frames with their digests, validation,",
        "commit; the engine computes nothing. CPU is of both processes together.",
        "",
        f"The goal is {GOAL:.0%} of bare, digests on: {verdict(found)}.",
        "",
        "| socket, block of a layer | bare | digested | push | pull | push ÷ bare | pull ÷ bare "
        "| digested ÷ bare, CPU | push ÷ bare, CPU | pull ÷ bare, CPU |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(line(name, row) for name, row in found.items()),
        "",
        *NOTES,
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="write benchmarks/handoff.md")
    given = parser.parse_args()
    found = dict(rows(given.repeat))
    text = page(found)
    if given.write:
        (Path(__file__).parent / "handoff.md").write_text(text, encoding="utf-8")
    print(text)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

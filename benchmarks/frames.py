"""How fast KV is framed, digested and put in its place, beside memcpy and a bare socket in one run; the last line is JSON.

What it must cost: with the digest on, a handoff at 80 % or more of a bare `recv_into` loop on the same kind of socket.

    python benchmarks/frames.py            # a minute
    python benchmarks/frames.py --write    # and benchmarks/frames.md

Everything moves the same 64 MiB (more than the near caches) into memory that was touched before; the best of several turns
counts, turns of all columns in rotation; in one process by CPU-seconds, between two by both clocks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import struct
import time
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import xxhash

from diptych.boundary.element import Element
from diptych.boundary.messages import Hello, Speaker
from diptych.boundary.receiver import Completed, Receiver
from diptych.boundary.sender import RUN_BYTES, Sender
from diptych.boundary.wire_table import Layer, Reservation, WireTable

TOTAL = 1 << 26
LAYERS = 16
SLICE = 1 << 17
CELLS = {"4 KiB": 4 << 10, "12 KiB": 12 << 10, "64 KiB": 64 << 10, "512 KiB": 512 << 10}
HELLO = Hello(Speaker.PREFILL, "bench", 1, 1, 1, b"")
Turn = Callable[[], int]


def held(memory: bytearray, cell: int, scattered: bool) -> Reservation:
    """`LAYERS` layers over `memory` in blocks of `cell` bytes, neighbours or every other one backwards."""
    view, size = memoryview(memory), len(memory) // LAYERS
    blocks = size // cell
    order = [*range(0, blocks, 2), *range(blocks - 1 - blocks % 2, 0, -2)] if scattered else range(blocks)
    offsets = tuple(index * cell for index in order)
    parts = (view[number * size : (number + 1) * size] for number in range(LAYERS))
    layers = {number: Layer(Element.BF16, cell, offsets, (part,)) for number, part in enumerate(parts)}
    return Reservation(os.urandom(16), 1, layers)


def receiver_of(target: Reservation) -> Receiver:
    table = WireTable()
    table.reserve(target)
    receiver = Receiver(table)
    receiver.feed(Sender().message(HELLO))
    return receiver


class Local:
    """Turns within one process."""

    def __init__(self, cell: int, scattered: bool) -> None:
        self.cell, self.scattered = cell, scattered
        self.source, self.target = bytearray(os.urandom(TOTAL)), bytearray(os.urandom(TOTAL))
        self.held = held(self.source, cell, scattered)
        self.sealed = [[bytes(frame[0]), *frame[1:]] for frame in Sender().everything(self.held)]

    def memcpy(self) -> int:
        memoryview(self.target)[:] = self.source
        return TOTAL

    def sliced(self) -> int:
        """What a copy costs that leaves its bytes in the cache: large copies go around it."""
        source, target = memoryview(self.source), memoryview(self.target)
        for at in range(0, TOTAL, SLICE):
            target[at : at + SLICE] = source[at : at + SLICE]
        return TOTAL

    def digest(self) -> int:
        xxhash.xxh3_128_intdigest(self.source)
        return TOTAL

    def send(self) -> int:
        for _ in Sender().everything(self.held):
            pass
        return self.held.expected_bytes

    def receive(self) -> int:
        return self._feed(self.sealed)

    def both(self) -> int:
        return self._feed(Sender().everything(self.held))

    def _feed(self, frames: Iterable[list[bytes | memoryview]]) -> int:
        target = held(self.target, self.cell, self.scattered)
        target.id = self.held.id
        receiver = receiver_of(target)
        for piece in chain.from_iterable(frames):
            receiver.feed(piece)
        assert target.complete
        return target.expected_bytes


class Wired:
    """Turns between two processes over a socket. The child sends what a turn is when it reads the turn's letter."""

    def __init__(self, kind: str, cell: int) -> None:
        self.cell = cell
        self.target = bytearray(os.urandom(TOTAL))
        ours, theirs = socket.socketpair() if kind == "unix" else tcp_pair()
        self.child = os.fork()
        if not self.child:
            ours.close()
            self._serve(theirs)
            os._exit(0)
        theirs.close()
        self.sock = ours

    def _serve(self, sock: socket.socket) -> None:
        source = held(bytearray(os.urandom(TOTAL)), self.cell, scattered=False)
        source.id = b"b" * 16
        while letter := sock.recv(1):
            if letter == b"f":
                for frame in Sender().everything(source):
                    send_all(sock, frame)
            elif letter == b"d":
                for layer in source.layers.values():
                    for at in range(0, len(layer.groups[0]), RUN_BYTES):
                        xxhash.xxh3_128_digest(layer.groups[0][at : at + RUN_BYTES])
                        sock.sendall(layer.groups[0][at : at + RUN_BYTES])
            elif letter == b"b":
                for layer in source.layers.values():
                    sock.sendall(layer.groups[0])
            else:
                sock.sendall(struct.pack("d", time.process_time()))

    def bare(self) -> int:
        self.sock.send(b"b")
        at, view = 0, memoryview(self.target)
        while at < TOTAL:
            at += self.sock.recv_into(view[at:])
        return TOTAL

    def digested(self) -> int:
        """The bare loop with the same digests at both ends and no frames."""
        self.sock.send(b"d")
        at, view, digest = 0, memoryview(self.target), xxhash.xxh3_128()
        while at < TOTAL:
            count = self.sock.recv_into(view[at:])
            digest.update(view[at : at + count])
            at += count
        return TOTAL

    def framed(self) -> int:
        target = held(self.target, self.cell, scattered=False)
        target.id = b"b" * 16
        receiver = receiver_of(target)
        self.sock.send(b"f")
        while True:
            for event in receiver.received(self.sock.recvmsg_into(receiver.buffers())[0]):
                if isinstance(event, Completed):
                    return target.expected_bytes

    def cpu(self) -> float:
        """CPU-seconds of both ends so far."""
        self.sock.send(b"t")
        return time.process_time() + struct.unpack("d", self.sock.recv(8))[0]

    def close(self) -> None:
        self.sock.close()
        os.waitpid(self.child, 0)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


def send_all(sock: socket.socket, pieces: list[bytes | memoryview]) -> None:
    waiting = [memoryview(piece) for piece in pieces]
    while waiting:
        sent = sock.sendmsg(waiting)
        while waiting and sent >= len(waiting[0]):
            sent -= len(waiting.pop(0))
        if sent:
            waiting[0] = waiting[0][sent:]


def best(turns: dict[str, Turn], repeat: int, clock: Callable[[], float]) -> dict[str, float]:
    """GB per second of `clock` of each, the best of `repeat`, in rotation."""
    seen = dict.fromkeys(turns, 0.0)
    for _ in range(repeat):
        for name, turn in turns.items():
            begin = clock()
            moved = turn()
            seen[name] = max(seen[name], moved / (clock() - begin) / 1e9)
    return seen


def local_rows(repeat: int) -> Iterable[tuple[str, dict[str, float]]]:
    for name, cell in CELLS.items():
        for scattered in (False, True):
            here = Local(cell, scattered)
            turns: dict[str, Turn] = {
                "memcpy": here.memcpy,
                "sliced": here.sliced,
                "digest": here.digest,
                "send": here.send,
                "receive": here.receive,
                "both": here.both,
            }
            yield f"{name}, {'scattered' if scattered else 'neighbours'}", best(turns, repeat, time.process_time)


def wired_rows(repeat: int) -> Iterable[tuple[str, dict[str, float]]]:
    for kind in ("unix", "tcp"):
        for name, cell in CELLS.items():
            there = Wired(kind, cell)
            turns: dict[str, Turn] = {"bare": there.bare, "digested": there.digested, "framed": there.framed}
            by_wall = best(turns, repeat, time.perf_counter)
            by_cpu = {f"{turn} cpu": speed for turn, speed in best(turns, repeat, there.cpu).items()}
            yield f"{kind}, {name}", by_wall | by_cpu
            there.close()


def local_line(name: str, row: dict[str, float]) -> str:
    speeds = [row[column] for column in ("memcpy", "sliced", "digest", "send", "receive")]
    ratios = [row["receive"] / row[column] for column in ("memcpy", "sliced")]
    cells = [f"{speed:.1f}" for speed in speeds] + [f"{ratio:.0%}" for ratio in ratios] + [f"{row['both']:.1f}"]
    return f"| {name} | {' | '.join(cells)} |"


def wired_line(name: str, row: dict[str, float]) -> str:
    columns = ("bare", "digested", "framed")
    speeds = [f"{row[column]:.2f}" for column in columns] + [f"{row['framed'] / row['bare']:.0%}"]
    by_cpu = [f"{row[f'{column} cpu']:.2f}" for column in columns] + [f"{row['framed cpu'] / row['bare cpu']:.0%}"]
    return f"| {name} | {' | '.join(speeds + by_cpu)} |"


def page(local: dict[str, dict[str, float]], wired: dict[str, dict[str, float]]) -> str:
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, xxhash {xxhash.VERSION}"
    lines = [
        "# Frames beside memcpy and bare sockets",
        "",
        f"GB/s of KV, digests always on ({machine}). Every turn moves the same 64 MiB, more than",
        "the near caches, into memory touched before; the best of several turns counts, turns of all columns in rotation.",
        "Written by `benchmarks/frames.py --write`.",
        "",
        "In one process, per CPU-second. *send* cuts, digests and heads frames of 1 MiB and copies nothing; *receive*",
        "copies from the transport's memory into the blocks, digests them there and keeps the table; *both* is one after the",
        "other. *memcpy* is one call and goes around the cache; *in slices* is 128 KiB at a time, as whoever reads the bytes",
        "again must copy.",
        "",
        "| blocks | memcpy | in slices | digest | send | receive | ÷ memcpy | ÷ in slices | both |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(local_line(name, row) for name, row in local.items()),
        "",
        "Between two processes. *bare* is `sendall` and `recv_into` of the same bytes; *digested* the same with digests at both",
        "ends and no frames; *framed* is a handoff: `sendmsg`, and `recvmsg_into` the blocks themselves. First by the clock on",
        "the wall, which needs a machine with nothing else to do, then per CPU-second of both ends together.",
        "",
        "| socket, block | bare | digested | framed | framed ÷ bare | bare, CPU | digested, CPU | framed, CPU | ÷ bare, CPU |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(wired_line(name, row) for name, row in wired.items()),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="write benchmarks/frames.md")
    given = parser.parse_args()
    local, wired = dict(local_rows(given.repeat)), dict(wired_rows(given.repeat))
    text = page(local, wired)
    if given.write:
        (Path(__file__).parent / "frames.md").write_text(text, encoding="utf-8")
    print(text)
    print(json.dumps({"local_gb_s": local, "wired_gb_s": wired}))


if __name__ == "__main__":
    main()

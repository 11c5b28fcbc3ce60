"""What the gateway costs: time added to an answer beside asking the worker directly, and streamed chunks per second of one core.

A worker that answers at once with ready-made tokens runs in another process, so that only the gateway's work is counted: its CPU
time, not the clock's, is what a chunk costs. The same worker is asked directly over its socket for the comparison.

    python benchmarks/gateway.py [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from diptych.runtime.gateway.server import Listening
from diptych.runtime.gateway.service import Service
from diptych.runtime.gateway.settings import Endpoint, Limits, Settings
from diptych.runtime.messages import (
    Chosen,
    Ended,
    Hello,
    Load,
    Params,
    Ready,
    Submit,
    Tokens,
    decode_at_gateway,
    decode_at_worker,
    encode,
    length,
)

ASKS, STREAMS, TOKENS = 2000, 64, 400
GOAL_SECONDS, GOAL_CHUNKS = 1e-3, 10_000


async def _worker(path: str) -> None:
    """Answers every request at once: one token a message, as many messages as it is asked for."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(Hello("w", "colocated", 1)))

        async def answer(said: Submit) -> None:
            last = said.params.max_tokens - 1
            for place in range(last + 1):
                token = (Chosen(97 + place % 26),)
                writer.write(encode(Tokens(said.request, said.epoch, place, token, "length" if place == last else "")))
                if place % 8 == 7:
                    await asyncio.sleep(0)
                    await writer.drain()
            writer.write(encode(Ended(said.request, said.epoch, "length", last + 1)))

        async def beat() -> None:
            steps = 0
            while True:
                steps += 1
                writer.write(encode(Load(0, 1, 0, 100, 100, steps, 0, 0)))
                await asyncio.sleep(0.2)

        tasks = {asyncio.create_task(beat())}
        try:
            while True:
                message = decode_at_worker(await reader.readexactly(length(await reader.readexactly(4))))
                if isinstance(message, Hello):
                    writer.write(encode(Ready(b"", "", 100, 16, 256, 1 << 20, "toy")))
                elif isinstance(message, Submit):
                    tasks.add(asyncio.create_task(answer(message)))
        except (asyncio.IncompleteReadError, ConnectionError):
            for task in tasks:
                task.cancel()

    server = await asyncio.start_unix_server(serve, path)
    await server.serve_forever()


def _run_worker(path: str) -> None:
    uvloop.run(_worker(path))


async def _gateway(path: str, port_file: str) -> None:
    settings = Settings(
        model="toy",
        workers=(Endpoint("w", "colocated", f"unix:{path}"),),
        port=0,
        admin_token="bench",
        missing=40,
        limits=Limits(unread_tokens=1 << 30),
    )
    service = Service(settings)
    async with Listening(service) as gateway:
        while not service.is_ready:
            await asyncio.sleep(0.01)
        Path(port_file).write_text(str(gateway.port), encoding="utf-8")
        await asyncio.Event().wait()


def _run_gateway(path: str, port_file: str) -> None:
    uvloop.run(_gateway(path, port_file))


def _request(body: dict[str, Any]) -> bytes:
    said = json.dumps({"model": "toy", "prompt": "abc", "temperature": 0} | body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(said), said)


async def _through(port: int) -> list[float]:
    """Seconds of one-token answers through the gateway, one after another on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request, took = _request({"max_tokens": 1}), []
    for _ in range(ASKS):
        began = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(size)
        took.append(time.perf_counter() - began)
    writer.close()
    return took


async def _direct(path: str) -> list[float]:
    """The same of the worker itself."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(encode(Hello("gateway", "gateway", 1)))
    took = []
    for place in range(ASKS):
        began = time.perf_counter()
        writer.write(encode(Submit(place.to_bytes(16, "little"), 1, "whole", (97, 98, 99), Params(1))))
        while True:
            message = decode_at_gateway(await reader.readexactly(length(await reader.readexactly(4))))
            if isinstance(message, Tokens):
                break
        took.append(time.perf_counter() - began)
    writer.close()
    return took


async def _streams(port: int) -> int:
    """Chunks of many long streams at once."""

    async def one() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        writer.write(_request({"max_tokens": TOKENS, "stream": True}))
        found = b""
        chunks = 0
        while not found.endswith(b"0\r\n\r\n"):
            found = found[-16:] + (part := await reader.read(1 << 18))
            chunks += part.count(b'"index"')
        writer.close()
        return chunks

    return sum(await asyncio.gather(*(one() for _ in range(STREAMS))))


def _cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure() -> dict[str, float]:
    """Every number."""
    with tempfile.TemporaryDirectory() as folder:
        path, port_file = f"{folder}/w.sock", Path(folder) / "port"
        start = multiprocessing.get_context("spawn")
        worker = start.Process(target=_run_worker, args=(path,), daemon=True)
        gateway = start.Process(target=_run_gateway, args=(path, str(port_file)), daemon=True)
        worker.start()
        gateway.start()
        try:
            while not port_file.exists() or not port_file.read_text():
                time.sleep(0.05)
            port = int(port_file.read_text())
            return _measured(port, path, gateway.pid or 0)
        finally:
            for process in (gateway, worker):
                process.terminate()
                process.join()


def _measured(port: int, path: str, pid: int) -> dict[str, float]:
    cpu = _cpu(pid)
    through = uvloop.run(_through(port))[50:]
    cpu = _cpu(pid) - cpu
    direct = uvloop.run(_direct(path))[50:]
    busy, clock = _cpu(pid), time.perf_counter()
    chunks = uvloop.run(_streams(port))
    busy, clock = _cpu(pid) - busy, time.perf_counter() - clock
    return {
        "through_p50": statistics.median(through),
        "direct_p50": statistics.median(direct),
        "added_p50": statistics.median(through) - statistics.median(direct),
        "cpu_per_answer": cpu / ASKS,
        "chunks": chunks,
        "chunks_per_second": chunks / clock,
        "chunks_per_core_second": chunks / busy,
        "microseconds_per_chunk": busy / chunks * 1e6,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    found = measure()
    if parser.parse_args().json:
        print(json.dumps(found))
        return 0
    added, rate, cpu = found["added_p50"], found["chunks_per_core_second"], found["cpu_per_answer"]
    through, direct = found["through_p50"] * 1e3, found["direct_p50"] * 1e3
    each, clock = found["microseconds_per_chunk"], found["chunks_per_second"]
    print(
        f"added at p50  {added * 1e3:8.2f} ms  (through {through:.2f}, direct {direct:.2f}; {cpu * 1e3:.2f} of CPU; goal 1)"
    )
    print(
        f"chunks        {rate:8,.0f} per second of a core  ({each:.0f} us each; {clock:,.0f}/s by the clock; goal 10,000)"
    )
    return 0 if added <= GOAL_SECONDS and rate >= GOAL_CHUNKS else 1


if __name__ == "__main__":
    sys.exit(main())

"""A worker's joint in a process of its own, which a failpoint can kill: told what to do, it tells what vLLM would hear."""

from __future__ import annotations

import threading
from dataclasses import fields
from multiprocessing.connection import Connection
from time import sleep

from joints import KEY, LAYERS, Worker, values

from diptych.boundary.messages import Speaker
from diptych.integrations.vllm.jobs import Fetch, Finished, Keep, Made, Make
from diptych.integrations.vllm.ticket import Place
from diptych.runtime import failpoints

TOKENS, BLOCKS = 150, (0, 1, 2, 3, 4)


def told(worker: Worker, pipe: Connection) -> None:
    while True:
        found = worker.joint.take()
        said = [each.name for each in fields(Finished) if getattr(found, each.name)]
        if said:
            pipe.send(said)
        sleep(0.005)


def compute(worker: Worker) -> None:
    for layer in range(LAYERS):
        worker.joint.made(Made(KEY, BLOCKS, TOKENS), layer)
    worker.joint.keep(Keep(KEY, "p", BLOCKS, TOKENS))


def run(role: str, settings: dict, folder: str, pipe: Connection) -> None:
    """Until it is killed."""
    failpoints._FOLDER = folder
    worker = Worker(32, "torch.float32", speaker=Speaker.PREFILL if role == "prefill" else Speaker.DECODE, **settings)
    if role == "prefill":
        worker.put(values(TOKENS), list(BLOCKS))
    pipe.send((worker.place.worker, worker.place.doorbell))
    threading.Thread(target=told, args=(worker, pipe), daemon=True).start()
    while True:
        deed, *given = pipe.recv()
        match deed:
            case "keep":
                worker.joint.keep(Keep(KEY, "p", BLOCKS, TOKENS))
            case "make":
                worker.joint.make(Make(KEY, "p", TOKENS, "same"))
            case "compute":
                compute(worker)
            case "fetch":
                worker.joint.fetch(Fetch(KEY, "d", BLOCKS, TOKENS, 0, "same", ranks=(Place(*given),)))
            case "reserve":
                worker.joint.fetch(Fetch(KEY, "d", BLOCKS, TOKENS, 0, "same", meeting=given[0]))
            case "cancel":
                worker.joint.cancel("d")
            case "halt":
                worker.joint.halt("p", True)

"""Real worker processes and a gateway's end of their control sockets."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from diptych.runtime import messages
from diptych.runtime.engines.toy import ToyModel
from diptych.runtime.messages import Params, Submit
from worker_ear import Ear

MODEL = ToyModel(layers=3)
TOY = {"kind": "toy", "layers": 3, "blocks": 256, "block_tokens": 4}


class WorkerProcess(Ear):
    """One worker in a process of its own, and everything that it has said. Ended by `close`, whatever happened."""

    def __init__(self, folder: Path, name: str, role: str, *, toy=None, environ=None, **config):
        self.name = name
        self.folder = folder / "run"
        config = {
            "name": name,
            "role": role,
            "run_dir": str(self.folder),
            "engine": TOY | (toy or {}),
            "batch": {"budget": 64},
            "limits": {"wait_ms": 5000, "stall_ms": 300},
            "parent": os.getpid(),
        } | config
        file = folder / f"{name}.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        self.errors = (folder / f"{name}.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "diptych.runtime.worker", "--config", str(file)],
            stderr=self.errors,
            env=os.environ | (environ or {}),
        )
        self.control = self.folder / f"{name}.control"
        self.said, self.heard, self.ended = [], threading.Condition(), threading.Event()
        self.sock = None

    def connect(self, seconds=30.0):
        end = time.monotonic() + seconds
        while self.sock is None:
            assert self.process.poll() is None, Path(self.errors.name).read_text()
            assert time.monotonic() < end
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(str(self.control))
                self.sock = sock
            except OSError:
                sock.close()
                time.sleep(0.02)
        self.stream = self.sock.makefile("rb")
        self.sock.sendall(messages.encode(messages.Hello("gateway", "gateway", 1)))
        self.hello, self.ready = self._next(), self._next()
        self.reader = threading.Thread(target=self._listen, daemon=True)
        self.reader.start()
        return self

    def _next(self):
        size = messages.length(self.stream.read(4))
        return messages.decode_at_gateway(self.stream.read(size))

    def _listen(self):
        while True:
            try:
                message = self._next()
            except (OSError, messages.Malformed, ValueError):
                break
            with self.heard:
                self.said.append(message)
                self.heard.notify_all()
        self.ended.set()
        with self.heard:
            self.heard.notify_all()

    def tell(self, *said):
        self.sock.sendall(b"".join(map(messages.encode, said)))

    def wait(self, found, seconds=30.0):
        end = time.monotonic() + seconds
        with self.heard:
            while not (answer := found(self.said)):
                left = end - time.monotonic()
                assert left > 0, f"{self.name} said {self.said[-5:]}, {Path(self.errors.name).read_text()[-2000:]}"
                self.heard.wait(left)
            return answer

    def at_rest(self, seconds=15.0):
        return super().at_rest(seconds)

    def close(self):
        """SIGKILL if it is still there."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        if self.sock is not None:
            self.sock.close()
            self.stream.close()
        self.errors.close()


def halves(source, target, tokens, count, ownership, epoch=1, request=None, **more):
    """Both halves of one request, in the order a gateway gives them; its id."""
    request = request or os.urandom(16)
    params = Params(max_tokens=count)
    more = {"ownership": ownership} | more
    target.tell(Submit(request, epoch, "decode", tuple(tokens), params, peer=source.name, **more))
    source.tell(
        Submit(
            request,
            epoch,
            "prefill",
            tuple(tokens),
            params,
            peer=target.name,
            peer_address=target.ready.address,
            **more,
        )
    )
    return request

"""A proxy between two workers that knows frames: it may damage, cut or hold back those that go from source to target."""

import contextlib
import os
import socket
import threading

from diptych.boundary.frame import HEADER_BYTES, FrameType, Refusal, unseal


class FrameProxy:
    """Listens on a socket file and passes everything on. `spoil(kind, number, payload)` returns the payload to send instead,
    None to end the connection; `number` counts frames of that kind."""

    def __init__(self, path, behind, spoil):
        self.path, self.spoil = str(path), spoil
        self.kind, _, self.behind = behind.partition(":")
        self.counts = {FrameType.MESSAGE: 0, FrameType.BLOCKS: 0}
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.sockets = [self.listener]
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    @property
    def address(self):
        return f"{self.kind}:{self.path}"

    def _accept(self):
        while True:
            try:
                here, _ = self.listener.accept()
            except OSError:
                return
            there = socket.socket(socket.AF_UNIX)
            there.connect(self.behind)
            if self.kind == "shm":
                _pass_on(here, there)
            self.sockets += [here, there]
            for work, pair in ((self._frames, (here, there)), (self._bytes, (there, here))):
                self.threads.append(threading.Thread(target=work, args=pair, daemon=True))
                self.threads[-1].start()

    def _frames(self, here, there):
        stream = here.makefile("rb")
        try:
            while len(head := stream.read(HEADER_BYTES)) == HEADER_BYTES:
                found = unseal(memoryview(head))
                assert not isinstance(found, Refusal), found
                kind = FrameType.MESSAGE if found[0].type == FrameType.MESSAGE else FrameType.BLOCKS
                self.counts[kind] += 1
                payload = self.spoil(kind, self.counts[kind], stream.read(found[0].length))
                if payload is None:
                    break
                there.sendall(head + payload)
        except (OSError, ValueError):
            pass
        finally:
            stream.close()
            _end(here, there)

    def _bytes(self, here, there):
        try:
            while data := here.recv(1 << 16):
                there.sendall(data)
        except OSError:
            pass
        finally:
            _end(here, there)

    def close(self):
        _end(*self.sockets)
        for each in list(self.threads):
            each.join(5)
        for each in self.sockets:
            each.close()


def _pass_on(here, there):
    """The memory that is lent."""
    word, files, _, _ = socket.recv_fds(here, 16, 2)
    socket.send_fds(there, [word], files)
    for each in files:
        os.close(each)


def _end(*sockets):
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def flipped(payload):
    """One bit of it the other way."""
    return bytes((payload[0] ^ 1,)) + payload[1:]

"""Every answer that is not what was asked for: one class, one envelope, the one that OpenAI's clients read."""

from __future__ import annotations

import msgspec

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}
MAX_SENTENCE = 1000


class Refusal(Exception):
    """An HTTP status with what is wrong and, where there is one, the field that is. `after` is when to try again, in seconds."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None, after: float = 0):
        self.status, self.message, self.code, self.param, self.after = (
            status,
            message[:MAX_SENTENCE],
            code,
            param,
            after,
        )
        super().__init__(message)

    @property
    def kind(self) -> str:
        return _KINDS.get(self.status, "server_error")

    def envelope(self) -> bytes:
        """The JSON body."""
        said = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": said})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What goes with it: when to come back."""
        if not self.after:
            return []
        return [(b"retry-after", str(max(1, round(self.after))).encode())]


_REASONS = {
    "deadline": (503, "deadline_exceeded", "the answer was not complete before its deadline", 1.0),
    "bad request": (400, "invalid_request", "the workers take no such request", 0.0),
    "too large": (400, "context_length_exceeded", "no worker has memory for this prompt and answer", 0.0),
    "too long": (400, "context_length_exceeded", "the prompt and answer are longer than the model's context", 0.0),
}


def sentence(reason: str) -> tuple[int, str, str, float]:
    """A worker's reason as a client hears it: status, code, message, and seconds until another try."""
    return _REASONS.get(reason) or (503, "worker_failed", f"a worker could not do this: {reason}"[:300], 1.0)


def invalid(message: str, param: str | None = None, code: str | None = None) -> Refusal:
    """A mistake in the request itself."""
    return Refusal(400, message, code, param)


def unsupported(param: str, why: str = "") -> Refusal:
    """Something meaningful that this server does not do: said by name, never passed over."""
    return invalid(f"{param} is not supported here{'; ' + why if why else ''}", param, "unsupported_parameter")

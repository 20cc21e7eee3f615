"""What comes of a request that the broker makes: an answer, or the reason why there is none."""

from __future__ import annotations

import msgspec

MAX_ANSWER_BYTES = 64 * 1024


class OutboundFailed(Exception):
    """A request brought no answer. `permanent`: asking again soon would bring none either.

    `kind` is one of not_allowed, invalid (could not even be sent), timeout, network, protocol (something answered, in
    no language we know), unclear.
    """

    def __init__(self, reason: str, kind: str, permanent: bool) -> None:
        super().__init__(reason)
        self.kind = kind
        self.permanent = permanent


class Answered(msgspec.Struct):
    """Of a request over HTTP."""

    status: int
    body: bytes
    coding: str = ""
    """What the body is encoded with, such as `gzip`. The broker decodes nothing, so it cannot read such a body."""

    @property
    def cut(self) -> bool:
        """Whether the body may be longer than what was read of it."""
        return len(self.body) >= MAX_ANSWER_BYTES


class GrpcAnswer(msgspec.Struct):
    """Of a call over gRPC: the name of its status (`OK`, `ABORTED`, ...), and what stands beside it."""

    code: str
    details: str


def too_long(answered: Answered) -> str:
    return (
        f"status {answered.status}: the answer was cut at the limit of {MAX_ANSWER_BYTES} bytes, "
        "so it is not a success. Return a shorter body."
    )


def encoded(answered: Answered) -> str:
    return (
        f"status {answered.status}: the answer's body is encoded with {answered.coding!r}. The broker decodes none. "
        "Send the body without compression, as the request's `Accept-Encoding: identity` asks."
    )


def late(seconds: float) -> OutboundFailed:
    return OutboundFailed(f"no answer within {seconds:g} s", "timeout", permanent=False)


def broken(error: BaseException | str) -> OutboundFailed:
    """The network gave no answer; it may the next time."""
    return OutboundFailed(_reason(error), "network", permanent=False)


def garbled(error: BaseException | str) -> OutboundFailed:
    return OutboundFailed(_reason(error), "protocol", permanent=True)


def unsendable(error: BaseException | str) -> OutboundFailed:
    return OutboundFailed(_reason(error), "invalid", permanent=True)


def _reason(error: BaseException | str) -> str:
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"

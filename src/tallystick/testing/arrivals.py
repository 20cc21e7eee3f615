"""What the clients of this process have said and the broker has not heard yet.

A block returns a few milliseconds before its messages are visible. Whoever looks at the broker first waits for those,
so that what it sees is what the code before has done.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import http.client
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.connection.waiting import WaitingOp, request_body
from tallystick.client.runtime import Runtime, cores_at
from tallystick.core.errors import TallystickError
from tallystick.core.wire import MSGPACK

ARRIVE_SECONDS = 2.0
_LOOK_SECONDS = 0.001


def runtimes_at(url: str) -> Iterator[Runtime]:
    """Of the clients of this process, on event loops that run."""
    for core in cores_at(url):
        yield from (runtime for runtime in core.runtimes if runtime.loop.is_running())


def on_own_loop(url: str) -> bool:
    """Whether a client's event loop is the caller's, and stands still while it waits."""
    own = _own_loop()
    return own is not None and any(runtime.loop is own for runtime in runtimes_at(url))


def arrive(url: str) -> None:
    """Wait until the broker has heard what the clients of this process have said so far."""
    own = _own_loop()
    waits = []
    for runtime in runtimes_at(url):
        if runtime.loop is own:
            _say_again(url, runtime.brokers.at(url))
        else:
            waits.append(asyncio.run_coroutine_threadsafe(_heard(runtime, url), runtime.loop))
    for wait in waits:
        with contextlib.suppress(concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            wait.result(ARRIVE_SECONDS + 1.0)  # no longer than a loop that has just ended would have us wait


async def _heard(runtime: Runtime, url: str) -> None:
    broker = runtime.brokers.at(url)
    await broker.hear_first(ARRIVE_SECONDS)
    deadline = time.monotonic() + ARRIVE_SECONDS
    while broker.unconfirmed.under_way() and time.monotonic() < deadline:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(_LOOK_SECONDS)


def _say_again(url: str, broker: BrokerPeer) -> None:
    """For a client whose event loop waits for the caller: its words are on their way and cannot arrive. They are said
    here as well; the broker drops what it hears twice, by the gid."""
    said = [op for op in broker.ops.under_way() if _has_gid(op)]
    if not said:
        return
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ARRIVE_SECONDS)
    try:
        connection.request("POST", "/v1/batch", request_body(said), {"Content-Type": MSGPACK})
        answer = connection.getresponse()
        if answer.status != 200:
            raise TallystickError(f"the broker did not take what was on its way: {answer.read().decode()}")
    finally:
        connection.close()


def _has_gid(op: WaitingOp) -> bool:
    return bool(msgspec.msgpack.decode(op.frame).get("gid"))


def _own_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

"""What every route needs: the broker, and parameters with errors that name them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from tallystick.api.http.bodies import decoded
from tallystick.broker.broker import Broker
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_gid, check_name

T = TypeVar("T")


class CallerGone(Exception):
    """The one who asked closed the connection before the answer."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for long work, but not for a caller that is gone: what it would be given then would be lost on it."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise CallerGone
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def broker_of(request: Request) -> Broker:
    broker: Broker = request.app.state.broker
    return broker


async def body_of(request: Request, kind: type[T]) -> T:
    return await decoded(request, kind, broker_of(request).limits.request_bytes)


def topic_of(request: Request) -> str:
    return check_name(request.path_params["topic"], "topic")


def group_of(request: Request) -> str:
    return check_name(request.path_params["group"], "group")


def gid_of(request: Request) -> str:
    return check_gid(request.path_params["gid"])


def number(request: Request, name: str, default: int, least: int = 0, most: int = 2**62) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20) or not least <= int(text) <= most:
        raise InvalidRequest(f"{name}: {text[:40]!r} is not a number from {least} to {most}", field=name)
    return int(text)

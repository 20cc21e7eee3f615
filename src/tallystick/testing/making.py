"""How the broker of the tests is made of the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from tallystick.broker.broker import Broker
from tallystick.broker.config import load_config
from tallystick.core.clock import Clock
from tallystick.testing.outbound import NoWayOut

CallsAre = Literal["kept", "answered", "made"]
QUEUES = 1
"""A test looks at messages in the order they were sent in; with one queue there is only that order."""


def broker_maker(calls: CallsAre, settings: dict[str, Any], clock: Clock) -> Callable[[], Broker]:
    """Makes one broker after the other, each without anything. To be called on its event loop."""
    if calls not in ("kept", "answered", "made"):
        raise ValueError(f"calls: {calls!r} is none of kept, answered, made")
    flags = {"default_queues": QUEUES, **settings, "store": "memory", "grpc": False}
    config = load_config(flags=flags, environ={})

    def make() -> Broker:
        outbound = None if calls == "made" else NoWayOut()
        return Broker(config, clock=clock, outbound=outbound, makes_calls=calls != "kept")

    return make

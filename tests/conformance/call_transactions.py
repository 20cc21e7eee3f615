"""Transactions with calls, and a claimer that makes them, for the tests of stores."""

from __future__ import annotations

from typing import Any

import pytest
from engines import MakePlace, Place

from tallystick.core.backoff import Backoff
from tallystick.core.calls import CallOutcome, CallPolicy, CallResult, CallView, OutgoingCall
from tallystick.core.ops import Prepare, Send
from tallystick.store.protocol import (
    ClaimCalls,
    ClaimedCalls,
    FinishCalls,
)

LEASE = 20_000
A, B = "http://a:1/x", "http://b:1/x"


@pytest.fixture
def steady(make_place: MakePlace) -> Place:
    """Tries without jitter: again after 1, 2, 4, 8, 8 s; four at most."""
    return make_place(calls=Backoff(1_000, 8_000, jitter=0.0), max_call_attempts=4)


def call(url: str = A, body: str = "b", **rest: Any) -> OutgoingCall:
    return OutgoingCall(url, body.encode(), **rest)


def prepare(gid: str, *calls: OutgoingCall, **rest: Any) -> Prepare:
    return Prepare(gid, "shop", rest.pop("messages", []), calls=list(calls or (call(),)), **rest)


def send(gid: str, *calls: OutgoingCall, **options: Any) -> Send:
    return Send([], gid, list(calls or (call(),)), CallPolicy(**options))


def claims(place: Place, early: bool = False, limit: int = 100, max_bytes: int = 1 << 20) -> ClaimedCalls:
    channels = [one.id for one in place.store.channels() if one.via == "call"]
    result = place.do(ClaimCalls(channels, limit, max_bytes, LEASE, early))
    assert isinstance(result, ClaimedCalls)
    return result


def claimed(place: Place, **rest: Any) -> list[str]:
    return sorted(f"{one.gid}/{one.call.branch}" for one in claims(place, **rest).claims)


def finish(place: Place, gid: str, outcome: CallOutcome, index: int = 0, error: str = "") -> None:
    place.do(FinishCalls([CallResult(gid, index, outcome, error)]))


def calls_of(place: Place, gid: str) -> list[CallView]:
    view = place.store.calls(gid)
    assert view is not None
    return view.calls


def states(place: Place, gid: str) -> list[str]:
    return [one.state for one in calls_of(place, gid)]


def counts(place: Place) -> tuple[int, int]:
    found = place.store.counts()
    return found.calls_waiting, found.calls_parked

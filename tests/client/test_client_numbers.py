"""Numbers that are no times, or that no request can hold: refused by every method, with the field's name."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

import tallystick
from tallystick import AsyncClient, CallOptions, CheckBack, Client, Message, errors, outgoing
from tallystick.core.ops import PartRef

URL = "http://127.0.0.1:9/"
NONE = float("nan")
HUGE = 10**30

MEMORY = sqlite3.connect(":memory:")
HALF = [outgoing("t", 1)]
LENT = Message("t", 0, 0, b"", None, None, None, "g", 0, 0, 0, "s", "http://127.0.0.1:9", "g", "receipt")

Work = Callable[[Any], Any]

# The method, the field that the error names, and what is wrong with it.
ASKED: list[tuple[str, str, Work]] = [
    *[
        (f"send {field}={value}", field, lambda ts, given={field: value}: ts.send("t", "x", **given))
        for field in ("delay", "deliver_at")
        for value in (1e300, -1e300, float("inf"), NONE, -1, 1e15, "soon")
    ],
    ("send at level 0", "deliver_at", lambda ts: ts.send("t", "x", deliver_at=1e300, level=0)),
    ("call timeout", "timeout", lambda ts: ts.call(URL, "x", timeout=1e300)),
    ("call delay", "delay", lambda ts: ts.call(URL, "x", delay=float("inf"))),
    ("call retry", "retry", lambda ts: ts.call(URL, "x", call_options=CallOptions(retry=1e300))),
    ("call retry that is none", "retry", lambda ts: ts.call(URL, "x", call_options=CallOptions(retry=NONE))),
    ("call attempts", "max_attempts", lambda ts: ts.call(URL, "x", call_options=CallOptions(max_attempts=HUGE))),
    ("receive wait", "wait", lambda ts: ts.receive("t", "g", wait=1e300)),
    ("receive invisible", "invisible", lambda ts: ts.receive("t", "g", invisible=NONE)),
    ("receive max", "max", lambda ts: ts.receive("t", "g", max=HUGE)),
    ("nack", "delay", lambda ts: ts.nack("g", LENT, delay=1e300)),
    ("renew", "invisible", lambda ts: ts.renew("g", LENT, invisible=1e300)),
    ("fetch wait", "wait", lambda ts: ts.fetch("t", 0, 0, wait=NONE)),
    ("commit_offsets", "offsets[0]", lambda ts: ts.commit_offsets("g", "t", {0: HUGE})),
    ("commit_offsets of a queue", "offsets", lambda ts: ts.commit_offsets("g", "t", {HUGE: 0})),
    ("reset_group at", "at", lambda ts: ts.reset_group("g", "t", at=1e300)),
    ("reset_group offsets", "offsets[0]", lambda ts: ts.reset_group("g", "t", offsets={0: HUGE})),
    ("create_topic queues", "queues", lambda ts: ts.create_topic("t", queues=HUGE)),
    ("create_topic retention", "retention", lambda ts: ts.create_topic("t", retention=NONE)),
    ("prepare", "check_after", lambda ts: ts.prepare("g", HALF, check_after=1e300)),
    (
        "check timeout",
        "timeout",
        lambda ts: ts.prepare("g", HALF, check=CheckBack(url=URL, timeout=NONE)),
    ),
    ("check max", "check.max_checks", lambda ts: ts.prepare("g", HALF, check=CheckBack(max_checks=HUGE))),
    ("prepare_part ttl", "ttl", lambda ts: ts.prepare_part("p", HALF, gid="g", ttl=1e300)),
    ("prepare_part index", "index", lambda ts: ts.prepare_part("p", HALF, gid="g", index=HUGE)),
    ("commit parts", "parts[0].count", lambda ts: ts.commit("g", [PartRef("p", HUGE)])),
    ("commit wait", "wait", lambda ts: ts.commit("g", wait=NONE)),
    ("poll_checks wait", "wait", lambda ts: ts.poll_checks("g", wait=1e300)),
    ("clean", "older_than", lambda ts: ts.clean(MEMORY, older_than=NONE)),
    ("redrive", "every", lambda ts: ts.redrive(lambda: None, every=NONE)),
    ("poll_checks max", "max", lambda ts: ts.poll_checks("g", max=HUGE)),
]
CASES = [pytest.param(field, work, id=name) for name, field, work in ASKED]


@pytest.fixture(scope="module")
def nobody() -> Any:
    """Nobody is asked: it is refused before anything is sent."""
    with Client("http://127.0.0.1:9", group="g", timeout=60) as ts:
        yield ts


@pytest.mark.parametrize(("field", "work"), CASES)
def test_no_number_is_too_large_or_too_odd_for_an_error_that_names_its_field(
    nobody: tallystick.Client, field: str, work: Work
) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        work(nobody)
    assert refused.value.field == field
    assert field in str(refused.value)


@pytest.mark.parametrize(("field", "work"), CASES)
async def test_nor_for_the_asynchronous_client(field: str, work: Work) -> None:
    async with AsyncClient("http://127.0.0.1:9", group="g", timeout=60) as ts:
        with pytest.raises(errors.InvalidRequest) as refused:
            await work(ts)
    assert refused.value.field == field


def test_what_has_seconds_in_it_is_refused_with_advice() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"delay: 0:00:05 is .*give its total_seconds\(\)"):
        outgoing("t", 1, delay=timedelta(seconds=5))  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequest, match=r"deliver_at: .*give its timestamp\(\)"):
        outgoing("t", 1, deliver_at=datetime.now())  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequest, match="milliseconds"):
        outgoing("t", 1, deliver_at=1e13)
    with pytest.raises(errors.InvalidRequest, match=r"delay: '5m' is not a time in seconds; .* year 9999$"):
        outgoing("t", 1, delay="5m")  # type: ignore[arg-type]


def test_half_a_character_is_no_value() -> None:
    with pytest.raises(errors.InvalidRequest, match="value: "):
        outgoing("t", "\ud800")


@pytest.mark.parametrize("field", ["timeout", "commit_wait"])
@pytest.mark.parametrize("seconds", [0, -1, NONE, float("inf")])
def test_a_client_is_not_made_with_times_that_are_none(field: str, seconds: float) -> None:
    with pytest.raises(errors.InvalidRequest, match=field):
        Client("http://127.0.0.1:9", **{field: seconds})  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0.5, 13 * 3600, 1e300, NONE])
def test_a_lease_of_a_subscription_lasts_from_a_second_to_12_hours(nobody: tallystick.Client, seconds: float) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        nobody.subscribe("t", invisible=seconds)(lambda message: None)
    assert refused.value.field == "invisible"

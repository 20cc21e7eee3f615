"""A running broker: does it answer, does it take work, and is anything stuck in it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from tallystick.cli.doctor.finding import Finding
from tallystick.cli.output import span
from tallystick.core.errors import BrokerUnavailable, NotFound, TallystickError
from tallystick.link import Link

ANSWER_SECONDS = 5.0
CLOCK_SECONDS = 1.0
CLOCK_BROKEN_SECONDS = 30.0
LISTED = 1_000


def look_at_broker(url: str, expected: bool, max_lag: int, max_pending: int) -> Iterator[Finding]:
    with Link(url, ANSWER_SECONDS) as broker:
        asked = time.time()
        try:
            info = broker.get("info")
        except BrokerUnavailable as error:
            yield _unreachable(url, expected, error)
            return
        answered = time.time()
        yield Finding("broker", "ok", f"answers at {url} in {(answered - asked) * 1000:.0f} ms, store {info['store']}")
        yield _version(info["version"])
        yield _clock(info["now_ms"] / 1000, asked, answered)
        yield _pending(info, max_pending)
        yield from _durability(info)
        yield from _cluster(broker)
        yield from _grpc(url, info.get("grpc_port", 0))
        try:
            yield from (_ready(broker), _parked(broker), _parked_calls(info), _circuits(broker), _lag(broker, max_lag))
        except TallystickError as error:
            yield Finding("broker", "problem", f"stopped answering: {error.detail}", "see the broker's log")


def _unreachable(url: str, expected: bool, error: BrokerUnavailable) -> Finding:
    parts = urlsplit(url)
    if expected or _somebody_listens(parts.hostname, parts.port or 80):
        return Finding("broker", "problem", error.detail, "see the broker's log; is it started, is the address right?")
    return Finding("broker", "note", f"none runs at {url}, and the port is free", "start one with `tallystick serve`")


def _somebody_listens(host: str | None, port: int) -> bool:
    try:
        with socket.create_connection((host or "", port), ANSWER_SECONDS):
            return True
    except OSError:
        return False


def _grpc(url: str, port: int) -> Iterator[Finding]:
    """The broker does not run without its gRPC port, so what may be wrong is the way there."""
    if not port:
        return
    if _somebody_listens(urlsplit(url).hostname, port):
        yield Finding("gRPC", "ok", f"takes connections on port {port}")
        return
    advice = "does a firewall keep it, or does the broker listen on another address? --no-grpc switches it off"
    yield Finding("gRPC", "problem", f"port {port} takes no connections from here", advice)


def _durability(info: dict[str, Any]) -> Iterator[Finding]:
    for weakness in info.get("weaknesses", ()):
        yield Finding("durability", "problem", f"acknowledged messages can be lost: {weakness}", "mend the database")


def _cluster(broker: Link) -> Iterator[Finding]:
    try:
        view = broker.get("cluster")
    except NotFound:  # it is older than clusters are
        return
    if not view["brokers"]:
        return
    silent = [one["url"] for one in view["brokers"] if not one["alive"]]
    orphans = [one["id"] for one in view["stores"] if not one["url"]]
    if orphans:
        advice = "a takeover lasts seconds; if it does not end, see the brokers' logs"
        yield Finding("cluster", "problem", f"nobody owns {', '.join(orphans)}", advice)
    elif silent:
        yield Finding("cluster", "note", f"silent: {', '.join(silent)}", "start them again, or they are soon forgotten")
    else:
        yield Finding("cluster", "ok", f"{len(view['brokers'])} brokers, {len(view['stores'])} stores")


def _version(running: str) -> Finding:
    here = version("tallystick")
    if running == here:
        return Finding("version", "ok", running)
    return Finding("version", "note", f"the broker is {running}, this is {here}", "use the same version on both sides")


def _ready(broker: Link) -> Finding:
    reason = broker.ready()
    if not reason:
        return Finding("ready", "ok", "takes work")
    if reason == "draining":
        return Finding("ready", "problem", "the broker is on its way out", "wait for it to end, then start it again")
    return Finding(
        "ready", "problem", f"takes no work: {reason}", "mend the disk, then start the broker again; nothing was lost"
    )


def _clock(there: float, asked: float, answered: float) -> Finding:
    """The broker's clock was read between question and answer; what is outside of that is a difference."""
    behind, ahead = asked - there, there - answered
    off = max(behind, ahead, 0.0)
    text = f"differs by {off:.1f} s" if off else "agrees with this machine's"
    if off >= CLOCK_SECONDS:
        bad = off >= CLOCK_BROKEN_SECONDS
        return Finding(
            "clock",
            "problem" if bad else "note",
            text,
            "set both by NTP: delays, retention and check times follow the broker's clock",
        )
    return Finding("clock", "ok", text)


def _pending(info: dict[str, Any], most_seconds: int) -> Finding:
    oldest = info["oldest_pending_at"]
    if oldest is None:
        return Finding("pending", "ok", "no transaction waits for its outcome")
    age = (info["now_ms"] - oldest) / 1000
    text = f"the oldest transaction without an outcome is {span(max(0.0, age))} old"
    if age <= most_seconds:
        return Finding("pending", "ok", text)
    return Finding(
        "pending",
        "problem",
        text,
        "`tallystick tx list --state prepared` shows why; does its producer group run, can it be reached?",
    )


def _parked(broker: Link) -> Finding:
    page = broker.get("transactions", state="parked", limit=LISTED)
    parked = len(page["transactions"])
    if not parked:
        return Finding("parked", "ok", "none")
    return Finding(
        "parked",
        "problem",
        f"{parked}{' or more' if page['next'] else ''} transactions whose outcome nobody could tell",
        "`tallystick tx list --state parked`, then `tallystick tx resume` once their producers answer again "
        "(or decide with commit / rollback)",
    )


def _parked_calls(info: dict[str, Any]) -> Finding:
    waiting, parked = info["calls_waiting"], info["calls_parked"]
    if not parked:
        return Finding("calls", "ok", f"{waiting:,} to be made, none parked")
    return Finding(
        "calls",
        "problem",
        f"{parked:,} calls that did not get through are parked",
        "`tallystick calls list --state parked` shows why; once that is mended, `tallystick calls resume --all-parked`",
    )


def _circuits(broker: Link) -> Finding:
    hosts = broker.get("call-hosts")["hosts"]
    down = [one["name"] for one in hosts if one["open"]]
    if not down:
        return Finding("called services", "ok", f"{len(hosts)} called, none taken for down")
    named = ", ".join(down[:5]) + (f" and {len(down) - 5} more" if len(down) > 5 else "")
    return Finding(
        "called services",
        "problem",
        f"cannot be reached: {named}",
        "start them again; their calls wait, and are made as soon as they answer",
    )


def _lag(broker: Link, most: int) -> Finding:
    views = broker.get("groups")["groups"]
    slow = sorted((one for one in views if one.get("lag", 0) > most), key=lambda one: -int(one["lag"]))
    if not slow:
        return Finding("consumers", "ok", f"{len(views)} groups, none more than {most:,} messages behind")
    worst = ", ".join(f"{one['group']} on {one['topic']} ({one['lag']:,})" for one in slow[:5])
    return Finding("consumers", "problem", f"far behind: {worst}", "start more consumers, or see why they fail")

"""A running broker: does it answer, does it take work, and is anything stuck in it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from tallystick.cli.credentials import given_credentials
from tallystick.cli.doctor.cluster import look_at_cluster
from tallystick.cli.doctor.finding import Finding
from tallystick.cli.doctor.identity import ADVICE, look_at_identity, look_at_tokens, turned_away
from tallystick.cli.doctor.tls import look_at_tls
from tallystick.cli.links import AnyLink
from tallystick.cli.output import number_of, span
from tallystick.core.errors import BrokerUnavailable, Forbidden, TallystickError, Unauthenticated
from tallystick.core.urls import DEFAULT_PORTS
from tallystick.link import Link, addresses_of, checked_address

ANSWER_SECONDS = 5.0
CONNECT_SECONDS = 2.0
CLOCK_SECONDS = 1.0
CLOCK_BROKEN_SECONDS = 30.0
LISTED = 1_000


def look_at_broker(url: str, expected: bool, max_lag: int, max_pending: int) -> Iterator[Finding]:
    encrypted = [found for one in addresses_of(url, "--url") for found in _tls(one)]
    yield from encrypted
    if any(one.status == "problem" for one in encrypted):
        return  # what else is wrong cannot be asked
    with AnyLink(url, ANSWER_SECONDS) as broker:
        try:
            yield _ready(broker)
        except BrokerUnavailable as error:
            yield from _unreachable(url, expected, error)
            return
        try:
            yield look_at_identity(broker)
        except Unauthenticated as error:
            yield turned_away(error)
            return
        except TallystickError as error:
            yield _cannot_be_told("identity", error)
        looks: dict[str, Callable[[], Iterable[Finding]]] = {
            "tokens": lambda: look_at_tokens(broker),
            "broker": lambda: _info(broker, max_pending),
            "cluster": lambda: look_at_cluster(broker),
            "parked": lambda: [_parked(broker)],
            "called services": lambda: [_circuits(broker)],
            "consumers": lambda: [_lag(broker, max_lag)],
        }
        for subject, look in looks.items():
            try:
                yield from look()
            except Forbidden as error:
                yield Finding(subject, "note", f"not looked at: {error.detail}", ADVICE[Forbidden])
            except TallystickError as error:  # what else is wrong is worth knowing, too
                yield _cannot_be_told(subject, error)


def _cannot_be_told(subject: str, error: TallystickError) -> Finding:
    return Finding(
        subject, "problem", f"cannot be told: {error.detail}", ADVICE.get(type(error), "see the broker's log")
    )


def _tls(url: str) -> Iterator[Finding]:
    return look_at_tls(checked_address(url, "--url"), given_credentials().tls())


def _info(broker: Link, max_pending: int) -> Iterator[Finding]:
    asked = time.time()
    info = broker.get("info")
    answered = time.time()
    took = f"{(answered - asked) * 1000:.0f} ms"
    yield Finding("broker", "ok", f"answers at {broker.url} in {took}, store {info['store']}")
    yield _version(info["version"])
    yield _clock(info["now_ms"] / 1000, asked, answered)
    yield _pending(info, max_pending)
    yield _parked_calls(info)
    yield from _durability(info)
    yield from _grpc(broker.url, info.get("grpc_port", 0))


def _unreachable(url: str, expected: bool, error: BrokerUnavailable) -> Iterator[Finding]:
    """What is wrong with each address: its name, its port, or the process behind it."""
    addresses = addresses_of(url, "--url")
    hangs = len(addresses) > 1 or isinstance(error.__cause__, TimeoutError)
    for address in addresses:
        parts = urlsplit(address)
        port = parts.port or DEFAULT_PORTS.get(parts.scheme, 80)
        if not expected and not _somebody_listens(parts.hostname, port):
            advice = "start one with `tallystick serve`"
            yield Finding("broker", "note", f"none runs at {address}, and the port is free", advice)
        else:
            yield _no_answer(address, parts.hostname or "", port, "" if hangs else error.detail)


def _no_answer(address: str, host: str, port: int, said: str) -> Finding:
    """`said`: what is wrong with the answer, if there was one."""
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS):
            pass
    except socket.gaierror as failure:
        text, advice = f"its name is not found ({failure.strerror})", "Check the address and the DNS of this machine."
    except ConnectionRefusedError:
        text, advice = "it refuses connections", "Start it with `tallystick serve`, or check the address and the port."
    except TimeoutError:
        text = f"no connection within {CONNECT_SECONDS:g} s"
        advice = "Check that the machine is up, and the firewalls between it and this one."
    except OSError as failure:
        text, advice = f"no connection ({failure.strerror or failure})", "Check the address and the network."
    else:
        if said:
            return Finding("broker", "problem", said, "See the broker's log, and check the address.")
        text = "it takes connections and does not answer (it hangs)"
        advice = (
            "See the broker's log. The process is stopped or overloaded, or its engine or disk hangs. Until it "
            "answers, operations of clients fail at once with BrokerUnavailable."
        )
    return Finding("broker", "problem", f"{address} does not answer: {text}", advice)


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
    advice = "mend the disk, or the database; start the broker again if work does not go on by itself; nothing was lost"
    return Finding("ready", "problem", f"takes no work: {reason}", advice)


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
        return Finding("consumers", "ok", f"{number_of(len(views), 'group')}, none more than {most:,} messages behind")
    worst = ", ".join(f"{one['group']} on {one['topic']} ({one['lag']:,})" for one in slow[:5])
    return Finding("consumers", "problem", f"far behind: {worst}", "start more consumers, or see why they fail")

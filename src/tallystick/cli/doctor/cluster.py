"""A cluster: does everybody have what it needs, and is each broker to be found where it says that it is."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tallystick.cli.credentials import given_credentials
from tallystick.cli.doctor.finding import Finding
from tallystick.cli.output import number_of, span
from tallystick.cli.store_troubles import StoreTroubles, store_troubles
from tallystick.core.addresses import broker_address
from tallystick.core.errors import NotFound, TallystickError
from tallystick.link import Link

ANSWER_SECONDS = 3.0
SETTLE_SECONDS = 4.0  # a little more than a lease
LOOK_SECONDS = 0.2
LISTED_TOPICS = 5
_ADVISE = "give it an address of its own that all brokers and clients reach: --advertise http://HOST:PORT"

Broker = dict[str, Any]


def look_at_cluster(broker: Link) -> Iterator[Finding]:
    try:
        view = broker.get("cluster")
    except NotFound:  # it is older than clusters are
        return
    if not view["brokers"]:
        return
    yield _state(view)
    troubles = None if view.get("engine_away") else store_troubles(broker, view)
    if troubles is not None:
        yield from _stores(troubles, view)
    yield from _addresses(_settled(broker, view))
    if troubles is not None and not troubles.owners:  # a list of topics needs every store
        yield from _topics(broker)


def _topics(broker: Link) -> Iterator[Finding]:
    """A topic comes to a store with the first message there, or when it is created; a copied store brings its own."""
    missing = [one for one in broker.get("topics")["topics"] if one.get("missing_on")]
    if missing:
        named = ", ".join(f"{one['name']} (not on {', '.join(one['missing_on'])})" for one in missing[:LISTED_TOPICS])
        more = f", and {len(missing) - LISTED_TOPICS:,} more" if len(missing) > LISTED_TOPICS else ""
        advice = "it comes there with the first message; `tallystick topics create NAME` makes it there now"
        yield Finding("topics", "note", f"on some stores only: {named}{more}", advice)


def _stores(troubles: StoreTroubles, view: dict[str, Any]) -> Iterator[Finding]:
    advice = "give the database room, or fix what the reason names; work then goes on by itself"
    for store, reason in troubles.stores.items():
        yield Finding("stores", "problem", f"store {store} takes no new messages: {reason}", advice)
    urls = {one["id"]: one["url"] for one in view["brokers"]}
    advice = "check the network between the two brokers, and the address that the silent one advertises"
    for owner, reason in troubles.owners.items():
        text = f"broker {owner} at {urls.get(owner, '')} does not answer broker {view['broker']}: {reason}"
        yield Finding("brokers", "problem", text, advice)


def _state(view: dict[str, Any]) -> Finding:
    silent = [one["url"] for one in view["brokers"] if not one["alive"]]
    orphans = [one["id"] for one in view["stores"] if not one["url"]]
    if view.get("engine_away"):
        text = (
            f"the shared engine does not answer this broker; who owns what was seen {span(view['age_ms'] / 1000)} ago"
        )
        return Finding("cluster", "problem", text, "mend the database, or the way to it; work then goes on by itself")
    if orphans:
        advice = "a takeover lasts seconds; if it does not end, see the brokers' logs"
        return Finding("cluster", "problem", f"nobody owns {', '.join(orphans)}", advice)
    if silent:
        return Finding(
            "cluster", "note", f"silent: {', '.join(silent)}", "start them again, or they are soon forgotten"
        )
    return Finding(
        "cluster", "ok", f"{number_of(len(view['brokers']), 'broker')}, {number_of(len(view['stores']), 'store')}"
    )


def _settled(broker: Link, view: dict[str, Any]) -> dict[str, Any]:
    """A broker that was started again is there twice, until its former life is taken for dead."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while any(len(them) > 1 for them in _by_address(view).values()) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        view = broker.get("cluster")
    return view


def _by_address(view: dict[str, Any]) -> dict[str, list[Broker]]:
    """Those that live."""
    found: dict[str, list[Broker]] = defaultdict(list)
    for one in view["brokers"]:
        if one["alive"]:
            found[one["url"]].append(one)
    return found


def _addresses(view: dict[str, Any]) -> Iterator[Finding]:
    places = _by_address(view)
    machines = sorted({one["name"] for them in places.values() for one in them})
    wrong = []
    for url, them in places.items():
        if len(machines) > 1 and broker_address(url).loopback:
            wrong += [_unreachable_from_others(one, machines) for one in them]
        else:
            wrong += _found_at(url, them)
    if wrong:
        yield from wrong
    else:
        yield Finding("addresses", "ok", "every broker answers at its own")


def _found_at(url: str, them: list[Broker]) -> list[Finding]:
    """What is wrong with an address, under which there should be one broker, and that one."""
    try:
        with Link(url, ANSWER_SECONDS, credentials=given_credentials()) as asked:
            answered = asked.get("cluster").get("broker", "")
    except TallystickError as error:
        return [_silent(one, error.detail) for one in them]
    told = f"broker {answered}" if answered else "a broker that is not of this cluster"
    return [
        Finding("addresses", "problem", f"broker {_named(one)} says that it is reached at {url}: {told} is", _ADVISE)
        for one in them
        if one["id"] != answered
    ]


def _silent(one: Broker, reason: str) -> Finding:
    text = f"broker {_named(one)} lives, and cannot be reached from here at {one['url']}: {reason.partition(';')[0]}"
    return Finding("addresses", "problem", text, f"if the other brokers do not reach it either, {_ADVISE}")


def _unreachable_from_others(one: Broker, machines: list[str]) -> Finding:
    text = (
        f"broker {_named(one)} says that it is reached at {one['url']}, where no other machine of the cluster finds it"
    )
    return Finding(
        "addresses",
        "problem",
        f"{text} ({', '.join(machines)})",
        "start it with --host and the machine's address (or 0.0.0.0), or with --advertise http://HOST:PORT",
    )


def _named(one: Broker) -> str:
    return f"{one['id']} on {one['name']}"

"""What was answered, what a shop's database holds and what can be read of its topic: the same orders, each once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Set

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from benchmarks.web.shop import Order
from tallystick import Client

Orders = Mapping[str, Set[str]]
"""Their ids, by the way that they were made: `with` messages, `without` them."""

SHOWN = 3  # of what is wrong, how much is named


def prove(answered: Orders, stored: Orders, messages: Iterable[str]) -> None:
    """An error that names what differs. `messages` are the ids in all of them, twice if there are two."""
    for way in ("with", "without"):
        _nothing_in("orders that were answered, but are not in the database", answered[way] - stored[way])
        _nothing_in("orders in the database that nobody was told of", stored[way] - answered[way])
    seen = Counter(messages)
    _nothing_in("orders without their message", stored["with"] - seen.keys())
    _nothing_in("messages without their order", seen.keys() - stored["with"])
    _nothing_in("messages that are there more than once", {order for order, times in seen.items() if times > 1})


def _nothing_in(what: str, wrong: Set[str]) -> None:
    if wrong:
        raise RuntimeError(f"{len(wrong):,} {what}: {', '.join(sorted(wrong)[:SHOWN])}")


def orders_in_database(engine: Engine) -> dict[str, set[str]]:
    with Session(engine) as session:
        return {
            way: set(session.scalars(select(Order.id).where(Order.told == told)))
            for way, told in (("with", True), ("without", False))
        }


def orders_in_topic(broker: str, topic: str) -> list[str]:
    """The ids in all messages."""
    found: list[str] = []
    with Client(broker) as client:
        for queue, end in enumerate(client.topic(topic).ends):
            offset = 0
            while offset < end:
                fetched = client.fetch(topic, queue, offset, max=5_000)
                found += (json.loads(message.value)["id"] for message in fetched.messages)
                offset = fetched.next
    return found

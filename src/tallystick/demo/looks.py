"""What a broker shows of its transactions, topics and groups, over its public API, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tallystick.core.errors import NotFound
from tallystick.link import Link

PAGE = 1_000


def transactions(broker: Link, **wanted: str) -> Iterator[dict[str, Any]]:
    """Those of a `group` or a `state`, or all."""
    after = None
    while True:
        page = broker.get("transactions", limit=PAGE, after=after, **wanted)
        yield from page["transactions"]
        after = page["next"]
        if after is None:
            return


def pending(broker: Link) -> int:
    """Transactions without an outcome (no more than a page of them are counted)."""
    return len(broker.get("transactions", state="prepared", limit=PAGE)["transactions"])


def log_values(broker: Link, topic: str) -> Iterator[Any]:
    """The value of every message in every queue of a topic, as JSON shows it."""
    return (message["value"] for message in log_messages(broker, topic))


def log_messages(broker: Link, topic: str) -> Iterator[dict[str, Any]]:
    for queue, end in enumerate(_ends(broker, topic)):
        offset = 0
        while offset < end:
            page = broker.get("topics", topic, "queues", str(queue), "messages", offset=offset, max=PAGE)
            yield from page["messages"]
            offset = page["next"]


def unsettled_messages(broker: Link, group: str, topic: str) -> int:
    """Messages of a topic that a group has not settled yet."""
    try:
        views = broker.get("groups", group)["groups"]
    except NotFound:  # no consumer came as far as its first request
        return sum(_ends(broker, topic))
    return sum(int(view.get("lag", 0)) for view in views)


def _ends(broker: Link, topic: str) -> list[int]:
    try:
        return list(broker.get("topics", topic)["ends"])
    except NotFound:
        return []

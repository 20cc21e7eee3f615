"""The proof: what is in the shop's database, in the broker's two topics and in the books, compared as sets.

`gather` reads it, `judge` compares it and touches nothing, so that it can be shown wrong evidence.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import tallystick

SHOWN = 2  # of what is wrong, how much a line names


class Order(NamedTuple):
    number: int
    product: str
    cents: int


class Result(NamedTuple):
    """Revenue of one product in one window, as Spark sent it and as the books have it."""

    message_id: str
    product: str
    begin: int
    orders: int
    cents: int


class Evidence(NamedTuple):
    sold: list[Order]  # rows that the shop committed
    logged: list[tuple[Order, int]]  # messages of topic `orders`, with the time at which they were stored
    results: list[Result]  # messages of topic `revenue`
    booked: list[Result]  # rows of the books
    totals: dict[str, tuple[int, int]]  # the books' own sums: product -> orders, cents
    window_ms: int
    pending: int = 0  # transactions without an outcome
    ended: int = 0  # processes that ended without being killed


class Line(NamedTuple):
    """One thing that must hold, and whether it does."""

    claim: str
    holds: bool
    detail: str = ""


def gather(ts: tallystick.Client, shop: Path, books: Path, window_ms: int) -> Evidence:
    orders = [message for message in messages(ts, "orders") if "tick" not in message.json()]
    return Evidence(
        sold=[Order(*row) for row in rows(shop, "select number, product, cents from orders")],
        logged=[(Order(**message.json()), message.stored_at) for message in orders],
        results=[Result(message.id, *_content(message.json())) for message in messages(ts, "revenue")],
        booked=[Result(*row) for row in rows(books, "select * from booking")],
        totals={product: (count, cents) for product, count, cents in rows(books, "select * from total")},
        window_ms=window_ms,
    )


def _content(result: dict[str, Any]) -> list[Any]:
    return [result[name] for name in ("product", "begin", "orders", "cents")]


def messages(ts: tallystick.Client, topic: str) -> Iterator[tallystick.Message]:
    """Everything in a topic."""
    for queue, end in enumerate(ts.topic(topic).ends):
        offset = 0
        while offset < end:
            page = ts.fetch(topic, queue, offset)
            yield from page.messages
            offset = page.next


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=20)) as conn:
        return conn.execute(query).fetchall()


def judge(found: Evidence) -> list[Line]:
    """Everything that must hold after the run, from the shop to the books."""
    logged = [order for order, _ in found.logged]
    sent = [result[1:] for result in found.results]
    return [
        _same("every order of the shop is in topic orders once, and no other", found.sold, logged),
        _same("topic revenue is those orders added up, each window once", _added_up(found), sent),
        _same("every message of topic revenue is booked once, and no other", found.results, found.booked),
        _same("the books' totals are the shop's", _totals(found.sold).items(), found.totals.items()),
        Line("no transaction is left without an outcome", not found.pending, _number(found.pending, "left")),
        Line("no process ended by itself", not found.ended, _number(found.ended, "did; see its log")),
        Line("there was something to show", bool(found.sold and found.booked), _volume(found)),
    ]


def _added_up(found: Evidence) -> list[tuple[Any, ...]]:
    """What Spark should have come to, by plain Python: (product, begin, orders, cents)."""
    count, cents = Counter[Any](), Counter[Any]()
    for order, at in found.logged:
        window = order.product, at - at % found.window_ms
        count[window] += 1
        cents[window] += order.cents
    return [(product, begin, count[product, begin], cents[product, begin]) for product, begin in count]


def _totals(sold: list[Order]) -> dict[str, tuple[int, int]]:
    return {
        product: (
            sum(order.product == product for order in sold),
            sum(order.cents for order in sold if order.product == product),
        )
        for product in {order.product for order in sold}
    }


def _same(claim: str, wanted: Any, got: Any) -> Line:
    """Equal as sets, and each as often."""
    wanted, got = Counter(map(tuple, wanted)), Counter(map(tuple, got))
    missing, surplus = wanted - got, got - wanted
    parts = (missing, "missing"), (surplus, "too many")
    wrong = [f"{_number(many.total(), word)}: {_some(many)}" for many, word in parts if many]
    return Line(claim, not wrong, "; ".join(wrong) or f"{wanted.total():,}")


def _some(many: Counter[Any]) -> str:
    named = ", ".join(" ".join(map(str, one)) for one in sorted(many)[:SHOWN])
    return named + (", ..." if len(many) > SHOWN else "")


def _number(number: int, word: str) -> str:
    return f"{number:,} {word}" if number else ""


def _volume(found: Evidence) -> str:
    return f"{len(found.sold):,} orders, {len(found.results):,} results"


def by_product(found: Evidence) -> list[tuple[str, int, int, int, int]]:
    """product, orders and cents of the shop, orders and cents of the books."""
    sold = _totals(found.sold)
    nothing = (0, 0)
    return [
        (product, *sold.get(product, nothing), *found.totals.get(product, nothing))
        for product in sorted({*sold, *found.totals})
    ]

"""The proof: who took a unit in Redis, who has an order in the database and what users were told, compared as sets.

`judge` touches nothing, so that it can be shown wrong evidence.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from stage import OpenWork, nothing_wrong
from stock import user_of

from tallystick.demo.verdict import Line


class Sale(NamedTuple):
    """One activity, when all is over."""

    activity: str
    stock: int  # units at the beginning
    left: int
    deductions: set[str]  # gids with their mark in Redis
    orders: list[str]  # gids of the order service's rows, doubles included
    accepted: set[str]  # users, as they were told
    sold_out: set[str]


class Evidence(NamedTuple):
    sales: list[Sale]
    left: OpenWork = OpenWork(0, 0)


def judge(found: Evidence) -> list[Line]:
    """Everything that must hold when the sale is over."""
    return [
        _each(found, "every unit that was deducted has an order", lambda sale: sale.deductions - set(sale.orders)),
        _each(found, "every order has its deduction", lambda sale: set(sale.orders) - sale.deductions),
        _each(found, "no order was made twice", lambda sale: _doubled(sale.orders)),
        _each(found, "no user has two orders", lambda sale: _doubled(_users(sale, sale.orders))),
        _each(found, "the stock went down by the deductions", _wrong_stock),
        _each(found, "users with an order were told so, and no other", lambda sale: _buyers(sale) ^ sale.accepted),
        _each(found, "users who were told 'sold out' have none", lambda sale: _buyers(sale) & sale.sold_out),
        _each(found, "nobody was sent away while there was stock", _sent_away),
        *found.left.lines(),
        Line("there was something to show", any(sale.orders and sale.sold_out for sale in found.sales), ""),
    ]


def _each(found: Evidence, claim: str, wrong_in: Callable[[Sale], Iterable[str]]) -> Line:
    return nothing_wrong(claim, [one for sale in found.sales for one in wrong_in(sale)])


def _wrong_stock(sale: Sale) -> list[str]:
    gone = sale.stock - sale.left
    right = gone == len(sale.deductions)
    return [] if right else [f"{gone:,} gone, {len(sale.deductions):,} deductions in {sale.activity}"]


def _sent_away(sale: Sale) -> list[str]:
    return [f"{sale.left:,} left of {sale.activity}"] if sale.sold_out and sale.left else []


def _users(sale: Sale, gids: Iterable[str]) -> list[str]:
    return [user_of(gid, sale.activity) for gid in gids]


def _buyers(sale: Sale) -> set[str]:
    return set(_users(sale, sale.orders))


def _doubled(all_of_them: Iterable[str]) -> set[str]:
    return {one for one, times in Counter(all_of_them).items() if times > 1}

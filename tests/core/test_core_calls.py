"""The names of calls within their transaction."""

from __future__ import annotations

import pytest

from tallystick.core.calls import OutgoingCall, check_branches
from tallystick.core.errors import InvalidRequest

URL = "http://shop/"


def named(*calls: tuple[str, str]) -> list[OutgoingCall]:
    return [OutgoingCall(url, branch=branch) for url, branch in calls]


@pytest.mark.parametrize(
    "calls",
    [
        named((URL, ""), (URL, "")),
        named((URL, "b"), (URL, "")),
        named((URL, "01"), (URL, "")),
        named(("topic://one", "b"), ("topic://two", "b")),  # theirs are known with their subscribers
        named(("topic://one", "b"), (URL, "b")),
    ],
)
def test_branches_that_differ_or_may_differ_pass(calls: list[OutgoingCall]) -> None:
    check_branches(calls)


@pytest.mark.parametrize(
    "calls",
    [
        named((URL, "b"), ("http://bank/", "b")),
        named((URL, "02"), (URL, "")),
        named(("topic://one", "b"), ("topic://one", "b")),
    ],
)
def test_branches_that_surely_collide_are_refused(calls: list[OutgoingCall]) -> None:
    with pytest.raises(InvalidRequest, match="same branch"):
        check_branches(calls)

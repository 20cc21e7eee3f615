"""Grants: which permissions, on which names. A pattern means what it says, and nothing else."""

from __future__ import annotations

import fnmatch
import time
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.access import PERMISSIONS, ROLES, Grant, Identity, Role, covers, covers_host, permissions_of

NAMES = st.text("ab.*-_1", min_size=1, max_size=8)


def identity(*grants: Grant) -> Identity:
    return Identity("shop", "token", grants)


def test_an_admin_may_everything_and_no_other_role_may_administer() -> None:
    assert permissions_of("admin") == set(PERMISSIONS)
    assert [role for role in get_args(Role) if "admin" in permissions_of(role)] == ["admin"]


def test_every_role_has_permissions_that_exist() -> None:
    assert set(ROLES) <= set(get_args(Role))
    assert all(permissions_of(role) <= set(PERMISSIONS) for role in get_args(Role))


@given(NAMES.filter(lambda pattern: "**" not in pattern), st.text("ab.-_1", min_size=1, max_size=8))
def test_a_star_stands_for_any_characters_and_nothing_else_has_a_meaning(pattern: str, name: str) -> None:
    assert covers((pattern,), name) == fnmatch.fnmatchcase(name, pattern)


PATTERNS = st.lists(st.text("ab*", min_size=1, max_size=9), min_size=1, max_size=4).map(tuple)


@given(PATTERNS, st.text("ab", min_size=1, max_size=12))
def test_of_several_patterns_one_is_enough(patterns: tuple[str, ...], name: str) -> None:
    assert covers(patterns, name) == any(fits(pattern, name) for pattern in patterns)


def fits(pattern: str, name: str) -> bool:
    """Slow and plain."""
    if not pattern or not name:
        return set(pattern) <= {"*"} and not name
    if pattern[0] == "*":
        return fits(pattern[1:], name) or fits(pattern, name[1:])
    return pattern[0] == name[0] and fits(pattern[1:], name[1:])


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("*a*a*a*a*a*a*b", "a" * 127), ("*-*-orders", "-" * 60_000), ("*-*-*-*-*-x*", "-" * 60_000)],
)
def test_no_name_takes_long_whatever_the_pattern(pattern: str, name: str) -> None:
    """Names come from those who are to be refused."""
    began = time.process_time()
    for _ in range(20):
        assert not covers((pattern,), name)
        assert not covers_host((pattern,), name, 80)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("name", ["orders\n", "xorders", "ordersx", "Orders", "", "orders.eu\nx"])
def test_a_pattern_covers_the_whole_name(name: str) -> None:
    assert not covers(("orders",), name)


@pytest.mark.parametrize(
    ("pattern", "host", "port", "covered"),
    [
        ("billing.internal", "billing.internal", 80, True),
        ("billing.internal", "billing.internal", 8080, True),
        ("billing.internal:8080", "billing.internal", 8080, True),
        ("billing.internal:8080", "billing.internal", 80, False),
        ("*.internal", "billing.internal", 80, True),
        ("*.internal", "billing.internal.evil.example", 80, False),
        ("*.internal", "internal", 80, False),
        ("Billing.Internal", "billing.internal", 80, True),
        ("127.0.0.1:*", "127.0.0.1", 9, True),
        ("[::1]:80", "::1", 80, True),
        ("[::1]:80", "::1", 81, False),
    ],
)
def test_hosts_are_covered_with_their_port_or_with_every_port(
    pattern: str, host: str, port: int, covered: bool
) -> None:
    assert covers_host((pattern,), host, port) is covered


def test_all_that_is_named_must_be_covered_by_one_grant() -> None:
    shop = identity(
        Grant(("producer",), topics=("orders.*",), groups=("shop",)), Grant(("producer",), topics=("bills",))
    )
    assert shop.allows("produce", topic="orders.eu", group="shop")
    assert shop.allows("produce", topic="bills", group="anything")
    assert not shop.allows("produce", topic="orders.eu", group="depot")
    assert not shop.allows("consume", topic="orders.eu")
    assert not shop.allows("admin")


def test_nobody_may_anything_without_a_grant() -> None:
    assert not any(identity().allows(permission) for permission in PERMISSIONS)


def test_groups_of_several_grants_come_together_and_a_star_takes_them_all() -> None:
    some = identity(Grant(("producer",), groups=("a", "b")), Grant(("operator",), groups=("c",)))
    assert some.groups_for("produce") == ("a", "b")
    assert some.groups_for("produce", "operate") == ("a", "b", "c")
    assert some.groups_for("consume") == ()
    assert identity(Grant(("producer",), groups=("a",)), Grant(("admin",))).groups_for("produce") == ("*",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"roles": []},
        {"roles": ["root"]},
        {"roles": ["reader"], "topics": []},
        {"roles": ["reader"], "topics": ["a b"]},
        {"roles": ["reader"], "topics": ["../x"]},
        {"roles": ["reader"], "topics": ["a\n"]},
        {"roles": ["reader"], "hosts": ["http://x"]},
        {"roles": ["reader"], "hosts": ["x:99999999"]},
        {"roles": ["reader"], "queues": ["x"]},
        {"roles": ["reader"], "groups": ["x" * 200]},
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Grant)

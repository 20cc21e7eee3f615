"""An operator's hand on transactions, through the HTTP API of a real broker process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import AnswerChecks, Check, Prepare


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_interval="100ms", check_interval_cap="100ms", check_timeout="2s") as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as made:
        yield made


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


def parked(client: RawClient, group: str, count: int = 1, max_checks: int = 1) -> list[str]:
    """Transactions whose only member could not tell."""
    gids = [f"{group}-{number}" for number in range(count)]
    check = Check(after_ms=0, max_checks=max_checks)
    client.batch(*(Prepare(gid, group, [OutgoingMessage(group, gid.encode())], check) for gid in gids))
    for _ in range(max_checks):
        left = set(gids)
        while left:
            asked = {one.gid for one in client.poll_checks(group)}
            client.do(AnswerChecks(dict.fromkeys(asked, "unknown"), dict.fromkeys(asked, "no such table")))
            left -= asked
    assert {client.transaction(gid).state for gid in gids} == {"parked"}  # type: ignore[union-attr]
    return gids


def listed(client: RawClient, **query: Any) -> list[dict[str, Any]]:
    """Every page of a list."""
    found, after = [], None
    while True:
        wishes = {**query, **({"after": after} if after else {})}
        answer = client.json("GET", "/v1/transactions?" + "&".join(f"{name}={value}" for name, value in wishes.items()))
        assert answer.status == 200
        page = answer.json()
        found += page["transactions"]
        after = page["next"]
        if after is None:
            return found


def operate(client: RawClient, gid: str, word: str) -> Any:
    content = None if word == "resume" else {"by": "operator"}
    return client.json("POST", f"/v1/transactions/{gid}/{word}", content)


def test_parked_ones_are_listed_with_the_reason(client: RawClient, group: str) -> None:
    gids = parked(client, group, 5)
    found = listed(client, state="parked", group=group, limit=2)
    assert sorted(one["gid"] for one in found) == gids
    assert {(one["state"], one["group"], one["checks"], one["last_error"]) for one in found} == {
        ("parked", group, 1, "no such table")
    }
    assert listed(client, state="prepared", group=group) == []


@pytest.mark.parametrize(("word", "state"), [("commit", "committed"), ("rollback", "rolled_back")])
def test_an_operator_decides_a_parked_one(client: RawClient, group: str, word: str, state: str) -> None:
    (gid,) = parked(client, group)
    answer = operate(client, gid, word)
    assert (answer.status, answer.json()["state"], answer.json()["resolved_by"]) == (200, state, "operator")
    assert [one.value.decode() for one in client.messages(group)] == ([gid] if word == "commit" else [])
    assert operate(client, gid, word).status == 200
    other = operate(client, gid, "rollback" if word == "commit" else "commit")
    assert (other.status, other.problem().code) == (409, "outcome_conflict")
    assert client.transaction(gid).state == state  # type: ignore[union-attr]
    assert listed(client, state="parked", group=group) == []
    assert [one["gid"] for one in listed(client, state=state, group=group)] == [gid]


def test_a_resumed_one_is_asked_about_at_once_and_from_the_beginning(client: RawClient, group: str) -> None:
    (gid,) = parked(client, group, max_checks=2)
    answer = operate(client, gid, "resume")
    assert (answer.status, answer.json()["state"], answer.json().get("checks", 0)) == (200, "prepared", 0)
    began = time.monotonic()
    (asked,) = client.poll_checks(group)
    assert time.monotonic() - began < 8
    assert (asked.gid, asked.checks) == (gid, 0)
    client.do(AnswerChecks({gid: "committed"}))
    view = client.transaction(gid)
    assert view is not None
    assert (view.state, view.resolved_by) == ("committed", "check")


def test_resuming_what_is_not_parked_changes_nothing(client: RawClient, group: str) -> None:
    client.do(Prepare(group, group, [OutgoingMessage(group, b"v")], Check(after_ms=60_000)))
    before = client.transaction(group)
    assert operate(client, group, "resume").status == 200
    assert client.transaction(group) == before
    operate(client, group, "commit")
    again = operate(client, group, "resume")
    assert (again.status, again.problem().code) == (409, "conflict")


@pytest.mark.parametrize("word", ["commit", "rollback", "resume"])
def test_an_unknown_gid_is_not_found_and_leaves_nothing(client: RawClient, group: str, word: str) -> None:
    answer = operate(client, f"{group}-never-seen", word)
    assert (answer.status, answer.problem().code) == (404, "not_found")
    # Unlike a producer's rollback, an operator's leaves no tombstone: a typing error must not decide anything.
    assert client.transaction(f"{group}-never-seen") is None


def test_an_operator_may_decide_before_any_check(client: RawClient, group: str) -> None:
    client.do(Prepare(group, group, [OutgoingMessage(group, b"v")], Check(after_ms=60_000)))
    assert operate(client, group, "rollback").json()["state"] == "rolled_back"


def test_what_was_parked_and_decided_survives_a_kill(broker: BrokerProcess, group: str) -> None:
    with RawClient(broker.url) as client:
        stays, resumed, decided = parked(client, group, 3)
        operate(client, resumed, "resume")
        operate(client, decided, "commit")
    broker.kill()
    broker.start()
    with RawClient(broker.url) as client:
        assert [one["gid"] for one in listed(client, state="parked", group=group)] == [stays]
        assert client.transaction(decided).state == "committed"  # type: ignore[union-attr]
        assert [one.gid for one in client.poll_checks(group)] == [resumed]
        assert operate(client, stays, "resume").status == 200
        assert [one.gid for one in client.poll_checks(group)] == [stays]

"""What an operator does about transactions that nobody could decide: list, look, commit, roll back, resume."""

from __future__ import annotations

from typing import Any

import pytest

from brokers import BrokerProcess
from raw_client import RawClient
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import AnswerChecks, Check, Prepare


def park(client: RawClient, group: str, *gids: str) -> None:
    """Transactions whose only check brought nothing."""
    check = Check(after_ms=0, max_checks=1)
    for gid in gids:
        client.do(Prepare(gid, group, [OutgoingMessage("parked", gid.encode())], check))
    left = set(gids)
    while left:
        asked = [one.gid for one in client.poll_checks(group, wait_ms=5_000)]
        client.do(AnswerChecks(dict.fromkeys(asked, "unknown"), dict.fromkeys(asked, "no such database")))
        left -= set(asked)


def listed(client: RawClient, **query: Any) -> list[str]:
    """All pages, two a page."""
    found: list[str] = []
    text = "&".join(f"{name}={value}" for name, value in {"limit": 2, **query}.items())
    page = client.json("GET", f"/v1/transactions?{text}").json()
    found += [one["gid"] for one in page["transactions"]]
    while page["next"] is not None:
        page = client.json("GET", f"/v1/transactions?{text}&after={page['next']}").json()
        found += [one["gid"] for one in page["transactions"]]
    return found


def test_parked_transactions_are_listed_with_what_is_known_of_them(client: RawClient) -> None:
    park(client, "listed", *(f"list-{number}" for number in range(5)))
    assert sorted(listed(client, state="parked", group="listed")) == [f"list-{number}" for number in range(5)]
    assert listed(client, state="prepared", group="listed") == []
    shown = client.json("GET", "/v1/transactions/list-0").json()
    assert (shown["state"], shown["group"], shown["messages"], shown["checks"]) == ("parked", "listed", 1, 1)
    assert shown["last_error"] == "no such database"
    assert shown["created_at"] > 0


def test_an_operators_word_decides_a_parked_transaction(client: RawClient) -> None:
    park(client, "decided", "op-yes", "op-no")
    yes = client.json("POST", "/v1/transactions/op-yes/commit", {"by": "operator"}).json()
    no = client.json("POST", "/v1/transactions/op-no/rollback", {"by": "operator"}).json()
    assert (yes["state"], yes["resolved_by"]) == ("committed", "operator")
    assert (no["state"], no["resolved_by"]) == ("rolled_back", "operator")
    assert listed(client, state="parked", group="decided") == []
    visible = {one.gid for one in client.messages("parked")}
    assert "op-yes" in visible
    assert "op-no" not in visible
    contrary = client.json("POST", "/v1/transactions/op-yes/rollback", {"by": "operator"})
    assert (contrary.status, contrary.problem().code) == (409, "outcome_conflict")


@pytest.mark.parametrize("what", ["commit", "rollback"])
def test_an_operators_word_needs_a_transaction_that_exists(client: RawClient, what: str) -> None:
    """A producer's rollback of an unknown gid leaves a tombstone; a slip of an operator's fingers must not."""
    answer = client.json("POST", f"/v1/transactions/typo/{what}", {"by": "operator"})
    assert (answer.status, answer.problem().code) == (404, "not_found")
    assert client.transaction("typo") is None


def test_a_resumed_transaction_is_asked_about_again(client: RawClient) -> None:
    park(client, "resumed", "again")
    resumed = client.json("POST", "/v1/transactions/again/resume").json()
    assert (resumed["state"], resumed.get("checks", 0)) == ("prepared", 0)
    assert [one.gid for one in client.poll_checks("resumed", wait_ms=5_000)] == ["again"]
    client.do(AnswerChecks({"again": "committed"}))
    assert client.json("GET", "/v1/transactions/again").json()["state"] == "committed"
    too_late = client.json("POST", "/v1/transactions/again/resume")
    assert (too_late.status, too_late.problem().code) == (409, "conflict")
    assert client.json("POST", "/v1/transactions/nobody/resume").status == 404


def test_the_list_survives_a_restart(broker: BrokerProcess, client: RawClient) -> None:
    park(client, "kept", "kept-0", "kept-1")
    broker.kill()
    broker.start()
    client.close()
    assert sorted(listed(client, state="parked", group="kept")) == ["kept-0", "kept-1"]

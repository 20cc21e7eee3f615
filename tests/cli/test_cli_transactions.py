"""`tallystick tx`: an operator's view and an operator's word."""

from __future__ import annotations

import time

import pytest
from command_line import Post, one_line, tallystick


def prepare(post: Post, gid: str, group: str = "shop", **check: object) -> None:
    post("/v1/transactions", gid=gid, group=group, messages=[{"topic": "t", "value": gid}], check=check)


def park(post: Post, url: str, gid: str, group: str = "shop") -> None:
    """A transaction whose only check goes where nobody answers."""
    prepare(post, gid, group, via="url", target="http://127.0.0.1:9/check", after_ms=0, max_checks=1)
    deadline = time.monotonic() + 20
    while tallystick("tx", "show", gid, "--json", url=url).json()["state"] != "parked":
        assert time.monotonic() < deadline


def test_list_filters_by_state_and_group(url: str, post: Post) -> None:
    for number in range(3):
        prepare(post, f"list-{number}", "listed")
    prepare(post, "list-other", "other")
    post("/v1/transactions/list-0/commit")
    open_ones = tallystick("tx", "list", "--state", "prepared", "--group", "listed", "--json", url=url).json()
    assert {one["gid"] for one in open_ones["transactions"]} == {"list-1", "list-2"}
    every = tallystick("tx", "list", "--group", "listed", "--json", url=url).json()
    assert {one["gid"]: one["state"] for one in every["transactions"]} == {
        "list-0": "committed",
        "list-1": "prepared",
        "list-2": "prepared",
    }


def test_list_says_when_there_is_more(url: str, post: Post) -> None:
    for number in range(3):
        prepare(post, f"more-{number}", "more")
    cut = tallystick("tx", "list", "--group", "more", "--limit", "2", "--json", url=url).json()
    assert (len(cut["transactions"]), cut["more"]) == (2, True)
    whole = tallystick("tx", "list", "--group", "more", "--limit", "3", "--json", url=url).json()
    assert (len(whole["transactions"]), whole["more"]) == (3, False)
    assert "--limit" in tallystick("tx", "list", "--group", "more", "--limit", "2", url=url).err


@pytest.mark.parametrize(("word", "state"), [("commit", "committed"), ("rollback", "rolled_back")])
def test_an_operator_decides(url: str, post: Post, word: str, state: str) -> None:
    prepare(post, f"decide-{word}")
    done = tallystick("tx", word, f"decide-{word}", "--json", url=url)
    assert done.code == 0
    (view,) = done.json()["transactions"]
    assert (view["state"], view["resolved_by"]) == (state, "operator")


def test_a_contradiction_is_a_conflict_and_changes_nothing(url: str, post: Post) -> None:
    prepare(post, "settled")
    assert tallystick("tx", "commit", "settled", url=url).code == 0
    done = tallystick("tx", "rollback", "settled", url=url)
    assert (done.code, "committed" in one_line(done.err)) == (5, True)
    assert tallystick("tx", "show", "settled", "--json", url=url).json()["state"] == "committed"


def test_several_are_decided_even_if_one_fails(url: str, post: Post) -> None:
    prepare(post, "several-1")
    prepare(post, "several-2")
    done = tallystick("tx", "commit", "several-1", "unheard-of", "several-2", "--json", url=url)
    assert done.code == 3
    assert "unheard-of" in one_line(done.err)
    assert {one["gid"] for one in done.json()["transactions"]} == {"several-1", "several-2"}


def test_parked_ones_are_resumed_one_by_one_or_all(url: str, post: Post) -> None:
    for number in range(3):
        park(post, url, f"parked-{number}", "sleepers")
    one = tallystick("tx", "resume", "parked-0", "--json", url=url)
    assert (one.code, one.json()["transactions"][0]["gid"]) == (0, "parked-0")
    rest = tallystick("tx", "resume", "--all", "--group", "sleepers", "--json", url=url)
    resumed = {view["gid"] for view in rest.json()["transactions"]}
    assert rest.code == 0
    # The first may have run out of its one check again by now.
    assert {"parked-1", "parked-2"} <= resumed <= {"parked-0", "parked-1", "parked-2"}


def test_resume_wants_gids_or_all(url: str) -> None:
    assert tallystick("tx", "resume", url=url).code == 2
    assert tallystick("tx", "resume", "--all", "some", url=url).code == 2


def test_the_table_tells_why_one_is_parked(url: str, post: Post) -> None:
    park(post, url, "why")
    shown = tallystick("tx", "list", "--state", "parked", url=url).out
    (line,) = [line for line in shown.splitlines() if line.startswith("why ")]
    assert "parked" in line
    assert "127.0.0.1:9" in line or "refused" in line.lower()


def test_an_unknown_state_is_wrong_usage(url: str) -> None:
    assert tallystick("tx", "list", "--state", "lost", url=url).code == 2

"""`tallystick calls`: what could not be delivered yet, why, and an operator's word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from command_line import Post, one_line, tallystick

from brokers import running_broker
from busi import Reply, running_busi
from eventually import eventually, eventually_equal

DEAD = "http://127.0.0.1:9/nobody"


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """Answers with the status that its path names: /200/anything."""
    with running_busi() as busi:
        busi.default = lambda called: Reply(int(called.path.split("/")[1]), "")
        yield busi.url


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = {"call_retry_first": "1h", "call_retry_cap": "1h", "call_probe": "1h", "call_probe_cap": "1h"}
    with running_broker(store="memory", call_breaker_failures=3, **settings) as broker:
        yield broker.url


def send(post: Post, gid: str, *urls: str, **options: object) -> None:
    calls = [{"url": url, "body": {"gid": gid}} for url in urls]
    post("/v1/messages", gid=gid, messages=[], calls=calls, call_options=options)


def shown(url: str, gid: str) -> dict[str, Any]:
    return dict(tallystick("calls", "show", gid, "--json", url=url).json())


def first_call(url: str, gid: str) -> dict[str, Any]:
    return dict(shown(url, gid)["calls"][0])


def until(url: str, gid: str, **wanted: object) -> dict[str, Any]:
    """The first call of a transaction, once it is as wanted."""
    eventually_equal(lambda: {name: first_call(url, gid).get(name) for name in wanted}, wanted)
    return first_call(url, gid)


def park(post: Post, url: str, service: str, gid: str) -> None:
    send(post, gid, f"{service}/500/{gid}", max_attempts=1)
    until(url, gid, state="parked")


def test_a_call_that_failed_is_listed_with_its_reason(url: str, post: Post, service: str) -> None:
    send(post, "listed", f"{service}/500/listed")
    until(url, "listed", attempts=1)
    (line,) = [line for line in tallystick("calls", "list", url=url).out.splitlines() if line.startswith("listed ")]
    for word in (" 01 ", " waiting ", f"{service}/500/listed", " 1 ", "in ", "status 500"):
        assert word in line
    listed = tallystick("calls", "list", "--state", "waiting", "--json", url=url).json()["calls"]
    assert "listed" in {call["gid"] for call in listed}
    parked = tallystick("calls", "list", "--state", "parked", "--json", url=url).json()["calls"]
    assert "listed" not in {call["gid"] for call in parked}


def test_a_call_that_is_done_is_shown_and_not_listed(url: str, post: Post, service: str) -> None:
    send(post, "good", f"{service}/200/a", f"{service}/200/b")
    until(url, "good", state="done")
    eventually_equal(lambda: shown(url, "good")["state"], "done")
    view = shown(url, "good")
    assert [(call["branch"], call["state"], call["attempts"]) for call in view["calls"]] == [
        ("01", "done", 1),
        ("02", "done", 1),
    ]
    listed = tallystick("calls", "list", "--json", url=url).json()["calls"]
    assert "good" not in {call["gid"] for call in listed}
    out = tallystick("calls", "show", "good", url=url).out
    assert "committed" in out
    assert f"{service}/200/b" in out


def test_list_says_when_there_is_more(url: str, post: Post, service: str) -> None:
    for number in range(2):
        park(post, url, service, f"more-{number}")
    cut = tallystick("calls", "list", "--state", "parked", "--limit", "1", "--json", url=url).json()
    assert (len(cut["calls"]), cut["more"]) == (1, True)
    assert "--limit" in tallystick("calls", "list", "--limit", "1", url=url).err


def test_a_transaction_is_shown_with_its_calls(url: str, post: Post) -> None:
    post("/v1/transactions", gid="held", group="g", messages=[], calls=[{"url": DEAD, "body": "x"}])
    view = tallystick("tx", "show", "held", "--json", url=url).json()
    assert [(call["url"], call["state"]) for call in view["calls"]] == [(DEAD, "held")]
    assert DEAD in tallystick("tx", "show", "held", url=url).out
    post("/v1/transactions", gid="no-calls", group="g", messages=[{"topic": "t", "value": "x"}])
    assert "calls" not in tallystick("tx", "show", "no-calls", "--json", url=url).json()


def test_retry_makes_a_call_now_that_would_have_waited(url: str, post: Post, service: str) -> None:
    send(post, "hurried", f"{service}/500/hurried")
    until(url, "hurried", attempts=1)
    done = tallystick("calls", "retry", "hurried", url=url)
    assert (done.code, "hurried" in done.out) == (0, True)
    until(url, "hurried", attempts=2)


def test_parked_calls_are_resumed_one_by_one_or_all(url: str, post: Post, service: str) -> None:
    for number in range(3):
        park(post, url, service, f"parked-{number}")
    one = tallystick("calls", "resume", "parked-0", "--json", url=url)
    assert (one.code, one.json()["failed"], one.json()["transactions"][0]["gid"]) == (0, 0, "parked-0")
    rest = tallystick("calls", "resume", "--all-parked", "--json", url=url)
    assert rest.code == 0
    # The first may have used up its one attempt again by now.
    assert {"parked-1", "parked-2"} <= {view["gid"] for view in rest.json()["transactions"]}


def test_resume_wants_gids_or_all(url: str) -> None:
    assert tallystick("calls", "resume", url=url).code == 2
    assert tallystick("calls", "resume", "--all-parked", "some", url=url).code == 2


def test_stop_ends_what_is_not_done_and_cannot_be_undone(url: str, post: Post, service: str) -> None:
    park(post, url, service, "hopeless")
    refused = tallystick("calls", "stop", "hopeless", url=url)
    assert (refused.code, "--yes" in one_line(refused.err)) == (2, True)
    assert shown(url, "hopeless")["state"] == "parked"
    stopped = tallystick("calls", "stop", "hopeless", "--yes", "--json", url=url)
    assert (stopped.code, stopped.json()["transactions"][0]["state"]) == (0, "stopped")
    listed = tallystick("calls", "list", "--json", url=url).json()["calls"]
    assert "hopeless" not in {call["gid"] for call in listed}


def test_a_done_transaction_cannot_be_stopped(url: str, post: Post, service: str) -> None:
    send(post, "finished", f"{service}/200/x")
    until(url, "finished", state="done")
    done = tallystick("calls", "stop", "finished", "--yes", url=url)
    assert (done.code, "done" in one_line(done.err)) == (5, True)


@pytest.mark.parametrize("words", [["show"], ["retry"], ["resume"], ["stop", "--yes"]])
def test_an_unknown_gid_is_not_found(url: str, words: list[str]) -> None:
    done = tallystick("calls", *words, "unheard-of", url=url)
    assert (done.code, "unheard-of" in one_line(done.err)) == (3, True)


def test_several_are_retried_even_if_one_is_not_known(url: str, post: Post, service: str) -> None:
    send(post, "several", f"{service}/500/several")
    done = tallystick("calls", "retry", "unheard-of", "several", "--json", url=url)
    assert (done.code, done.json()["failed"]) == (3, 1)
    assert [view["gid"] for view in done.json()["transactions"]] == ["several"]


def test_a_service_that_is_down_has_an_open_circuit_and_the_doctor_says_so(url: str, post: Post, service: str) -> None:
    send(post, "to-the-living", f"{service}/200/x")
    for number in range(4):
        send(post, f"to-the-dead-{number}", DEAD)

    def hosts_seen() -> dict[str, Any]:
        return {one["name"]: one for one in tallystick("calls", "hosts", "--json", url=url).json()["hosts"]}

    eventually(lambda: hosts_seen().get("http://127.0.0.1:9", {}).get("open"), "the dead host is given up")
    hosts = hosts_seen()
    assert hosts["http://127.0.0.1:9"]["failures"] >= 3
    assert not hosts[service]["open"]
    (line,) = [line for line in tallystick("calls", "hosts", url=url).out.splitlines() if "127.0.0.1:9 " in line]
    assert " open " in line
    told = tallystick("doctor", "--no-environment", "--json", url=url)
    found = {one["subject"]: one for one in told.json()["findings"]}
    assert (told.code, found["called services"]["status"]) == (1, "problem")
    assert "http://127.0.0.1:9" in found["called services"]["text"]


def test_the_doctor_counts_parked_calls(url: str, post: Post, service: str) -> None:
    park(post, url, service, "seen-by-the-doctor")
    told = tallystick("doctor", "--no-environment", "--json", url=url)
    found = {one["subject"]: one for one in told.json()["findings"]}
    assert (told.code, found["calls"]["status"]) == (1, "problem")
    assert "calls resume --all-parked" in found["calls"]["advice"]

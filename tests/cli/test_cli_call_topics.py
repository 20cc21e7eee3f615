"""`tallystick call-topics`: who is called for a topic."""

from __future__ import annotations

import pytest
from command_line import Post, one_line, tallystick

ONE, TWO = "http://127.0.0.1:9/one", "http://127.0.0.1:9/two"


def services(url: str, topic: str) -> list[str]:
    view = tallystick("call-topics", "show", topic, "--json", url=url).json()
    return [one["url"] for one in view["subscribers"]]


def test_services_subscribe_and_leave(url: str) -> None:
    made = tallystick("call-topics", "subscribe", "orders", ONE, "--remark", "the books", "--json", url=url)
    assert (made.code, made.json()["topic"]) == (0, "orders")
    assert made.json()["subscribers"] == [{"url": ONE, "remark": "the books"}]
    assert tallystick("call-topics", "subscribe", "orders", TWO, url=url).code == 0
    assert services(url, "orders") == [ONE, TWO]
    shown = tallystick("call-topics", "show", "orders", url=url).out
    assert ("the books" in shown, TWO in shown) == (True, True)
    assert tallystick("call-topics", "unsubscribe", "orders", ONE, url=url).code == 0
    assert services(url, "orders") == [TWO]


def test_without_a_word_call_topics_are_listed(url: str) -> None:
    tallystick("call-topics", "subscribe", "listed", ONE, url=url)
    for words in (["call-topics"], ["call-topics", "list"]):
        (line,) = [line for line in tallystick(*words, url=url).out.splitlines() if line.startswith("listed ")]
        assert line.split()[:2] == ["listed", "1"]


def test_a_topic_is_deleted_and_made_again(url: str, post: Post) -> None:
    tallystick("call-topics", "subscribe", "short", ONE, url=url)
    refused = tallystick("call-topics", "delete", "short", url=url)
    assert (refused.code, "--yes" in one_line(refused.err)) == (2, True)
    assert tallystick("call-topics", "delete", "short", "--yes", url=url).code == 0
    assert tallystick("call-topics", "show", "short", url=url).code == 3
    tallystick("call-topics", "subscribe", "short", TWO, url=url)
    post("/v1/transactions", gid="again", group="g", messages=[], calls=[{"url": "topic://short", "body": "x"}])
    view = tallystick("calls", "show", "again", "--json", url=url).json()
    assert [call["url"] for call in view["calls"]] == [TWO]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "unheard-of"], 3, "unheard-of"),
        (["delete", "unheard-of", "--yes"], 3, "unheard-of"),
        (["unsubscribe", "unheard-of", ONE], 3, "there is no call topic"),
        (["subscribe", "no spaces", ONE], 2, "letters"),
        (["subscribe", "far", "http://example.com/x"], 1, "allowed_urls"),
    ],
)
def test_what_does_not_work_is_told_in_one_line(url: str, words: list[str], code: int, said: str) -> None:
    done = tallystick("call-topics", *words, url=url)
    assert (done.code, said in one_line(done.err)) == (code, True), done.err


def test_the_same_service_twice_is_refused(url: str) -> None:
    tallystick("call-topics", "subscribe", "twice", ONE, url=url)
    done = tallystick("call-topics", "subscribe", "twice", ONE, url=url)
    assert (done.code, "is a subscriber of" in one_line(done.err)) == (5, True)

"""`tallystick topics` and `tallystick groups`."""

from __future__ import annotations

import json
import urllib.request

from command_line import Post, one_line, tallystick


def test_a_topic_is_created_listed_shown_changed_and_deleted(url: str) -> None:
    made = tallystick("topics", "create", "orders", "--queues", "3", "--retention", "2h", "--json", url=url)
    assert (made.code, made.json()["queues"], made.json()["retention_ms"]) == (0, 3, 7_200_000)
    listed = tallystick("topics", "--json", url=url)
    assert [topic["name"] for topic in listed.json()["topics"] if topic["name"] == "orders"] == ["orders"]
    changed = tallystick("topics", "create", "orders", "--queues", "5", "--json", url=url)
    assert (changed.code, changed.json()["queues"], "already" in changed.err) == (0, 5, True)
    assert tallystick("topics", "delete", "orders", "--yes", url=url).code == 0
    assert tallystick("topics", "show", "orders", url=url).code == 3


def test_without_a_word_topics_are_listed(url: str) -> None:
    tallystick("topics", "create", "listed", url=url)
    assert tallystick("topics", url=url).out == tallystick("topics", "list", url=url).out
    assert "listed" in tallystick("topics", url=url).out


def test_show_tells_the_range_of_each_queue(url: str, post: Post) -> None:
    tallystick("topics", "create", "ranges", "--queues", "2", url=url)
    post("/v1/messages", messages=[{"topic": "ranges", "value": str(number), "key": "k"} for number in range(7)])
    view = tallystick("topics", "show", "ranges", "--json", url=url).json()
    assert sorted(view["ends"]) == [0, 7]
    assert "7" in tallystick("topics", "show", "ranges", url=url).out


def test_deleting_without_a_terminal_needs_yes(url: str) -> None:
    tallystick("topics", "create", "dear", url=url)
    done = tallystick("topics", "delete", "dear", url=url)
    assert (done.code, "--yes" in one_line(done.err)) == (2, True)
    assert tallystick("topics", "show", "dear", url=url).code == 0


def test_queues_cannot_be_taken_away(url: str) -> None:
    tallystick("topics", "create", "grown", "--queues", "4", url=url)
    done = tallystick("topics", "create", "grown", "--queues", "2", url=url)
    assert done.code in (2, 5)
    assert "queues" in one_line(done.err.splitlines(keepends=True)[-1])


def test_a_bad_name_is_wrong_usage_and_names_what_is_allowed(url: str) -> None:
    done = tallystick("topics", "create", "no spaces", url=url)
    assert (done.code, "letters" in one_line(done.err)) == (2, True)


def test_groups_show_how_far_they_are(url: str, post: Post) -> None:
    post("/v1/messages", messages=[{"topic": "read", "value": "x", "key": "k"} for _ in range(5)])
    taken = post("/v1/groups/readers/receive", topic="read", max=3)["deliveries"]
    post("/v1/groups/readers/ack", receipts=[one["receipt"] for one in taken[:2]])
    (view,) = tallystick("groups", "show", "readers", "--json", url=url).json()["groups"]
    assert (view["group"], view["topic"], view["lag"], view["leased"]) == ("readers", "read", 3, 1)
    for words in (["groups"], ["groups", "list"]):
        assert "readers" in tallystick(*words, url=url).out


def test_a_group_is_moved(url: str, post: Post) -> None:
    tallystick("topics", "create", "moved", "--queues", "2", url=url)
    sent = [{"topic": "moved", "value": str(number), "key": "k"} for number in range(5)]
    queue = post("/v1/messages", messages=sent)["positions"][0]["queue"]
    post("/v1/groups/movers/receive", topic="moved", max=3)

    def lag(*where: str) -> int:
        done = tallystick("groups", "reset", "movers", "--topic", "moved", *where, "--yes", "--json", url=url)
        assert done.code == 0, done.err
        assert done.json()["queues"][queue]["end"] == 5
        return int(done.json().get("lag", 0))

    assert lag("--to-earliest") == 5
    assert lag("--to-latest") == 0
    assert lag("--to-offset", f"{queue}:3", "--to-offset", f"{1 - queue}:0") == 2
    assert lag("--to-time", "1h") == 5
    assert lag("--to-time", "2999-01-01") == 0
    shown = tallystick("groups", "reset", "movers", "--topic", "moved", "--to-earliest", "-y", url=url)
    assert (shown.code, "movers" in shown.out, "moved" in shown.err) == (0, True, True)


def test_a_group_is_not_moved_unasked_nor_without_a_place_to_go_to(url: str, post: Post) -> None:
    post("/v1/messages", messages=[{"topic": "unmoved", "value": "x", "key": "k"}])
    post("/v1/groups/stayers/receive", topic="unmoved")
    reset = ("groups", "reset", "stayers", "--topic", "unmoved")
    done = tallystick(*reset, "--to-earliest", url=url)
    assert (done.code, "--yes" in one_line(done.err)) == (2, True)
    for where in ([], ["--to-earliest", "--to-latest"], ["--to-offset", "0"], ["--to-offset", "a:b"]):
        done = tallystick(*reset, *where, "--yes", url=url)
        assert (done.code, "--to-" in one_line(done.err)) == (2, True)
    done = tallystick(*reset, "--to-time", "yesterday", "--yes", url=url)
    assert (done.code, "--to-time" in one_line(done.err)) == (2, True)
    (view,) = tallystick("groups", "show", "stayers", "--json", url=url).json()["groups"]
    assert view["leased"] == 1
    for group, topic in (("nobody", "unmoved"), ("stayers", "nothing")):
        assert tallystick("groups", "reset", group, "--topic", topic, "--to-latest", "-y", url=url).code == 3


def test_an_unknown_group_is_not_found(url: str) -> None:
    done = tallystick("groups", "show", "nobody", url=url)
    assert (done.code, "nobody" in one_line(done.err)) == (3, True)


def test_json_is_what_the_broker_says(url: str) -> None:
    tallystick("topics", "create", "same", url=url)
    with urllib.request.urlopen(f"{url}/v1/topics/same", timeout=10) as answer:
        said = json.load(answer)
    assert tallystick("topics", "show", "same", "--json", url=url).json() == said

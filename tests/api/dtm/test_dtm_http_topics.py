"""Topics as dtm's topic_test has them, and what it does not test: deletion takes effect, and so does re-creation."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.parse import urlencode

import pytest
from dtm_faces import BASE, SHORT, HttpFace, Looker, msg, new_name

from brokers import BrokerProcess, running_broker
from busi import Busi
from raw_client import Answer, RawClient


def _subscribers(look: Looker, topic: str) -> list[str]:
    found = look.get("queryKV", cat="topics", key=topic).json()["kv"]
    return [one["url"] for one in json.loads(found[0]["v"])] if found else []


def _refused(answer: Answer) -> str:
    assert answer.status == 500
    return str(answer.json()["message"])


def test_subscribe(look: Looker, busi: Busi) -> None:
    topic = new_name("topic")
    look.subscribe(topic, f"{busi.url}/a", "first")
    assert _refused(look.get("subscribe", topic=topic, url=f"{busi.url}/a")) == "this url exists"
    assert _refused(look.get("subscribe", topic=topic, url="")) == "empty url"
    assert _refused(look.get("subscribe", topic="", url=f"{busi.url}/a")) == "empty topic"
    assert _subscribers(look, topic) == [f"{busi.url}/a"]


def test_unsubscribe(look: Looker, busi: Busi) -> None:
    topic = new_name("topic")
    look.subscribe(topic, f"{busi.url}/a")
    assert _refused(look.get("unsubscribe", topic=topic, url="")) == "empty url"
    assert _refused(look.get("unsubscribe", topic="", url="x")) == "empty topic"
    assert _refused(look.get("unsubscribe", topic=topic, url=f"{busi.url}/b")) == "no such an url "
    assert look.get("unsubscribe", topic=topic, url=f"{busi.url}/a").status == 200
    assert _refused(look.get("unsubscribe", topic=topic, url=f"{busi.url}/a")) == "this topic is empty"
    assert _refused(look.get("unsubscribe", topic=new_name("none"), url=f"{busi.url}/a")) == "no such a topic"


def test_delete(look: Looker, busi: Busi) -> None:
    topic = new_name("topic")
    look.subscribe(topic, f"{busi.url}/a")
    path = f"{BASE}/topic/{topic}"
    answer = look.client.request("DELETE", path)
    assert (answer.status, answer.json()) == (200, {"dtm_result": "SUCCESS"})
    assert _refused(look.client.request("DELETE", path)) == "storage: NotFound"
    assert look.get("queryKV", cat="topics", key=topic).json() == {"kv": []}


def test_a_deletion_without_the_name_of_a_topic_is_400(look: Looker) -> None:
    for name in ("", "no%20spaces", "x" * 128):
        assert look.client.json("DELETE", f"{BASE}/topic/{name}").status == 400


def test_topics_may_be_changed_by_post_as_well(look: Looker, busi: Busi) -> None:
    topic = new_name("topic")
    assert look.post("subscribe", {"topic": topic, "url": f"{busi.url}/a", "remark": "r"}).status == 200
    query = urlencode({"topic": topic, "url": f"{busi.url}/b"})
    assert look.client.request("POST", f"{BASE}/subscribe?{query}").status == 200
    assert look.post("unsubscribe", {"topic": topic, "url": f"{busi.url}/a"}).status == 200
    assert _subscribers(look, topic) == [f"{busi.url}/b"]


def test_what_was_subscribed_at_the_same_time_is_all_there(broker: BrokerProcess, busi: Busi) -> None:
    """dtm loses some of these to its optimistic lock; here each one counts."""
    topic, statuses = new_name("topic"), []

    def subscribe(number: int) -> None:
        with RawClient(broker.url) as client:
            answer = Looker(client).get("subscribe", topic=topic, url=f"{busi.url}/{number}")
            statuses.append(answer.status)

    threads = [threading.Thread(target=subscribe, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with RawClient(broker.url) as client:
        (found,) = Looker(client).get("queryKV", cat="topics", key=topic).json()["kv"]
        assert set(_subscribers(Looker(client), topic)) == {f"{busi.url}/{number}" for number in range(20)}
    assert (statuses, found["version"]) == ([200] * 20, 20)


def test_one_subscriber_has_the_branch_itself_and_a_change_counts_at_once(
    http: HttpFace, look: Looker, busi: Busi
) -> None:
    topic, first, second = new_name("topic"), new_name("gid"), new_name("gid")
    look.subscribe(topic, f"{busi.url}/a")
    assert http.submit(msg(first, busi, f"topic://{topic}")).ok
    look.subscribe(topic, f"{busi.url}/b")
    assert http.submit(msg(second, busi, f"topic://{topic}")).ok
    look.wait(first, "succeed")
    look.wait(second, "succeed")
    assert [(call.branch, call.path) for call in busi.calls(first)] == [("01", "/a")]
    assert [(call.branch, call.path) for call in busi.calls(second)] == [("01-01", "/a"), ("01-02", "/b")]
    assert {call.body for call in busi.calls(second)} == {busi.calls(first)[0].body}


@pytest.mark.parametrize("named", [True, False], ids=["with query_prepared", "without"])
def test_a_prepared_msg_keeps_the_subscribers_it_had(http: HttpFace, look: Looker, busi: Busi, named: bool) -> None:
    topic, gid = new_name("topic"), new_name("gid")
    look.subscribe(topic, f"{busi.url}/a")
    trans = msg(gid, busi, f"topic://{topic}", timeout_to_fail=60)
    assert http.prepare(trans).ok
    look.subscribe(topic, f"{busi.url}/b")
    assert look.client.request("DELETE", f"{BASE}/topic/{topic}").status == 200
    assert http.submit(trans | ({} if named else {"query_prepared": None})).ok
    look.wait(gid, "succeed")
    assert [call.path for call in busi.calls(gid)] == ["/a"]


def test_a_deleted_topic_is_gone_at_once_and_can_be_made_again(http: HttpFace, look: Looker, busi: Busi) -> None:
    """In dtm it stays usable in memory, and a new one of that name is ignored until its version is the larger one."""
    topic, gid = new_name("topic"), new_name("gid")
    for path in ("/a", "/b", "/c"):
        look.subscribe(topic, busi.url + path)
    assert look.client.request("DELETE", f"{BASE}/topic/{topic}").status == 200
    assert http.submit(msg(gid, busi, f"topic://{topic}")).message == "topic not found"
    look.subscribe(topic, f"{busi.url}/new")
    assert http.submit(msg(gid, busi, f"topic://{topic}")).ok
    look.wait(gid, "succeed")
    assert [call.path for call in busi.calls(gid)] == ["/new"]


def test_an_emptied_topic_is_as_good_as_none(http: HttpFace, look: Looker, busi: Busi) -> None:
    topic = new_name("topic")
    look.subscribe(topic, f"{busi.url}/a")
    assert look.get("unsubscribe", topic=topic, url=f"{busi.url}/a").status == 200
    assert http.submit(msg(new_name("gid"), busi, f"topic://{topic}")).message == "topic not found"


def test_grpc_subscribers_are_shown_as_they_were_written(look: Looker) -> None:
    topic, address = new_name("topic"), "127.0.0.1:58081/busi.Busi/TransIn"
    look.subscribe(topic, address)
    assert _subscribers(look, topic) == [address]
    assert look.get("unsubscribe", topic=topic, url=address).status == 200
    assert "no '/' found" in _refused(look.get("subscribe", topic=topic, url="127.0.0.1:58081"))


def test_topics_are_durable(busi: Busi) -> None:
    with running_broker(**SHORT) as broker, RawClient(broker.url) as client:
        look = Looker(client)
        look.subscribe("kept", f"{busi.url}/a", "why")
        look.subscribe("gone", f"{busi.url}/a")
        look.client.request("DELETE", f"{BASE}/topic/gone")
        broker.kill()
        broker.restart()
        client.close()
        (found,) = look.get("queryKV", cat="topics").json()["kv"]
        assert (found["k"], json.loads(found["v"])) == ("kept", [{"url": f"{busi.url}/a", "remark": "why"}])


# --- queryKV and scanKV ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed(busi: Busi) -> Any:
    with running_broker(**SHORT) as broker, RawClient(broker.url) as client:
        for name in ("a", "b", "c", "d", "e"):
            Looker(client).subscribe(name, f"{busi.url}/{name}", f"remark {name}")
        yield Looker(client)


def test_query_kv(listed: Looker, busi: Busi) -> None:
    (found,) = listed.get("queryKV", cat="topics", key="b").json()["kv"]
    assert set(found) == {"id", "create_time", "update_time", "cat", "k", "v", "version"}
    assert (found["cat"], found["k"], found["version"]) == ("topics", "b", 1)
    assert json.loads(found["v"]) == [{"url": f"{busi.url}/b", "remark": "remark b"}]
    assert [one["k"] for one in listed.get("queryKV", cat="topics").json()["kv"]] == ["a", "b", "c", "d", "e"]
    assert listed.get("queryKV", cat="topics", key="none").json() == {"kv": []}
    assert listed.get("queryKV", cat="other").json() == {"kv": []}


def test_scan_kv_goes_on_from_page_to_page(listed: Looker) -> None:
    names, position = [], ""
    for _ in range(3):
        page = listed.get("scanKV", cat="topics", limit=2, position=position).json()
        names.append([one["k"] for one in page["kv"]])
        position = page["next_position"]
    assert (names, position) == ([["a", "b"], ["c", "d"], ["e"]], "")
    assert listed.get("scanKV", cat="topics").json()["next_position"] == ""

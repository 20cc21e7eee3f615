"""Reading by every way there is: JSON, msgpack, Arrow, long polls."""

from __future__ import annotations

import base64
import contextlib
import io
import threading
import time
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from brokers import BrokerProcess, running_broker
from eventually import eventually_equal
from raw_client import RawClient
from tallystick.core.errors import Busy
from tallystick.core.message import OutgoingMessage, StoredMessage
from tallystick.core.ops import Commit, Nack, Prepare, Send
from tallystick.core.wire import ARROW, JSON, MSGPACK, BatchRequest, BatchResponse

# --- content negotiation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [JSON, MSGPACK, "Application/JSON; charset=utf-8"])
@pytest.mark.parametrize("accepted", [None, JSON, MSGPACK, "*/*"])
def test_a_batch_is_answered_as_the_caller_accepts(client: RawClient, sent: str, accepted: str | None) -> None:
    encoder = msgspec.msgpack if sent == MSGPACK else msgspec.json
    body = encoder.encode(BatchRequest([Send([OutgoingMessage("batch", b"x")]), Commit("nobody")]))
    headers = {"Content-Type": sent, **({"Accept": accepted} if accepted else {})}
    answer = client.request("POST", "/v1/batch", body, headers)
    wanted = MSGPACK if accepted == MSGPACK or (accepted is None and sent == MSGPACK) else JSON
    assert (answer.status, answer.headers["content-type"]) == (200, wanted)
    decoder = msgspec.msgpack if wanted == MSGPACK else msgspec.json
    first, second = decoder.decode(answer.body, type=BatchResponse).results
    assert first is not None
    assert len(first.positions) == 1
    assert second is not None
    assert (second.error, second.field) == ("not_found", "gid")


@pytest.mark.parametrize("path", ["/v1/info", "/v1/topics", "/v1/groups", "/v1/transactions"])
def test_views_are_the_same_in_json_and_msgpack(client: RawClient, path: str) -> None:
    client.do(Send([OutgoingMessage("views", b"x")]))
    as_json = client.request("GET", path)
    as_msgpack = client.request("GET", path, headers={"Accept": MSGPACK})
    assert as_json.headers["content-type"] == JSON
    assert as_msgpack.headers["content-type"] == MSGPACK
    left, right = as_json.json(), msgspec.msgpack.decode(as_msgpack.body)
    left.pop("now_ms", None)
    right.pop("now_ms", None)
    assert left == right


def test_problems_are_json_whatever_was_accepted(client: RawClient) -> None:
    answer = client.request("GET", "/v1/transactions/nobody", headers={"Accept": MSGPACK})
    assert (answer.status, answer.problem().code) == (404, "not_found")


# --- people's messages -----------------------------------------------------------------------------------------------

VALUES: list[tuple[dict[str, Any], bytes, dict[str, Any]]] = [
    ({"value": "text"}, b"text", {"value": "text"}),
    ({"value": {"a": [1, 2.5, None, "x"]}}, b'{"a":[1,2.5,null,"x"]}', {"value": {"a": [1, 2.5, None, "x"]}}),
    ({"value": [10**30]}, str([10**30]).encode(), {"value": [10**30]}),
    ({"value": 7}, b"7", {"value": "7"}),
    ({"value": None}, b"null", {"value": "null"}),
    ({"value": ""}, b"", {"value": ""}),
    ({"value": "{not json"}, b"{not json", {"value": "{not json"}),
    ({"value_base64": base64.b64encode(b"\xff\x00").decode()}, b"\xff\x00", {"value_base64": "/wA="}),
]


def test_values_as_people_write_and_read_them(client: RawClient) -> None:
    client.json("PUT", "/v1/topics/values", {"queues": 1})
    for given, _, _ in VALUES:
        message = {"topic": "values", "key": "k", "headers": {"h": "1"}, "tag": "t", **given}
        answer = client.json("POST", "/v1/messages", {"messages": [message]})
        assert answer.status == 201, answer.body
    stored, _, _ = client.read("values", 0)
    assert [one.value for one in stored] == [value for _, value, _ in VALUES]
    shown = client.json("GET", "/v1/topics/values/queues/0/messages").json()
    assert (shown["start"], shown["next"], shown["end"]) == (0, len(VALUES), len(VALUES))
    for offset, (message, (_, _, readable)) in enumerate(zip(shown["messages"], VALUES, strict=True)):
        assert (message["offset"], message["key"], message["headers"], message["tag"]) == (offset, "k", {"h": "1"}, "t")
        assert {name: message[name] for name in readable} == readable


def test_a_transaction_by_curl(client: RawClient) -> None:
    made = client.json("POST", "/v1/transactions", {"group": "shop", "messages": [{"topic": "curl", "value": "a"}]})
    assert made.status == 201
    gid = made.json()["gid"]
    assert gid.startswith(client.json("GET", "/v1/info").json()["store"] + "-")
    assert client.json("GET", f"/v1/transactions/{gid}").json()["state"] == "prepared"
    assert client.json("POST", f"/v1/transactions/{gid}/commit").json()["state"] == "committed"
    assert client.json("POST", f"/v1/transactions/{gid}/commit").status == 200
    refused = client.json("POST", f"/v1/transactions/{gid}/rollback")
    assert (refused.status, refused.problem().code) == (409, "outcome_conflict")
    received = client.json("POST", "/v1/groups/c/receive", {"topic": "curl"}).json()["deliveries"]
    assert [one["message"]["value"] for one in received] == ["a"]
    receipts = [one["receipt"] for one in received]
    assert client.json("POST", "/v1/groups/c/ack", {"receipts": receipts}).json() == {"stale": []}
    again = client.json("POST", "/v1/groups/c/ack", {"receipts": receipts})
    assert (again.status, again.json()) == (409, {"stale": receipts})


def test_parts_by_curl(client: RawClient) -> None:
    for number in range(2):
        body = {"messages": [{"topic": "parts", "value": str(number)}], "index": number}
        assert client.json("POST", "/v1/parts/p-curl", body).status == 201
    wrong = client.json("POST", "/v1/transactions/c-1/commit", {"parts": [{"part": "p-curl", "count": 3}]})
    assert (wrong.status, wrong.problem().code, wrong.problem().field) == (409, "part_unavailable", "parts")
    done = client.json("POST", "/v1/transactions/c-1/commit", {"parts": [{"part": "p-curl", "count": 2}]})
    assert done.json()["messages"] == 2
    assert {one.value for one in client.messages("parts")} == {b"0", b"1"}


def test_offsets_by_curl(client: RawClient) -> None:
    client.json("PUT", "/v1/topics/offsets", {"queues": 1})
    client.do(Send([OutgoingMessage("offsets", b"x")] * 3))
    body = {"topic": "offsets", "offsets": {"0": 2}, "expected": {"0": 0}}
    assert client.json("PUT", "/v1/groups/o/offsets", body).status == 200
    moved = client.json("PUT", "/v1/groups/o/offsets", body)
    assert (moved.status, moved.problem().code) == (409, "offset_moved")
    shown = client.json("GET", "/v1/groups/o/offsets?topic=offsets").json()
    assert shown["queues"] == [{"queue": 0, "offset": 2, "start": 0, "end": 3, "lag": 1}]


def test_groups_are_moved_by_curl(client: RawClient) -> None:
    client.json("PUT", "/v1/topics/moved", {"queues": 1})
    client.do(Send([OutgoingMessage("moved", str(number).encode()) for number in range(3)]))
    for group in ("leases", "offsets"):
        nowhere = client.json("POST", f"/v1/groups/{group}/reset", {"topic": "moved", "to": "earliest"})
        assert (nowhere.status, nowhere.problem().code) == (404, "not_found")
    held = client.receive("leases", "moved")
    client.json("PUT", "/v1/groups/offsets/offsets", {"topic": "moved", "offsets": {"0": 3}})
    for group in ("leases", "offsets"):
        shown = client.json("POST", f"/v1/groups/{group}/reset", {"topic": "moved", "offsets": {"0": 1}}).json()
        assert shown["queues"] == [{"queue": 0, "offset": 1, "start": 0, "end": 3, "lag": 2}]
        assert shown.get("leased", 0) == 0
    stale = client.json("POST", "/v1/groups/leases/ack", {"receipts": [held[0].receipt]})
    assert (stale.status, stale.json()) == (409, {"stale": [held[0].receipt]})
    refused = client.json("PUT", "/v1/groups/leases/offsets", {"topic": "moved", "offsets": {"0": 3}})
    assert (refused.status, refused.problem().code, refused.problem().field) == (409, "conflict", "group")
    beyond = client.json("POST", "/v1/groups/leases/reset", {"topic": "moved", "offsets": {"0": 4}})
    assert (beyond.status, beyond.problem().field) == (416, "offsets")


# --- Arrow -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(broker: BrokerProcess) -> int:
    """A queue whose chunks are of all sizes, with and without keys, headers, tags and gids; how many messages."""
    with RawClient(broker.url) as client:
        client.json("PUT", "/v1/topics/bulk", {"queues": 1})
        count = 0
        for size in (1, 700, 3, 40, 1):
            messages = [
                OutgoingMessage(
                    "bulk",
                    bytes([number % 256]) * (number % 50),
                    f"k{number}" if number % 3 else None,
                    {"n": str(number), "ü": "ö"} if number % 5 == 0 else None,
                    "even" if number % 2 == 0 else None,
                    born_at=number,
                )
                for number in range(count, count + size)
            ]
            client.do(Send(messages, f"bulk-{count}" if size % 2 else None))
            count += size
        return count


def arrow_rows(client: RawClient, query: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    answer = client.request("GET", f"/v1/topics/bulk/queues/0/messages?{query}", headers={"Accept": ARROW})
    assert (answer.status, answer.headers["content-type"]) == (200, ARROW)
    with pa.ipc.open_stream(io.BytesIO(answer.body)) as stream:
        return stream.read_all().to_pylist(), answer.headers


def as_arrow(message: StoredMessage) -> dict[str, Any]:
    """A message of a fetch as a row of the Arrow stream."""
    millisecond = pa.timestamp("ms", tz="UTC")
    return {
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "key": message.key,
        "value": message.value,
        "headers": None if message.headers is None else list(message.headers.items()),
        "tag": message.tag,
        "gid": message.gid or None,
        "sequence": message.sequence,
        "timestamp": pa.scalar(message.stored_at, millisecond).as_py(),
        "born_at": pa.scalar(message.born_at, millisecond).as_py(),
    }


def test_arrow_shows_what_a_fetch_shows(client: RawClient, filled: int) -> None:
    rows, headers = arrow_rows(client, "offset=0")
    assert rows == [as_arrow(message) for message in client.messages("bulk")]
    assert len(rows) == filled
    assert (headers["tallystick-start"], headers["tallystick-next"], headers["tallystick-end"]) == (
        "0",
        str(filled),
        str(filled),
    )


@pytest.mark.parametrize(("first", "end"), [(0, 1), (1, 700), (350, 351), (700, 720), (743, 745), (5, 5), (745, 745)])
def test_arrow_keeps_to_the_offsets_it_is_given(client: RawClient, filled: int, first: int, end: int) -> None:
    rows, headers = arrow_rows(client, f"offset={first}&end={end}")
    assert [row["offset"] for row in rows] == list(range(first, end))
    assert headers["tallystick-next"] == str(end)
    assert filled == 745


def test_arrow_of_an_empty_queue_is_a_stream_without_rows(client: RawClient) -> None:
    client.json("PUT", "/v1/topics/empty", {"queues": 1})
    answer = client.request("GET", "/v1/topics/empty/queues/0/messages", headers={"Accept": ARROW})
    with pa.ipc.open_stream(io.BytesIO(answer.body)) as stream:
        assert stream.read_all().num_rows == 0
    wrong = client.request("GET", "/v1/topics/empty/queues/0/messages?offset=1", headers={"Accept": ARROW})
    assert (wrong.status, wrong.problem().code) == (416, "offset_out_of_range")


def test_json_pages_show_what_a_fetch_shows(client: RawClient, filled: int) -> None:
    offset, offsets = 0, []
    while offset < filled:
        page = client.json("GET", f"/v1/topics/bulk/queues/0/messages?offset={offset}&max=100").json()
        offsets += [one["offset"] for one in page["messages"]]
        assert len(page["messages"]) <= 100
        assert page["next"] > offset
        offset = page["next"]
    assert offsets == list(range(filled))


# --- long polls ------------------------------------------------------------------------------------------------------


def later(broker: BrokerProcess, *ops: Any) -> threading.Thread:
    def run() -> None:
        time.sleep(0.3)
        with RawClient(broker.url) as other:
            other.batch(*ops)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_fetch_waits_for_the_next_message(broker: BrokerProcess, client: RawClient) -> None:
    client.json("PUT", "/v1/topics/poll", {"queues": 1})
    thread = later(broker, Send([OutgoingMessage("poll", b"new")]))
    began = time.monotonic()
    messages, _, _ = client.read("poll", 0, wait_ms=20_000)
    assert [one.value for one in messages] == [b"new"]
    assert 0.2 < time.monotonic() - began < 15
    thread.join()
    began = time.monotonic()
    assert client.read("poll", 0, 1, wait_ms=300)[0] == []
    assert time.monotonic() - began > 0.25


def test_a_receive_waits_for_a_commit_and_not_for_a_prepare(broker: BrokerProcess, client: RawClient) -> None:
    client.do(Prepare("poll-1", "shop", [OutgoingMessage("commits", b"new")]))
    thread = later(broker, Commit("poll-1"))
    began = time.monotonic()
    deliveries = client.receive("g", "commits", wait_ms=20_000)
    assert [one.message.value for one in deliveries] == [b"new"]
    assert time.monotonic() - began < 15
    thread.join()


def test_a_receive_waits_for_a_lease_to_end_and_for_a_message_given_back(
    broker: BrokerProcess, client: RawClient
) -> None:
    client.do(Send([OutgoingMessage("leased", b"x")]))
    client.receive("g", "leased", invisible_ms=300)
    (second,) = client.receive("g", "leased", wait_ms=20_000, invisible_ms=60_000)
    assert second.attempt == 2
    thread = later(broker, Nack("g", [second.receipt], delay_ms=0))
    began = time.monotonic()
    (third,) = client.receive("g", "leased", wait_ms=20_000)
    assert third.attempt == 3
    assert time.monotonic() - began < 15
    thread.join()


def test_a_delayed_message_wakes_who_waits_for_it(client: RawClient) -> None:
    at = client.json("GET", "/v1/info").json()["now_ms"] + 500
    client.do(Send([OutgoingMessage("delayed", b"x", deliver_at=at)]))
    assert client.receive("g", "delayed") == []
    began = time.monotonic()
    (delivery,) = client.receive("g", "delayed", wait_ms=20_000)
    assert delivery.message.stored_at >= at
    assert time.monotonic() - began < 15


def test_a_delay_is_counted_by_the_broker(client: RawClient) -> None:
    began = client.json("GET", "/v1/info").json()["now_ms"]
    body = {"messages": [{"topic": "delays", "value": "x", "delay_ms": 300}]}
    assert client.json("POST", "/v1/messages", body).json()["positions"][0]["offset"] == -1
    (delivery,) = client.receive("g", "delays", wait_ms=20_000)
    assert delivery.message.stored_at >= began + 300
    body["messages"][0]["deliver_at"] = began
    refused = client.json("POST", "/v1/messages", body)
    assert (refused.status, refused.problem().field) == (400, "messages[0].delay_ms")


def test_a_waiter_that_hangs_up_takes_no_message_with_it(broker: BrokerProcess, client: RawClient) -> None:
    waiting = RawClient(broker.url, timeout=0.3)
    with pytest.raises(TimeoutError):
        waiting.receive("g", "hangup", wait_ms=30_000)
    waiting.close()
    time.sleep(1)
    client.do(Send([OutgoingMessage("hangup", b"x")]))
    assert [one.attempt for one in client.receive("g", "hangup", wait_ms=20_000)] == [1]


def test_waiters_have_a_limit() -> None:
    with running_broker(max_long_polls=2) as broker:
        held = [threading.Thread(target=poll_once, args=(broker,)) for _ in range(2)]
        for thread in held:
            thread.start()
        with RawClient(broker.url) as client:
            ask = partial(client.json, "POST", "/v1/groups/g/receive", {"topic": "t", "wait_ms": 2_000})
            eventually_equal(lambda: ask().status, 429)
            assert ask().problem().code == "busy"
            assert ask().headers["retry-after"]
            client.do(Send([OutgoingMessage("t", b"x"), OutgoingMessage("t", b"y")]))
        for thread in held:
            thread.join(30)


def poll_once(broker: BrokerProcess) -> None:
    with RawClient(broker.url) as client:
        while True:
            with contextlib.suppress(Busy):
                client.receive("g", "t", wait_ms=20_000, max=1)
                return


def test_the_info_tells_the_limits() -> None:
    settings = {"max_message_bytes": 123, "max_request_bytes": 4_567, "max_transaction_messages": 8}
    with running_broker(**settings) as broker, RawClient(broker.url) as client:
        limits = client.json("GET", "/v1/info").json()["limits"]
    assert (limits["message_bytes"], limits["request_bytes"], limits["transaction_messages"]) == (123, 4_567, 8)


# --- whose offsets -------------------------------------------------------------------------------------------------


def test_every_answer_with_messages_says_whose_they_are(client: RawClient) -> None:
    client.json("PUT", "/v1/topics/whose", {"queues": 1})
    client.do(Send([OutgoingMessage("whose", b"x")]))
    store = client.request("GET", "/v1/info").json()["store"]
    created = next(view.created_at for view in client.topics() if view.name == "whose")
    path = "/v1/topics/whose/queues/0/messages"
    assert client.request("GET", path).json()["store"] == store
    assert client.msgpack("GET", path)["store"] == store
    headers = client.request("GET", path, headers={"Accept": ARROW}).headers
    assert (headers["tallystick-store"], headers["tallystick-created"]) == (store, str(created))
    asked = {"topic": "whose", "invisible_ms": 1}
    assert client.json("POST", "/v1/groups/g-json/receive", asked).json()["store"] == store
    assert client.msgpack("POST", "/v1/groups/g-msgpack/receive", asked)["store"] == store


def test_an_offset_of_a_deleted_topic_is_refused_in_every_form(client: RawClient) -> None:
    client.json("PUT", "/v1/topics/ended", {"queues": 1})
    client.do(Send([OutgoingMessage("ended", b"old")] * 3))
    assert client.request("DELETE", "/v1/topics/ended").status == 204
    client.do(Send([OutgoingMessage("ended", b"new")] * 9))
    view = next(view for view in client.topics() if view.name == "ended")
    assert view.begins[0] == view.starts[0] == 3
    for accepted in (JSON, MSGPACK, ARROW):
        answer = client.request("GET", "/v1/topics/ended/queues/0/messages?offset=2", headers={"Accept": accepted})
        assert (answer.status, answer.problem().code) == (416, "offset_out_of_range")
        assert "deleted and made again, offsets before 3" in answer.problem().detail

"""Bulk in and out: parts as Arrow, the ledger, tables, trims, waiting for several topics at once."""

from __future__ import annotations

import io
import threading
import time
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokers import BrokerProcess, running_broker
from raw_client import Answer, RawClient
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Prepare, Send
from tallystick.core.wire import ARROW
from tallystick.link import Link


def stream(table: pa.Table, compression: str | None = None, **options: Any) -> bytes:
    made = io.BytesIO()
    written = pa.ipc.IpcWriteOptions(compression=compression, **options)
    with pa.ipc.new_stream(made, table.schema, options=written) as writer:
        writer.write_table(table)
    return made.getvalue()


def rows(topic: str, *values: bytes, **columns: pa.Array) -> pa.Table:
    plain = {"topic": pa.array([topic] * len(values), pa.string()), "value": pa.array(values, pa.binary())}
    return pa.table({**plain, **columns})


def put(client: RawClient, part: str, body: bytes, query: str = "") -> Answer:
    return client.request("POST", f"/v1/parts/{part}{query}", body, {"Content-Type": ARROW})


@pytest.fixture
def link(broker: BrokerProcess) -> Any:
    with Link(broker.url) as made:
        yield made


# --- parts ---------------------------------------------------------------------------------------------------------


def test_an_arrow_part_carries_all_that_a_message_has(client: RawClient, link: Link) -> None:
    table = rows(
        "bulk-full",
        b"a",
        b"\xff\0",
        key=pa.array(["k", None]),
        headers=pa.array([[("h", "x"), ("i", "")], None], pa.map_(pa.string(), pa.string())),
        tag=pa.array([None, "red"]),
        deliver_at=pa.array([None, 1_000], pa.timestamp("us", "UTC")),
    )
    assert put(client, "full", stream(table), "?index=7&ttl_ms=60000").status == 201
    assert link.post("ledger", "full-app", "0", parts=[{"part": "full", "count": 2}])["messages"] == 2
    first, second = sorted(client.messages("bulk-full"), key=lambda one: one.sequence)
    assert (first.value, first.key, first.headers, first.tag) == (b"a", "k", {"h": "x", "i": ""}, None)
    assert (second.value, second.key, second.headers, second.tag) == (b"\xff\0", None, None, "red")


def test_several_record_batches_are_one_request(client: RawClient, link: Link) -> None:
    made = io.BytesIO()
    table = rows("bulk-several", *[str(number).encode() for number in range(100)])
    with pa.ipc.new_stream(made, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    answer = put(client, "several", made.getvalue())
    assert answer.json() == {"part": "several", "messages": 100, "duplicate": False}
    assert put(client, "several", made.getvalue()).json()["duplicate"] is True
    link.post("ledger", "several-app", "0", parts=[{"part": "several", "count": 100}])
    by_sequence = sorted(client.messages("bulk-several"), key=lambda one: one.sequence)
    assert [one.value for one in by_sequence] == [str(number).encode() for number in range(100)]


TEXT, MAP = pa.string(), pa.map_(pa.string(), pa.string())
REFUSED = {
    "compressed": (stream(rows("t", b"x" * 10_000), "lz4"), 400),
    "compressed with zstd": (stream(rows("t", b"x" * 10_000), "zstd"), 400),
    "a dictionary": (stream(pa.table({"topic": pa.array(["t"]).dictionary_encode(), "value": [b"x"]})), 400),
    "no topic": (stream(pa.table({"value": [b"x"]})), 400),
    "no value": (stream(pa.table({"topic": ["t"]})), 400),
    "another column": (stream(rows("t", b"x", price=pa.array([1]))), 400),
    "text for a value": (stream(pa.table({"topic": ["t"], "value": ["x"]})), 400),
    "a number for a key": (stream(rows("t", b"x", key=pa.array([1]))), 400),
    "numbers in headers": (stream(rows("t", b"x", headers=pa.array([[("a", 1)]], pa.map_(TEXT, pa.int32())))), 400),
    "a null value": (stream(pa.table({"topic": ["t"], "value": pa.array([None], pa.binary())})), 400),
    "a null topic": (stream(pa.table({"topic": pa.array([None], TEXT), "value": [b"x"]})), 400),
    "a bad topic": (stream(rows("a b", b"x")), 400),
    "a long key": (stream(rows("t", b"x", key=pa.array(["k" * 1_025]))), 413),
    "a long tag": (stream(rows("t", b"x", tag=pa.array(["k" * 129]))), 413),
    "a null header": (stream(rows("t", b"x", headers=pa.array([[("a", None)]], MAP))), 400),
    "an unnamed header": (stream(rows("t", b"x", headers=pa.array([[("", "v")]], MAP))), 400),
    "many headers": (stream(rows("t", b"x", headers=pa.array([[(str(n), "v") for n in range(65)]], MAP))), 400),
    "a time before 1970": (stream(rows("t", b"x", deliver_at=pa.array([-1], pa.timestamp("ms")))), 400),
    "a time after 9999": (stream(rows("t", b"x", deliver_at=pa.array([253_402_300_800], pa.timestamp("s")))), 400),
    "a long value": (stream(rows("t", b"x" * (4 * 1024 * 1024 + 1))), 413),
    "nothing": (b"", 400),
    "no Arrow": (b"hello, broker", 400),
    "JSON": (b'{"messages": []}', 400),
    "half a stream": (stream(rows("t", b"x" * 1_000))[:400], 400),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_an_arrow_part_must_not_hold(client: RawClient, what: str) -> None:
    body, status = REFUSED[what]
    answer = put(client, "refused", body)
    assert answer.status == status, answer.body
    assert answer.problem().detail
    assert client.request("GET", "/healthz").status == 200
    assert client.request("DELETE", "/v1/parts/refused").status == 204
    assert not client.batch(Prepare(f"still-{uuid.uuid4()}", "g", [OutgoingMessage("t", b"x")]))[0]


def test_too_many_rows_at_once_are_refused(client: RawClient) -> None:
    answer = put(client, "rows", stream(rows("t", *[b""] * 100_001)))
    assert (answer.status, answer.problem().code) == (413, "too_large")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_stream_is_refused_or_understood_and_never_more(client: RawClient, data: st.DataObject) -> None:
    whole = bytearray(stream(rows("bulk-damaged", b"abc", b"de", key=pa.array(["k", None]))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    answer = put(client, f"damaged-{uuid.uuid4()}", bytes(whole))
    assert answer.status in (201, 400, 413), answer.body
    assert client.request("GET", "/healthz").status == 200


# --- the ledger ----------------------------------------------------------------------------------------------------


def test_a_batch_is_committed_once_over_http(client: RawClient, link: Link) -> None:
    link.post_arrow("parts", "l1", body=stream(rows("bulk-ledger", b"a", b"b")), index=0)
    first = link.post("ledger", "ledger-app", "3", parts=[{"part": "l1", "count": 2}])
    assert (first["duplicate"], first["last"], first["messages"]) == (False, 3, 2)
    again = link.post("ledger", "ledger-app", "3", parts=[{"part": "l1", "count": 2}])
    assert (again["duplicate"], again["gid"]) == (True, first["gid"])
    older = link.post("ledger", "ledger-app", "1", parts=[])
    assert (older["duplicate"], older["last"], older["gid"]) == (True, 3, None)
    assert link.get("ledger", "ledger-app")["version"] == 3
    assert "ledger-app" in [one["app"] for one in link.get("ledger")["apps"]]
    assert len(client.messages("bulk-ledger")) == 2
    link.delete("ledger", "ledger-app")
    assert client.request("GET", "/v1/ledger/ledger-app").status == 404


def test_a_batch_survives_a_killed_broker() -> None:
    with running_broker() as broker, Link(broker.url, patience=20) as link, RawClient(broker.url) as client:
        values = [f"{number}-{'x' * 1_000}".encode() for number in range(500)]
        link.post_arrow("parts", "p", body=stream(rows("t", *values)), index=0)
        broker.kill()
        broker.start()
        assert link.post("ledger", "app", "0", parts=[{"part": "p", "count": 500}])["messages"] == 500
        broker.kill()
        broker.start()
        assert link.post("ledger", "app", "0", parts=[{"part": "p", "count": 500}])["duplicate"] is True
        assert sorted(one.value for one in client.messages("t")) == sorted(values)


# --- tables --------------------------------------------------------------------------------------------------------


def table_rows(link: Link, name: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        with link.arrow("tables", name, **query) as response:
            query["after"] = response.getheader("Tallystick-Next")
            found += pa.ipc.open_stream(response).read_all().to_pylist()
        if query["after"] is None:
            return found


def test_tables_over_http(client: RawClient, link: Link) -> None:
    for number in range(25):
        client.do(Prepare(f"table-{number:02}", "tables", [OutgoingMessage("bulk-tables", b"x", headers={"a": "b"})]))
    pending = table_rows(link, "transactions", state="pending", group="tables", limit=4)
    assert sorted(row["gid"] for row in pending) == [f"table-{number:02}" for number in range(25)]
    half = table_rows(link, "half", group="tables", limit=7)
    assert {(row["topic"], row["value"], row["headers"][0]) for row in half} == {("bulk-tables", b"x", ("a", "b"))}
    assert table_rows(link, "transactions", state="pending", group="tables", older_than_ms=3_600_000) == []
    splits = link.get("tables", "transactions", "splits", n=3)["splits"]
    by_split = [row["gid"] for one in splits for row in table_rows(link, "transactions", **one)]
    assert sorted(by_split) == sorted(row["gid"] for row in table_rows(link, "transactions"))
    assert table_rows(link, "op")
    assert table_rows(link, "offsets") == []


def test_columns_of_a_table_can_be_chosen(client: RawClient, link: Link) -> None:
    client.do(Prepare("chosen", "shop", [OutgoingMessage("orders", b"v")]))
    for columns in ("gid", "source,gid", "checks,state,gid"):
        with link.arrow("tables", "transactions", state="prepared", columns=columns) as answer:
            table = pa.ipc.open_stream(answer.read()).read_all()
        assert table.column_names == columns.split(",")
        assert "chosen" in table["gid"].to_pylist()


@pytest.mark.parametrize(
    "path",
    [
        *("nothing", "transactions?limit=0", "transactions?limit=x", "transactions?state=odd", "op?after=x"),
        *("transactions?after=0.zz", "half?group=a%20b", "transactions?older_than_ms=-1", "transactions/splits?n=0"),
        *("transactions?columns=gid,nothing", "transactions?columns=", "op?columns=gid,gid"),
    ],
)
def test_tables_refuse_what_they_do_not_know(client: RawClient, path: str) -> None:
    answer = client.request("GET", f"/v1/tables/{path}", None, {"Accept": ARROW})
    assert answer.status in (400, 404)
    assert answer.problem().detail


# --- topics --------------------------------------------------------------------------------------------------------


def test_waiting_for_several_topics(client: RawClient, broker: BrokerProcess, link: Link) -> None:
    client.do(Send([OutgoingMessage("wait-a", b"1"), OutgoingMessage("wait-b", b"1")]))
    seen = link.get("topics", names="wait-a,wait-b,wait-none")
    assert [one["name"] for one in seen["topics"]] == ["wait-a", "wait-b"]
    client.do(Send([OutgoingMessage("wait-other", b"1")]))
    began = time.monotonic()
    same = link.get("topics", names="wait-a,wait-b", position=seen["position"], wait_ms=300)
    assert time.monotonic() - began >= 0.29
    assert same["position"] == seen["position"]

    def later() -> None:
        time.sleep(0.2)
        with RawClient(broker.url) as other:
            other.do(Send([OutgoingMessage("wait-b", b"2")]))

    sending = threading.Thread(target=later)
    sending.start()
    began = time.monotonic()
    newer = link.get("topics", names="wait-a,wait-b", position=seen["position"], wait_ms=60_000)
    sending.join()
    assert time.monotonic() - began < 50
    assert newer["position"] != seen["position"]
    assert sum(newer["topics"][1]["ends"]) == 2


def test_only_the_columns_that_are_asked_for(client: RawClient, link: Link) -> None:
    client.do(Send([OutgoingMessage("columns", b"v", key="k")]))
    queue = next(queue for queue, end in enumerate(link.get("topics", "columns")["ends"]) if end)
    path = ("topics", "columns", "queues", str(queue), "messages")
    with link.arrow(*path, offset=0, columns="key,offset") as response:
        assert pa.ipc.open_stream(response).read_all().to_pylist() == [{"offset": 0, "key": "k"}]
    answer = client.request("GET", f"/v1/{'/'.join(path)}?columns=key,price", None, {"Accept": ARROW})
    assert (answer.status, answer.problem().field) == (400, "columns")

"""Bytes of a stored body that have changed, or are gone: found, named and never delivered, however they are read."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from stored_columns import MARK, ROWS, committed, prepared, put_part, segments, shown, values_of
from tallystick.api.http.arrow import batch_of_columns, schema
from tallystick.columnar import body
from tallystick.core.errors import DamagedData
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, Nack, Send
from tallystick.core.wire import ARROW, MSGPACK
from tallystick.link import Link
from tallystick.spark.source.messages import read_log
from tallystick.spark.source.ranges import Range
from tallystick.store.protocol import PutTopic
from tallystick.store.rocksdb import RocksStore, open_rocksdb

pytestmark = pytest.mark.fault

NOW = 1_700_000_000_000
NAMES = ("first", "second", "third")
WHERE = f"d/0, from offset {ROWS}"  # of the second body


def changed(path: Path, position: int) -> None:
    """Once more, and it is as it was."""
    file = os.open(path, os.O_RDWR)
    (byte,) = os.pread(file, 1, position)
    os.pwrite(file, bytes([byte ^ 0x10]), position)
    os.close(file)


def second_body(path: Path) -> tuple[int, int, int]:
    """Where its halves begin, and where it ends."""
    content, begins = path.read_bytes(), []
    at = content.find(MARK)
    while at >= 0:
        begins.append(at)
        at = content.find(MARK, at + 1)
    assert len(begins) == 2 * len(NAMES)
    return begins[2], begins[3], begins[4]


# --- every byte, in one process --------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    made = open_rocksdb(tmp_path / "data")
    try:
        made.write([PutTopic("d", 1)], NOW)
        for version, name in enumerate(NAMES, 1):
            made.write([prepared("d", name), committed(version, name)], NOW)
        yield made
    finally:
        made.close()


def told_nothing_of(store: RocksStore, path: Path, positions: Iterator[int] | range) -> list[int]:
    """Those of the positions where a changed byte is not found."""
    unnoticed = []
    for position in positions:
        changed(path, position)
        (found,) = store.read("d", 0, ROWS, 1, 1, "all").columns
        try:
            batch_of_columns(found, "d", 0, 0, 10**6)
            told = ""
        except DamagedData as error:
            told = str(error)
        if not told.startswith(WHERE):
            unnoticed.append(position)
        changed(path, position)
    return unnoticed


@pytest.mark.full
def test_each_byte_of_a_body_counts(store: RocksStore, tmp_path: Path) -> None:
    (path,) = segments(tmp_path / "data")
    head, _, end = second_body(path)
    assert told_nothing_of(store, path, range(head, end)) == []
    assert shown(store) == {"d": sorted(value for name in NAMES for value in values_of("d", name))}


def test_bytes_of_all_regions_of_a_body_count(store: RocksStore, tmp_path: Path) -> None:
    (path,) = segments(tmp_path / "data")
    head, values, end = second_body(path)
    for begin in (head, values):
        assert told_nothing_of(store, path, range(begin, begin + 64)) == []
    assert told_nothing_of(store, path, range(head, end, 37)) == []
    assert told_nothing_of(store, path, range(end - 64, end)) == []


def test_without_the_checksum_changed_values_would_be_delivered(
    store: RocksStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "_verified", lambda stored, where: body._HEAD.unpack(stored[: body._HEAD.size])[1:])
    (path,) = segments(tmp_path / "data")
    _, _, end = second_body(path)
    last_values = range(end - 1_000, end - 500)
    assert told_nothing_of(store, path, last_values) == list(last_values)


# --- however it is read ----------------------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """With a topic of one queue: a message, three bodies, a message; and another topic."""
    with running_broker(tmp_path, default_queues=1) as made, RawClient(made.url) as client, Link(made.url) as link:
        for version, name in enumerate(NAMES, 1):
            assert put_part(client, "d", name).status == 201
            link.post("ledger", "app", str(version), parts=[{"part": name, "count": ROWS}])
        client.do(Send([OutgoingMessage("d", b"last"), OutgoingMessage("other", b"well")], "s"))
        yield made


def flipped(path: Path) -> None:
    _, values, end = second_body(path)
    changed(path, (values + end) // 2)


def cut_off(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(second_body(path)[1] + 100)


def cut_in_the_head(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(second_body(path)[0] + 10)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def taken_away(path: Path) -> None:
    path.unlink()


def assert_told(answer: Any, where: str) -> None:
    problem = answer.problem()
    assert (answer.status, problem.code) == (500, "damaged_data")
    assert problem.detail.startswith(where), problem.detail


@pytest.mark.parametrize(
    "harm",
    [
        flipped,
        taken_away,
        *(pytest.param(harm, marks=pytest.mark.full) for harm in (cut_off, cut_in_the_head, emptied)),
    ],
)
def test_no_way_of_reading_delivers_what_is_damaged(broker: BrokerProcess, harm: Any) -> None:
    (path,) = segments(broker.data_dir)
    harm(path)
    all_gone = harm in (emptied, taken_away)
    damaged_at = 0 if all_gone else ROWS
    before = [] if all_gone else values_of("d", "first")
    where = f"d/0, from offset {damaged_at}"
    with RawClient(broker.url) as client:
        for kind in ("application/json", MSGPACK, ARROW):
            answer = client.request(
                "GET", f"/v1/topics/d/queues/0/messages?offset={damaged_at}", None, {"Accept": kind}
            )
            assert_told(answer, where)
        assert read_until_damage(client) == before
        assert arrow_until_damage(client) == before
        assert received_until_damage(client) == before
        assert client.json("GET", "/v1/groups").status == 200
        assert [one.value for one in client.messages("other")] == [b"well"]
        assert [one.value for one in client.read("d", 0, 3 * ROWS)[0]] == [b"last"]
    assert spark_until_damage(broker) == before


def read_until_damage(client: RawClient) -> list[bytes]:
    def read(values: list[bytes]) -> None:
        found, _, _ = client.read("d", 0, len(values))
        values += [one.value for one in found]

    return until_damage(read)


def until_damage(add: Callable[[list[bytes]], None]) -> list[bytes]:
    """What is added again and again until the broker tells of damage, and where that is."""
    values: list[bytes] = []
    while True:
        try:
            add(values)
        except DamagedData as error:
            told = str(error)
            break
    assert told.startswith("d/0, from offset")
    return values


def arrow_until_damage(client: RawClient) -> list[bytes]:
    """The answer breaks off where the damage is, unless it begins there."""
    try:
        answer = client.request("GET", "/v1/topics/d/queues/0/messages", None, {"Accept": ARROW})
    except http.client.IncompleteRead as error:
        content = error.partial
    else:
        assert_told(answer, "d/0")
        return []
    values: list[bytes] = pa.ipc.open_stream(content).read_all().column("value").to_pylist()
    return values


def received_until_damage(client: RawClient) -> list[bytes]:
    def receive(values: list[bytes]) -> None:
        values += [one.message.value for one in client.receive("g", "d", start="earliest", max=150)]

    return until_damage(receive)


def spark_until_damage(broker: BrokerProcess) -> list[bytes]:
    """The error comes at once, although Spark's source is patient with a broker that is away."""
    began = time.monotonic()
    batches = read_log(broker.url, Range("d", 0, 0, 3 * ROWS), 120.0)

    def read(values: list[bytes]) -> None:
        values += next(batches).column("value").to_pylist()

    values = until_damage(read)
    assert time.monotonic() - began < 60
    return values


@pytest.mark.full
def test_what_is_lent_when_it_is_damaged_is_lent_again_when_it_was_restored(broker: BrokerProcess) -> None:
    (path,) = segments(broker.data_dir)
    kept = path.read_bytes()
    with RawClient(broker.url) as client:
        lent = client.receive("g", "d", start="earliest", max=2 * ROWS)
        assert len(lent) == 2 * ROWS
        broker.kill()  # with what it holds in memory
        flipped(path)
        broker.start()
        client.close()
        receipts = [one.receipt for one in lent]
        with pytest.raises(DamagedData):
            client.do(Nack("g", receipts, dead=True))
        client.do(Nack("g", receipts, delay_ms=0))
        # The cursor is behind the damage, so what follows it is lent as well.
        assert received_until_damage(client) == [*values_of("d", "first"), *values_of("d", "third"), b"last"]
        path.write_bytes(kept)
        rest = client.receive("g", "d", max=1_000)
        assert [one.message.value for one in rest] == values_of("d", "second")
        client.do(Ack("g", [one.receipt for one in rest]))


def test_the_number_of_a_file_that_was_taken_away_is_not_given_again(broker: BrokerProcess) -> None:
    """Another body of the same size at the same place would else be taken for the lost one."""
    (path,) = segments(broker.data_dir)
    with RawClient(broker.url) as client, Link(broker.url) as link:
        broker.stop()
        path.unlink()
        broker.start()
        client.close()
        link.close()
        assert put_part(client, "e", "fourt").status == 201  # as long as "first"
        link.post("ledger", "app", "4", parts=[{"part": "fourt", "count": ROWS}])
        assert_told(client.json("GET", "/v1/topics/d/queues/0/messages"), "d/0, from offset 0")
        assert [one.value for one in client.messages("e")] == values_of("e", "fourt")
        assert segments(broker.data_dir) != [path]


@pytest.mark.full
def test_the_columns_that_are_not_damaged_can_be_read(broker: BrokerProcess) -> None:
    (path,) = segments(broker.data_dir)
    flipped(path)  # among the values
    names = ",".join(name for name in schema().names if name != "value")
    with RawClient(broker.url) as client:
        query = f"columns={names}&end={3 * ROWS}"
        answer = client.request("GET", f"/v1/topics/d/queues/0/messages?{query}", None, {"Accept": ARROW})
        assert answer.status == 200, json.dumps(answer.headers)
        assert pa.ipc.open_stream(answer.body).read_all().num_rows == 3 * ROWS

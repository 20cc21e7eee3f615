"""Disks that fail or fill up: nothing is acknowledged that is not durable, and the broker says what is wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from broker_tracer import injected, newest_log
from disks import MIB, fill

from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import RawClient
from tallystick.core.errors import StorageFailed, StorageFull, TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, Commit, Prepare, Rollback, Send

pytestmark = pytest.mark.fault


def send(number: int, size: int = 10) -> Send:
    return Send([OutgoingMessage("orders", bytes(size))], f"s{number}")


def prepare(gid: str, size: int = 10) -> Prepare:
    return Prepare(gid, "shop", [OutgoingMessage("orders", bytes(size))])


# --- fsync fails -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_fsync_stops_the_store_for_good_and_a_restart_keeps_what_was_acknowledged(
    tmp_path: Path, error: str
) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.url) as client:
        acknowledged = [number for number in range(5) if client.do(send(number))]
        client.do(prepare("half"))
        fault = injected(broker, f"fdatasync:error={error}:when=1", newest_log(broker))
        with fault, pytest.raises(StorageFailed, match="fsync failed"):
            client.do(send(99))
        for op in (send(100), Commit("half"), Rollback("x"), prepare("y")):
            with pytest.raises(StorageFailed, match="restart the broker"):
                client.do(op)
        assert_not_ready(client)
        answer = client.json("POST", "/v1/messages", {"messages": [{"topic": "orders", "value": "x"}]})
        assert "has stopped" in answer.problem().title
        assert client.json("GET", "/healthz").status == 200
        assert b"tallystick_store_failed 1.0" in client.request("GET", "/metrics").body
        for gid in ("s99", "half"):
            with pytest.raises(StorageFailed):  # whether the last write is durable is not known: nobody is told
                client.transaction(gid)
        assert {one.gid for one in client.messages("orders")} == {f"s{number}" for number in acknowledged}
        broker.kill()
        broker.start()
        client.close()
        found = [one.gid for one in client.messages("orders")]
        assert {f"s{number}" for number in acknowledged} <= set(found) <= {*(f"s{n}" for n in acknowledged), "s99"}
        assert len(found) == len(set(found))
        client.do(Commit("half"))


def assert_not_ready(client: RawClient) -> None:
    answer = client.json("GET", "/readyz")
    assert answer.status == 503
    assert answer.json()["reason"]


def test_a_failed_write_of_the_log_is_not_acknowledged_either(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.url) as client:
        client.do(send(1))
        with injected(broker, "write:error=EIO:when=1", newest_log(broker)), pytest.raises(StorageFailed):
            client.do(send(2))
        with pytest.raises(StorageFailed):
            client.do(send(3))
        assert_not_ready(client)
        assert broker.stop() == 0, "a broker whose disk failed can still be stopped in the usual way"
        broker.start()
        client.close()
        assert {one.gid for one in client.messages("orders")} == {"s1"}
        client.do(send(2))


# --- the disk is full ------------------------------------------------------------------------------------------------


def test_below_the_reserve_new_messages_are_refused_and_the_rest_goes_on(tmp_path: Path, small_disk: Path) -> None:
    with (
        running_broker(tmp_path, data_dir=small_disk / "data", min_free_bytes=16 * MIB) as broker,
        RawClient(broker.url) as client,
    ):
        for gid in ("h1", "h2", "h3"):
            client.do(prepare(gid, 1_000))
        ballast = fill(small_disk, 8 * MIB)
        time.sleep(0.2)
        for op in (prepare("new"), send(1)):
            with pytest.raises(StorageFull, match="nearly full"):
                client.do(op)
        answer = client.json("POST", "/v1/messages", {"messages": [{"topic": "orders", "value": "x"}]})
        assert (answer.status, answer.problem().code) == (507, "storage_full")
        assert "Retry-After".lower() in answer.headers
        assert_not_ready(client)
        client.do(Commit("h1"))
        client.do(Rollback("h2"))
        (delivery,) = client.receive("g", "orders")
        client.do(Ack("g", [delivery.receipt]))
        refused, done = client.batch(prepare("new"), Commit("h3"))
        assert refused is not None
        assert refused.error == "storage_full"
        assert done is None
        assert client.transaction("new") is None
        ballast.unlink()
        time.sleep(0.2)
        client.do(prepare("new"))
        client.do(Commit("new"))
        assert {one.gid for one in client.messages("orders")} == {"h1", "h3", "new"}
        assert client.json("GET", "/readyz").status == 200
        assert broker.running


def test_a_disk_that_is_really_full_stops_the_store_until_there_is_room_again(tmp_path: Path, small_disk: Path) -> None:
    with (
        running_broker(tmp_path, data_dir=small_disk / "data", min_free_bytes=0) as broker,
        RawClient(broker.url) as client,
    ):
        client.do(prepare("half", 1_000))
        ballast = fill(small_disk, 2 * MIB)
        acknowledged: list[str] = []
        with pytest.raises(StorageFailed, match=r"(?i)no space"):
            send_until_refused(client, acknowledged)
        assert acknowledged
        assert_not_ready(client)
        shown = client.json("GET", "/readyz").json()["reason"]
        assert "space" in shown.lower(), shown
        time.sleep(1)
        assert client.json("GET", "/healthz").status == 200
        ballast.unlink()
        for op in (Commit("half"), send(1_000)):
            eventually(lambda op=op: client.do(op) or True, "there is room again", ignoring=(TallystickError,))
        assert client.json("GET", "/readyz").status == 200
        found = {one.gid for one in client.messages("orders")}
        last = f"s{len(acknowledged)}"
        assert {*acknowledged, "half", "s1000"} <= found <= {*acknowledged, "half", "s1000", last}
        assert_metrics_move(client)
        broker.kill()
        broker.start()
        client.close()
        assert {one.gid for one in client.messages("orders")} == found


def send_until_refused(client: RawClient, acknowledged: list[str]) -> None:
    for number in range(200):
        client.do(send(number, 100_000))
        acknowledged.append(f"s{number}")


def assert_metrics_move(client: RawClient) -> None:
    """What runs beside the writer has survived as well."""
    client.do(prepare("counted"))
    deadline = time.monotonic() + 10
    while b"tallystick_pending 1.0" not in client.request("GET", "/metrics").body:
        assert time.monotonic() < deadline, "the counts have stopped"
        time.sleep(0.2)
    client.do(Rollback("counted"))


# --- one directory, two brokers --------------------------------------------------------------------------------------


def second(broker: BrokerProcess, directory: Path) -> BrokerProcess:
    directory.mkdir()
    return BrokerProcess(directory, {"data_dir": broker.data_dir})


def test_a_second_broker_on_the_same_directory_refuses_to_start(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.url) as client:
        client.do(send(1))
        other = second(broker, tmp_path / "second")
        other.spawn()
        assert other.wait() != 0
        text = other.log_text()
        assert "in use by another broker" in text
        assert str(broker.pid) in text
        client.do(send(2))
        broker.kill()
        other.start()
        try:
            with RawClient(other.url) as successor:
                assert {one.gid for one in successor.messages("orders")} == {"s1", "s2"}
        finally:
            other.kill()


def test_a_broker_that_drains_keeps_its_directory_until_it_is_done(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.url) as client:
        client.do(send(1))
        broker.terminate()
        other = second(broker, tmp_path / "second")
        try:
            for _ in range(20):
                other.spawn()
                if not other.ends_before_ready():
                    break
                assert "in use by another broker" in other.log_text()
                other.kill()
            assert broker.get("/healthz") is None, "two brokers serve one directory"
            with RawClient(other.url) as successor:
                assert {one.gid for one in successor.messages("orders")} == {"s1"}
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda data: (data / "format.json").write_text(json.dumps({"format": 99, "store": "x"})), "format 99"),
        (lambda data: (data / "format.json").write_text("{"), "damaged"),
        (lambda data: (data / "format.json").unlink(), "no format.json"),
    ],
)
def test_a_directory_of_another_format_is_left_alone(tmp_path: Path, damage: object, text: str) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.url) as client:
        client.do(send(1))
        broker.stop()
        assert callable(damage)
        damage(broker.data_dir)
        before = sorted(path.name for path in (broker.data_dir / "db").iterdir())
        broker.spawn()
        assert broker.wait() != 0
        assert text in broker.log_text()
        assert sorted(path.name for path in (broker.data_dir / "db").iterdir()) == before

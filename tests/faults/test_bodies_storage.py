"""Disks that fail or fill up while bodies are written, and brokers killed there: as with the log, nothing is
acknowledged that is not durable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from broker_tracer import injected, newest_log, traced
from disks import MIB, fill

from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import Gone, RawClient
from stored_columns import ROWS, put_part, segments, values_of
from tallystick.core.errors import StorageFailed, TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import CommitBatch, PartRef, Send

pytestmark = pytest.mark.fault


def put(client: RawClient, name: str, rows: int = ROWS) -> Any:
    """Raises what the broker refuses."""
    answer = put_part(client, "d", name, rows)
    if answer.status != 201:
        problem = answer.problem()
        raise StorageFailed(problem.detail) if problem.code == "storage_failed" else AssertionError(problem)
    return answer.json()


def put_all(client: RawClient, names: list[str], taken: list[str] | None = None, rows: int = ROWS) -> None:
    """One after the other; those that were acknowledged are added to `taken`."""
    for name in names:
        put(client, name, rows)
        if taken is not None:
            taken.append(name)


def commit(client: RawClient, version: int, *names: str, rows: int = ROWS) -> None:
    client.do(CommitBatch("app", version, f"g{version}", [PartRef(name, rows) for name in names]))


def values(client: RawClient) -> list[bytes]:
    return sorted(one.value for one in client.messages("d"))


def wanted(*names: str, rows: int = ROWS) -> list[bytes]:
    return sorted(value for name in names for value in values_of("d", name, rows))


def begin(broker: BrokerProcess, client: RawClient) -> Path:
    """A part that is committed, one that is not; the segment that both lie in."""
    for name in ("p1", "p2"):
        put(client, name)
    commit(client, 1, "p1")
    (segment,) = segments(broker.data_dir)
    return segment


@pytest.mark.parametrize("call", ["fdatasync", pytest.param("write", marks=pytest.mark.full)])
def test_an_error_of_the_disk_stops_the_store_and_a_restart_keeps_what_was_acknowledged(
    tmp_path: Path, call: str
) -> None:
    with running_broker(tmp_path, default_queues=1) as broker, RawClient(broker.url) as client:
        segment = begin(broker, client)
        with injected(broker, f"{call}:error=EIO:when=1", segment), pytest.raises(StorageFailed, match="restart"):
            put(client, "p3")
        for attempt in (lambda: put(client, "p4"), lambda: client.do(Send([OutgoingMessage("d", b"x")], "s"))):
            with pytest.raises(StorageFailed, match="restart the broker"):
                attempt()
        assert client.json("GET", "/readyz").status == 503
        assert values(client) == wanted("p1")
        broker.kill()
        broker.start()
        client.close()
        assert put(client, "p3")["duplicate"] is False
        commit(client, 2, "p2", "p3")
        assert values(client) == wanted("p1", "p2", "p3")


@pytest.mark.parametrize("call", [pytest.param("write", marks=pytest.mark.full), "fdatasync"])
@pytest.mark.parametrize("when", [1, pytest.param(2, marks=pytest.mark.full)])
def test_killed_while_a_body_is_written(tmp_path: Path, call: str, when: int) -> None:
    with running_broker(tmp_path, default_queues=1) as broker, RawClient(broker.url) as client:
        segment = begin(broker, client)
        with injected(broker, f"{call}:signal=KILL:when={when}", segment):
            with pytest.raises(Gone):
                put_all(client, ["p3", "p4"])
            broker.wait()
        broker.start()
        client.close()
        for name in ("p3", "p4"):
            put(client, name)
            assert put(client, name)["duplicate"] is True
        commit(client, 2, "p2", "p3", "p4")
        assert values(client) == wanted("p1", "p2", "p3", "p4")
        client.json("DELETE", "/v1/topics/d")
        broker.restart()
        eventually(lambda: segments(broker.data_dir) == [], "nothing is left over")


@pytest.mark.full
def test_a_full_disk_stops_the_store_until_there_is_room_again(tmp_path: Path, small_disk: Path) -> None:
    large = 10_000
    with (
        running_broker(tmp_path, data_dir=small_disk / "data", min_free_bytes=0, default_queues=1) as broker,
        RawClient(broker.url) as client,
    ):
        put(client, "p0", large)
        ballast = fill(small_disk, 6 * MIB)
        taken = ["p0"]
        with pytest.raises(StorageFailed, match=r"(?i)no space"):
            put_all(client, [f"p{number}" for number in range(1, 100)], taken, large)
        assert "space" in client.json("GET", "/readyz").json()["reason"].lower()
        for _ in range(3):  # and again, while the disk is full
            with pytest.raises(StorageFailed):
                put(client, "again", large)
        ballast.unlink()
        eventually(lambda: put(client, "again", large), "there is room again", ignoring=(TallystickError,))
        commit(client, 1, *taken, "again", rows=large)
        assert values(client) == wanted(*taken, "again", rows=large)
        broker.kill()
        broker.start()
        client.close()
        assert values(client) == wanted(*taken, "again", rows=large)


def test_a_body_is_durable_before_the_log_tells_of_it(tmp_path: Path) -> None:
    with running_broker(tmp_path, default_queues=1) as broker, RawClient(broker.url) as client:
        client.do(Send([OutgoingMessage("d", b"x")], "s"))
        log = newest_log(broker)
        with traced(broker, "openat,write,fsync,fdatasync") as calls:
            put(client, "p1")
            put(client, "p2")
            text = calls()
        (segment,) = segments(broker.data_dir)
        names = {str(segment): "segment", str(segment.parent): "directory", str(log): "log"}
        found = re.findall(r"(openat|write|fsync|fdatasync)\((?:AT_FDCWD<[^>]*>, \"([^\"]*)\"|\d+<([^>]*)>)", text)
        steps = [f"{call} {names[opened or path]}" for call, opened, path in found if (opened or path) in names]
        short = [step for step, before in zip(steps, [None, *steps], strict=False) if step != before]
        body = ["write segment", "fdatasync segment", "write log", "fdatasync log"]
        assert short == ["openat segment", "openat directory", "fsync directory", *body, *body]

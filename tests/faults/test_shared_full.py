"""The shared engine has no room: connections and small writes still work, and messages are refused until there is
room."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from disks import MIB, fill, small

from broker_clusters import running_cluster
from brokers import BrokerProcess
from eventually import eventually
from raw_client import RawClient
from servers import RedisServer, Server, redis_server
from shared_stores import FIXTURES, url_of
from tallystick.core.errors import StorageFull, TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Prepare, Rollback, Send
from tallystick.store.kv.engine import AREAS
from tallystick.store.shared.opening import open_shared

LOOK_SECONDS = 4.0  # for which the refusals are watched: about fifty requests, and several probes


class Place(NamedTuple):
    """A server, how its room is used up and given back, and the word for that."""

    url: str
    fill: Callable[[], object]
    free: Callable[[], object]
    reason: str


@contextmanager
def postgresql(request: pytest.FixtureRequest, path: Path) -> Iterator[Place]:
    """Its tables lie on a small disk. Its log lies elsewhere: without room for that, the server ends."""
    server: Server = request.getfixturevalue(FIXTURES["postgresql"])
    with small(server.directory / "room") as disk:
        shutil.chown(disk, server.directory.owner())
        (disk / "tables").mkdir()
        shutil.chown(disk / "tables", server.directory.owner())
        server.execute(f"create tablespace small location '{disk / 'tables'}'", "postgres")
        database = server.new_database()
        server.execute(f"alter database {database} set tablespace small", "postgres")
        ballast = disk / "ballast"
        yield Place(url_of(server, database), lambda: fill(disk, MIB), ballast.unlink, "No space left on device")
        server.execute(f"drop database {database} with (force)", "postgres")
        server.execute("drop tablespace small", "postgres")


@contextmanager
def mariadb(request: pytest.FixtureRequest, path: Path) -> Iterator[Place]:
    """InnoDB ends when its disk is really full, so triggers raise the error that it has for a full table."""
    server: Server = request.getfixturevalue(FIXTURES["mysql"])
    database = server.new_database()

    def fill_up() -> None:
        for area in AREAS:
            server.execute(
                f"create trigger full_{area} before insert on tallystick_store_{area} for each row "
                "signal sqlstate 'HY000' set mysql_errno = 1114, message_text = 'The table is full'",
                database,
            )

    def free() -> None:
        for area in AREAS:
            server.execute(f"drop trigger full_{area}", database)

    yield Place(url_of(server, database), fill_up, free, "is full")


@contextmanager
def redis(request: pytest.FixtureRequest, path: Path) -> Iterator[Place]:
    with redis_server() as server:
        yield Place(server.url, lambda: _set(server, "maxmemory", "1"), lambda: _set(server, "maxmemory", "0"), "full")


@contextmanager
def redis_that_cannot_save(request: pytest.FixtureRequest, path: Path) -> Iterator[Place]:
    with redis_server(save="3600 1") as server, closing(server.connect()) as client:

        def refuse() -> None:
            server.directory.chmod(0o500)
            client.bgsave()
            eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")

        def allow() -> None:
            server.directory.chmod(0o700)
            _set(server, "save", "")

        yield Place(server.url, refuse, allow, "cannot write to its disk")


def _set(server: RedisServer, name: str, value: str) -> None:
    with closing(server.connect()) as client:
        client.config_set(name, value)


Kind = Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Place]]
KINDS = [
    pytest.param(postgresql, marks=pytest.mark.postgresql),
    pytest.param(mariadb, marks=[pytest.mark.mariadb, pytest.mark.full]),
    redis,
    pytest.param(redis_that_cannot_save, marks=pytest.mark.full),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_engine_is_not_ready_until_a_write_succeeds(
    request: pytest.FixtureRequest, tmp_path: Path, kind: Kind
) -> None:
    with (
        kind(request, tmp_path) as place,
        running_cluster(place.url, brokers=1, stores=1) as cluster,
        RawClient(cluster.brokers[0].url) as client,
    ):
        (broker,) = cluster.brokers
        client.do(Prepare("half", "shop", [OutgoingMessage("orders", b"half")]))
        client.do(Send([OutgoingMessage("orders", b"first")], "first"))
        place.fill()
        refusal = eventually(lambda: refused(client), "a message is refused")
        assert place.reason in refusal.detail
        assert refusal.code == ("storage_failed" if kind is redis_that_cannot_save else "storage_full")
        assert not re.search("(?i)insert|update|select", refusal.detail), "no statement is shown"
        until = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < until:
            assert refused(client) is not None
            for _ in range(10):  # longer than a store that has failed is left alone
                answer = client.json("GET", "/readyz")
                assert answer.status == 503
                assert answer.json()["reason"]
                time.sleep(0.05)
        assert b"tallystick_store_failed{" in client.request("GET", "/metrics").body
        assert lines(broker.log_text()) == ["takes no work"]
        shown = cluster.view()
        assert shown["not_ready"]
        assert shown["stores"][0]["trouble"]
        place.free()
        eventually(lambda: refused(client) is None, "a message is taken")
        eventually(lambda: client.json("GET", "/readyz").status == 200, "the broker is ready")
        client.do(Rollback("half"))
        assert {one.gid for one in client.messages("orders")} >= {"first"}
        assert cluster.view()["not_ready"] == ""
        assert lines(broker.log_text()) == ["takes no work", "works again"]


FULL_KINDS = KINDS[:-1]  # Redis that cannot save refuses even to open a store


@pytest.mark.parametrize("kind", FULL_KINDS)
def test_a_broker_that_starts_on_a_full_engine_is_not_ready(
    request: pytest.FixtureRequest, tmp_path: Path, kind: Kind
) -> None:
    with (
        kind(request, tmp_path) as place,
        running_cluster(place.url, brokers=1, stores=1) as cluster,
    ):
        (broker,) = cluster.brokers
        with RawClient(broker.url) as client:
            client.do(Send([OutgoingMessage("orders", b"first")], "first"))
        start_full(broker, place)
        with RawClient(broker.url) as client:
            answer = eventually(lambda: not_ready_but_open(client), "the broker is not ready")
            assert place.reason in answer
            place.free()
            eventually(lambda: client.json("GET", "/readyz").status == 200, "the broker is ready")


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_transactions_are_resolved_and_listed_on_a_full_redis(
    request: pytest.FixtureRequest, tmp_path: Path, restarted: bool
) -> None:
    with (
        redis(request, tmp_path) as place,
        running_cluster(place.url, brokers=1, stores=1) as cluster,
    ):
        (broker,) = cluster.brokers
        with RawClient(broker.url) as client:
            for gid in ("first", "second", "third"):
                client.do(Prepare(gid, "shop", [OutgoingMessage("orders", gid.encode())]))
        if restarted:
            start_full(broker, place)
        else:
            place.fill()
        resolve_and_list(broker, restarted)


def resolve_and_list(broker: BrokerProcess, restarted: bool) -> None:
    with RawClient(broker.url) as client:
        if restarted:
            eventually(lambda: not_ready_but_open(client), "the store is open")
        client.do(Commit("first"))
        client.do(Rollback("second"))
        client.do(Commit("first"))
        listed = client.json("GET", "/v1/transactions?state=prepared")
        assert listed.status == 200
        assert [one["gid"] for one in listed.json()["transactions"]] == ["third"]
        refusals = [refused(client) for _ in range(20)]
        assert {error and error.code for error in refusals} == {"storage_full"}
        repeated = client.json(
            "POST", "/v1/transactions", {"gid": "fourth", "group": "shop", "messages": [{"topic": "a", "value": 1}]}
        )
        assert repeated.status == 507
        assert {one.value for one in client.messages("orders")} == {b"first"}


def test_a_store_on_a_full_redis_can_be_claimed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with redis(request, tmp_path) as place:
        before = open_shared(place.url, 0, allow_weak_durability=True)
        before.close()
        place.fill()
        with closing(open_shared(place.url, 0, allow_weak_durability=True)) as store:
            assert store.id == before.id
            assert store.epoch == before.epoch + 1
            with pytest.raises(StorageFull, match="full"):
                store.probe()


def start_full(broker: BrokerProcess, place: Place) -> None:
    """Fill the engine until it refuses a message, kill the broker, and start it again."""
    place.fill()
    with RawClient(broker.url) as client:
        eventually(lambda: refused(client), "a message is refused")
    broker.kill()
    broker.spawn()
    eventually(lambda: broker.get("/readyz") is not None, "the broker answers")


def not_ready_but_open(client: RawClient) -> str:
    """Why a broker that owns its store is not ready."""
    answer = client.json("GET", "/readyz")
    reason = answer.json().get("reason", "") if answer.status == 503 else ""
    return reason if "full" in reason or "No space" in reason else ""


def refused(client: RawClient) -> TallystickError | None:
    try:
        client.do(Send([OutgoingMessage("orders", bytes(100_000))]))
    except TallystickError as error:
        return error
    return None


def lines(log: str) -> list[str]:
    """What the log tells of the store, in order."""
    return [told for line in log.splitlines() for told in ("takes no work", "works again") if told in line]

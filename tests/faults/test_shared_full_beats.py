"""PostgreSQL without room for a single row: the beats of the brokers need room as well."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from disks import fill, small

from broker_clusters import running_cluster
from brokers import BrokerProcess
from eventually import eventually
from raw_client import RawClient
from servers import Server
from shared_stores import url_of
from tallystick.core.errors import Moved, StorageFull, TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send
from tallystick.store.kv.engine import AREAS, Changes
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared.opening import SharedStore, open_shared, registry_at, server_at
from tallystick.store.shared.registry import Member

pytestmark = [pytest.mark.fault, pytest.mark.postgresql]

ONE, OTHER = (Member(name, name, f"http://{name}") for name in ("one", "other"))
NO_ROOM = "No space left on device"
BEATS, MEMBERS, FENCES, UNITS = (
    f"tallystick_{name}" for name in ("cluster_beat", "cluster_member", "store_fence", "store_unit")
)
INSERTED = (UNITS, *(f"tallystick_store_{area}" for area in AREAS))
_REFUSE = f"""
    create or replace function refuse() returns trigger language plpgsql as $$ begin
        raise exception using errcode = 'disk_full', message = 'could not extend file: {NO_ROOM}';
    end $$
"""


class Tables:
    """The tables of a database, of which some have no room."""

    def __init__(self, server: Server, database: str) -> None:
        self._server, self._database = server, database
        self.url = url_of(server, database)

    def execute(self, statement: str) -> None:
        self._server.execute(statement, self._database)

    def refuse(self, table: str, what: str = "insert") -> None:
        self.execute(_REFUSE)
        self.execute(f"create trigger refuse before {what} on {table} for each row execute procedure refuse()")

    def allow(self, table: str) -> None:
        self.execute(f"drop trigger refuse on {table}")


@pytest.fixture
def tables(postgres: Server) -> Tables:
    return Tables(postgres, postgres.new_database())


# --- the registry ----------------------------------------------------------------------------------------------------


def test_a_beat_that_cannot_be_inserted_is_seen_by_the_others(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.store.shared.postgresql_registry.IN_PLACE_SECONDS", 0.0)
    with closing(registry_at(tables.url)) as registry, closing(registry_at(tables.url)) as other:
        registry.make(1)
        registry.look(beat(ONE, 1))
        other.look(beat(OTHER, 1))
        tables.refuse(BEATS)
        assert registry.look(beat(ONE, 2)).unheard == ""
        assert beats(other.look(beat(OTHER, 2))) == {"one": 2, "other": 2}
        assert beats(registry.look(beat(ONE, 3))) == {"one": 3, "other": 2}
        tables.allow(BEATS)
        assert beats(registry.look(beat(ONE, 4))) == {"one": 4, "other": 2}
        assert beats(other.look(beat(OTHER, 3))) == {"one": 4, "other": 3}


def test_the_members_are_seen_where_no_beat_can_be_stored(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.store.shared.postgresql_registry.IN_PLACE_SECONDS", 0.0)
    with closing(registry_at(tables.url)) as registry:
        registry.make(1)
        registry.look(beat(ONE, 1))
        tables.refuse(BEATS)
        tables.refuse(MEMBERS, "update")
        seen = registry.look(beat(ONE, 2))
        assert NO_ROOM in seen.unheard
        assert beats(seen) == {"one": 2}, "our own is known without the server"
        assert len(seen.holdings) == 1
        tables.allow(BEATS)
        assert registry.look(beat(ONE, 3)).unheard == ""


def beat(member: Member, number: int) -> Member:
    return Member(member.id, member.name, member.url, beat=number)


def beats(seen: object) -> dict[str, int]:
    return {member.id: member.beat for member in seen.members}  # type: ignore[attr-defined]


# --- a store ---------------------------------------------------------------------------------------------------------


def test_a_store_is_read_and_written_after_a_refusal_without_being_opened_again(tables: Tables) -> None:
    with closing(open_shared(tables.url, 0, allow_weak_durability=True)) as store:
        store.write([Send([OutgoingMessage("orders", b"first")], "first")], 1)
        tables.refuse("tallystick_store_log")
        tables.refuse(FENCES, "update")  # to open the store again would move values, which needs room
        for _ in range(2):
            with pytest.raises(StorageFull, match=NO_ROOM):
                store.write([Send([OutgoingMessage("orders", b"second")], "second")], 2)
            assert store.failure() is None
            assert store.transaction("first") is not None
            assert [topic.name for topic in store.topics()] == ["orders"]
        with pytest.raises(StorageFull, match=NO_ROOM):
            store.probe()
        assert readable(store) == 1
        tables.allow("tallystick_store_log")
        store.probe()
        store.write([Send([OutgoingMessage("orders", b"second")], "second")], 2)
        assert store.transaction("second") is not None


def test_a_store_is_claimed_and_read_where_nothing_can_be_inserted(tables: Tables) -> None:
    with (
        closing(open_shared(tables.url, 0, allow_weak_durability=True)) as store,
        closing(registry_at(tables.url)) as registry,
    ):
        store.write([Send([OutgoingMessage("orders", b"first")], "first")], 1)
        moved = store.server.fence()
        assert moved is not None
        store.write([Send([OutgoingMessage("orders", b"second")], "second")], 1)
        registry.make(1)
        for table in INSERTED:
            tables.refuse(table)
        (held,) = registry.look(beat(ONE, 1)).holdings
        registry.release(0, held.epoch)
        for number in (moved.unit - 1, moved.unit):
            assert not store.server.apply(held.epoch, number, Changes()), "a late copy of a unit is refused"
        epoch = registry.claim(0, held.epoch, "two")
        assert epoch is not None
        assert registry.claim(0, held.epoch, "three") is None
        with pytest.raises((StorageFull, Moved)):
            store.write([Send([OutgoingMessage("orders", b"late")], "late")], 1)
    with closing(SharedStore(server_at(tables.url, 0), epoch, StoreSettings())) as store:
        assert store.transaction("first") is not None
        assert readable(store) == 2
        with pytest.raises(StorageFull, match=NO_ROOM):
            store.probe()
        for table in INSERTED:
            tables.allow(table)
        store.write([Send([OutgoingMessage("orders", b"third")], "third")], 2)
        assert readable(store) == 3
    with closing(open_shared(tables.url, 0, allow_weak_durability=True)) as store:
        assert readable(store) == 3
        assert all(store.transaction(name) is not None for name in ("first", "second", "third"))


def readable(store: SharedStore) -> int:
    topic = store.topic("orders")
    assert topic is not None
    return sum(store.read("orders", queue, 0, 10, 10_000).next for queue in range(topic.queues))


# --- brokers ---------------------------------------------------------------------------------------------------------


@contextmanager
def full_to_the_last_byte(postgres: Server) -> Iterator[tuple[Tables, Callable[[], None], Callable[[], None]]]:
    """Tables on a small disk, how to fill it, and how to empty it. The beats, whose insert fails on such a disk after
    some time, fail at once."""
    with small(postgres.directory / "room") as disk:
        shutil.chown(disk, postgres.directory.owner())
        (disk / "tables").mkdir()
        shutil.chown(disk / "tables", postgres.directory.owner())
        postgres.execute(f"create tablespace small location '{disk / 'tables'}'", "postgres")
        database = postgres.new_database()
        postgres.execute(f"alter database {database} set tablespace small", "postgres")
        tables = Tables(postgres, database)

        def fill_up() -> None:
            tables.refuse(BEATS)
            fill(disk, 0)

        def free() -> None:
            (disk / "ballast").unlink()
            tables.allow(BEATS)

        try:
            yield tables, fill_up, free
        finally:
            postgres.execute(f"drop database {database} with (force)", "postgres")
            postgres.execute("drop tablespace small", "postgres")


def test_brokers_read_restart_and_leave_on_a_postgresql_without_a_byte(postgres: Server) -> None:
    with (
        full_to_the_last_byte(postgres) as (tables, fill_up, free),
        running_cluster(tables.url, brokers=1, stores=1, lease="2s") as cluster,
    ):
        (broker,) = cluster.brokers
        with RawClient(broker.url) as client:
            client.do(Send([OutgoingMessage("orders", b"first")], "first"))
            fill_up()
            eventually(lambda: refused(client), "a message is refused")
            for _ in range(20):
                assert refused(client) is not None
                assert client.messages("orders")[0].value == b"first"
            assert client.json("GET", "/v1/transactions/first").status == 200
            assert NO_ROOM in not_ready(client)
        assert broker.log_text().count("takes no work") == 1
        assert "has to wait" not in broker.log_text()
        broker.stop()
        broker.spawn()
        with RawClient(broker.url) as client:
            eventually(lambda: not_ready(client), "the broker listens, and is not ready", ignoring=(OSError,))
            eventually(lambda: reads(client), "the broker serves reads")
            free()
            eventually(lambda: client.json("GET", "/readyz").status == 200, "the broker is ready")


def test_a_broker_whose_beats_have_no_room_waits_for_it(tables: Tables) -> None:
    with running_cluster(tables.url, brokers=1, stores=1, lease="2s") as cluster:
        (broker,) = cluster.brokers
        broker.kill()
        tables.refuse(BEATS)
        tables.refuse(MEMBERS, "insert or update")
        broker.spawn()
        with RawClient(broker.url) as client:
            said = eventually(lambda: not_ready(client), "the broker says why it is not ready", ignoring=(OSError,))
            assert NO_ROOM in said
            tables.allow(BEATS)
            tables.allow(MEMBERS)
            eventually(lambda: client.json("GET", "/readyz").status == 200, "the broker is ready")


def test_a_store_that_cannot_be_claimed_for_lack_of_room_is_shown(tables: Tables) -> None:
    with running_cluster(tables.url, brokers=1, stores=1, lease="2s") as cluster:
        (broker,) = cluster.brokers
        broker.kill()
        tables.refuse(FENCES, "update")
        broker.spawn()
        with RawClient(broker.url) as client:
            eventually(lambda: NO_ROOM in not_ready(client), "the reason is shown", ignoring=(OSError,))
            tables.allow(FENCES)
            eventually(lambda: client.json("GET", "/readyz").status == 200, "the broker is ready")


def test_a_broker_leaves_though_its_stores_cannot_be_released_for_lack_of_room(tables: Tables) -> None:
    with running_cluster(tables.url, brokers=1, stores=1, lease="2s", drain_timeout="100s") as cluster:
        (broker,) = cluster.brokers
        tables.refuse(FENCES, "update")
        stop_within(broker, 50)
        assert broker.log_text().count("neither claimed nor released") == 1


def stop_within(broker: BrokerProcess, seconds: float) -> None:
    process = broker.process
    assert process is not None
    process.terminate()
    assert process.wait(seconds) == 0


def reads(client: RawClient) -> bool:
    answer = client.json("GET", "/v1/topics/orders/queues/0/messages?offset=0")
    assert answer.status != 507, "a read needs no room"
    return answer.status == 200


def not_ready(client: RawClient) -> str:
    answer = client.json("GET", "/readyz")
    return answer.json().get("reason", "") if answer.status == 503 else ""


def refused(client: RawClient) -> TallystickError | None:
    try:
        client.do(Send([OutgoingMessage("orders", bytes(20_000))]))
    except TallystickError as error:
        return error
    return None

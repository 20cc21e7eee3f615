"""`tallystick store copy`: what it prints, what it refuses, and what a kill in the middle leaves behind."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from command_line import Done, command, environment, one_line, tallystick

from brokers import running_broker
from eventually import eventually
from servers import Server
from shared_stores import url_of
from tallystick.core.errors import StorageFailed
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send
from tallystick.store.protocol import PutTopic
from tallystick.store.rocksdb import open_rocksdb
from tallystick.store.shared.opening import open_shared, server_at

pytestmark = pytest.mark.postgresql
SENT = [f"v{number}".encode() for number in range(50)]


class Shared(NamedTuple):
    """A database that holds no store yet, but has the tables."""

    server: Server
    database: str
    url: str

    def connect(self) -> psycopg.Connection[tuple[int]]:
        connection: psycopg.Connection[tuple[int]] = self.server.connect(self.database)
        return connection


@pytest.fixture
def shared(postgres: Server) -> Shared:
    database = postgres.new_database()
    made = Shared(postgres, database, url_of(postgres, database))
    with contextlib.closing(server_at(made.url, 0)) as server:
        server.create()
    return made


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with messages in it."""
    path = tmp_path / "data"
    with contextlib.closing(open_rocksdb(path)) as store:
        for number, value in enumerate(SENT):
            store.write([Send([OutgoingMessage("orders", value)], f"gid-{number}")], 1_700_000_000_000)
    return path


def copy(source: object, target: object, *more: str) -> Done:
    return tallystick("store", "copy", str(source), str(target), "--allow-weak-durability", *more)


def sent(url: str, number: int = 0) -> int:
    with contextlib.closing(open_shared(url, number, allow_weak_durability=True)) as store:
        return sum(sum(topic.ends) for topic in store.topics())


def sent_to(path: Path) -> int:
    with contextlib.closing(open_rocksdb(path)) as store:
        return sum(sum(topic.ends) for topic in store.topics())


def test_it_prints_count_and_checksum_of_what_was_copied_and_read_back(
    data: Path, shared: Shared, tmp_path: Path
) -> None:
    there = copy(data, shared.url, "--to-store", "3", "--json")
    assert there.code == 0, there.err
    made = there.json()
    assert made["store"] == json.loads((data / "format.json").read_text())["store"]
    assert made["copied"] == made["read_back"]
    assert made["copied"]["keys"] > len(SENT)
    assert len(made["copied"]["checksum"]) == 32
    back = copy(shared.url, tmp_path / "back", "--from-store", "3")
    assert back.code == 0, back.err
    assert back.out.count(made["copied"]["checksum"]) == 2
    assert "never both" in one_line(back.err)
    assert sent_to(tmp_path / "back") == len(SENT)


def test_a_target_that_holds_something_is_overwritten_only_by_force(data: Path, shared: Shared, tmp_path: Path) -> None:
    for target in (shared.url, tmp_path / "target"):
        assert copy(data, target).code == 0
        refused = copy(data, target)
        assert refused.code != 0
        assert "is not empty; --force" in one_line(refused.err)
        assert copy(data, target, "--force").code == 0
    assert sent(shared.url) == sent_to(tmp_path / "target") == len(SENT)
    (tmp_path / "target" / "letter.txt").write_text("dear")
    assert "other files" in one_line(copy(data, tmp_path / "target", "--force").err)


def test_what_cannot_be_copied_is_told_in_one_line(data: Path, shared: Shared, tmp_path: Path) -> None:
    assert "no data directory" in one_line(copy(tmp_path / "nothing", shared.url).err)
    assert not (tmp_path / "nothing").exists()
    told = one_line(copy(shared.url, tmp_path / "x", "--from-store", "5").err)
    assert "there is no store" in told
    assert "has no number" in one_line(copy(data, shared.url, "--from-store", "1").err)
    assert "begins with none of postgresql://" in one_line(copy(data, "ftp://host/x").err)
    weak = tallystick("store", "copy", str(data), shared.url)
    assert "may lose what it has acknowledged" in one_line(weak.err)
    with contextlib.closing(open_rocksdb(data)):
        assert "in use by another broker" in one_line(copy(data, shared.url).err)


def test_a_store_is_not_copied_onto_itself(data: Path, shared: Shared) -> None:
    assert "in use" in one_line(copy(data, data, "--force").err)
    copy(data, shared.url)
    assert "taken by somebody else" in one_line(copy(shared.url, shared.url, "--force").err)
    assert (sent_to(data), sent(shared.url)) == (len(SENT), len(SENT))


def test_a_store_is_not_put_under_two_numbers_of_a_cluster_to_be(data: Path, shared: Shared, tmp_path: Path) -> None:
    assert copy(data, shared.url).code == 0
    twice = copy(data, shared.url, "--to-store", "1")
    assert twice.code == 5
    assert "is on this server already, under the number 0" in one_line(twice.err)
    assert copy(data, shared.url, "--force").code == 0
    with running_broker(store=shared.url, stores=2, allow_weak_durability=True) as broker:
        assert tallystick("topics", "show", "orders", url=broker.url).code == 0


def test_it_is_told_what_a_target_holds(data: Path, shared: Shared) -> None:
    with contextlib.closing(open_shared(shared.url, 0, allow_weak_durability=True)) as store:
        store.write([PutTopic("invoices", 4), PutTopic("bills")], 1_700_000_000_000)
    assert "(topics: 2 (bills, invoices), messages: 0, transactions: none)" in one_line(copy(data, shared.url).err)
    assert copy(data, shared.url, "--to-store", "1").code == 0
    assert "(topics: 1 (orders), messages: 50, transactions: some)" in copy(data, shared.url, "--to-store", "1").err


def test_messages_of_other_stores_are_told_when_one_is_copied_back(data: Path, shared: Shared, tmp_path: Path) -> None:
    assert copy(data, shared.url, "--to-store", "1").code == 0
    alone = copy(shared.url, tmp_path / "alone", "--from-store", "1")
    assert "not copied" not in alone.err
    with contextlib.closing(open_shared(shared.url, 2, allow_weak_durability=True)) as store:
        store.write([Send([OutgoingMessage("orders", b"v")] * 3, "gid")], 1_700_000_000_000)
        other = store.id
    open_shared(shared.url, 0, allow_weak_durability=True).close()
    back = copy(shared.url, tmp_path / "back", "--from-store", "1")
    assert back.code == 0
    assert f"messages of other stores were not copied: store 2 ({other}) with 3; " in back.err
    again = copy(shared.url, tmp_path / "again", "--from-store", "1", "--json").json()
    assert again["not_copied"] == [{"number": 2, "store": other, "messages": 3}]


# --- killed in the middle ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def copying(source: object, target: object, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A copy under way, which is killed at the end."""
    arguments = command("store", "copy", str(source), str(target), "--allow-weak-durability", *more)
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, env=environment()) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def messages_locked(shared: Shared, mode: str) -> Iterator[Callable[[], None]]:
    """Transactions can be copied; messages cannot be written (exclusive), or not even read (access exclusive), before
    what is told here is called."""
    with contextlib.closing(shared.connect()) as connection:
        connection.execute(f"lock table tallystick_store_log in {mode} mode")
        yield connection.rollback


def rows(shared: Shared, table: str) -> int:
    with contextlib.closing(shared.connect()) as connection:
        found = connection.execute(f"select count(*) from {table}").fetchone()
        assert found is not None
        return found[0]


@pytest.mark.fault
def test_half_a_copy_on_a_server_is_opened_by_nobody_until_it_is_copied_again(data: Path, shared: Shared) -> None:
    with messages_locked(shared, "exclusive"), copying(data, shared.url):
        eventually(lambda: rows(shared, "tallystick_store_tx"), "transactions that have come over")
    assert rows(shared, "tallystick_store_log") == 0
    with pytest.raises(StorageFailed, match=f"half a copy of {data}"):
        open_shared(shared.url, 0, allow_weak_durability=True)
    assert "half a copy" in one_line(copy(shared.url, data.parent / "back").err)
    assert "is not empty; --force" in one_line(copy(data, shared.url).err)
    assert copy(data, shared.url, "--force").code == 0
    assert sent(shared.url) == len(SENT)


@pytest.mark.fault
def test_half_a_copy_in_a_directory_is_opened_by_nobody_until_it_is_copied_again(
    data: Path, shared: Shared, tmp_path: Path
) -> None:
    assert copy(data, shared.url).code == 0
    back = tmp_path / "back"
    with messages_locked(shared, "access exclusive"), copying(shared.url, back):
        eventually((back / "db" / "CURRENT").exists, "a directory that is being copied to")
    refused = tallystick("serve", "--data-dir", str(back), "--port", "0")
    assert "half a copy of postgresql://127.0.0.1" in one_line(refused.err)
    assert refused.code != 0
    assert "half a copy" in one_line(copy(back, shared.url, "--force").err)
    assert copy(shared.url, back, "--force").code == 0
    assert sent_to(back) == len(SENT)


# --- somebody else writes ------------------------------------------------------------------------------------------


def test_a_copy_whose_target_is_taken_away_is_not_finished(data: Path, shared: Shared) -> None:
    with messages_locked(shared, "exclusive") as unlock, copying(data, shared.url) as process:
        eventually(lambda: rows(shared, "tallystick_store_tx"), "transactions that have come over")
        claim_for_another(shared)
        unlock()
        assert "another owner since: another" in said_at_its_end(process)
    with pytest.raises(StorageFailed, match="half a copy"):
        open_shared(shared.url, 0, allow_weak_durability=True)


def test_a_copy_whose_source_is_taken_away_is_not_finished(data: Path, shared: Shared, tmp_path: Path) -> None:
    assert copy(data, shared.url).code == 0
    back = tmp_path / "back"
    with messages_locked(shared, "access exclusive") as unlock, copying(shared.url, back) as process:
        eventually((back / "db" / "CURRENT").exists, "a directory that is being copied to")
        claim_for_another(shared)
        unlock()
        assert "taken by somebody else" in said_at_its_end(process)
    assert "copy_of" in json.loads((back / "format.json").read_text())


def claim_for_another(shared: Shared) -> None:
    with contextlib.closing(server_at(shared.url, 0)) as server:
        server.claim("another")


def said_at_its_end(process: subprocess.Popen[bytes]) -> str:
    assert process.wait(60) == 1
    assert process.stderr is not None
    return process.stderr.read().decode()

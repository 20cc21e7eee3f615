"""The monkey's parts by themselves: its network, its journals and its databases."""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from eventually import eventually
from tallystick.chaos.display import blows_text
from tallystick.chaos.journal import JournalReader, JournalWriter, Note, Pause
from tallystick.chaos.ledgers import (
    ConsumerBooks,
    Effect,
    ProducerBooks,
    Work,
    confirm,
    connect,
    found_consumer,
    found_producer,
    note_work,
)
from tallystick.chaos.network import Crossing, Network
from tallystick.client import Client


class Echo:
    """A server that answers each piece with itself, and keeps what it has heard."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1_000):
                    self.heard.append(data)
                    connection.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


Ways = tuple[Network, Crossing, Echo]


@pytest.fixture
def ways(tmp_path: Path) -> Iterator[Ways]:
    with closing(Echo()) as echo, closing(Network(tmp_path / "network.log")) as network:
        way = network.cross(echo.port)
        network.start()
        yield network, way, echo


def call(way: Crossing, timeout: float = 60.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", way.port), timeout=timeout)


def test_a_calm_network_passes_on_what_it_is_given(ways: Ways) -> None:
    _, way, _ = ways
    with call(way) as connection:
        connection.sendall(b"tea")
        assert connection.recv(10) == b"tea"


def test_a_cut_ends_connections_and_refuses_new_ones_until_it_is_over(ways: Ways) -> None:
    network, way, echo = ways
    with call(way) as connection:
        connection.sendall(b"tea")
        assert connection.recv(10) == b"tea"
        network.change([way], "cut")
        with pytest.raises(OSError, match=r"[Rr]eset|refused"):
            ended(connection)
    with pytest.raises(ConnectionRefusedError):
        call(way)
    network.change([way], "calm")
    with call(way) as connection:
        connection.sendall(b"again")
        assert connection.recv(10) == b"again"
    assert echo.heard == [b"tea", b"again"]


def ended(connection: socket.socket) -> None:
    if not connection.recv(10):
        raise ConnectionResetError("Reset in good order")


def test_a_stalled_request_arrives_late_even_if_its_sender_is_gone(ways: Ways) -> None:
    network, way, echo = ways
    with call(way) as connection:
        connection.sendall(b"tea")
        assert connection.recv(10) == b"tea"
        network.change([way], "stall")
        connection.sendall(b"late")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(10)
    assert echo.heard == [b"tea"]
    network.change([way], "calm")
    eventually(lambda: echo.heard == [b"tea", b"late"])


def test_a_lost_answer_is_that_of_a_request_that_arrived(ways: Ways) -> None:
    network, way, echo = ways
    network.change([way], "lose")
    with call(way) as connection:
        connection.sendall(b"tea")
        assert connection.recv(10) == b""
    assert echo.heard == [b"tea"]


def test_where_nobody_listens_a_connection_ends_at_once(ways: Ways) -> None:
    _, way, echo = ways
    echo.close()
    with pytest.raises(OSError, match=r"[Rr]eset"), call(way) as connection:
        ended(connection)


# --- journals ----------------------------------------------------------------------------------------------------


def journal(tmp_path: Path, *lines: str) -> JournalReader:
    path = tmp_path / "journal"
    path.write_text("".join(f"{line}\n" for line in lines))
    reader = JournalReader(path)
    reader.look()
    return reader


def test_a_journal_is_read_on_and_a_torn_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    reader = JournalReader(path)
    reader.look()
    JournalWriter(path).note("ok", "p0.0-1", 2)
    with path.open("a") as file:
        file.write("12.5 o")
    reader.look()
    assert reader.told("ok") == {"p0.0-1/0", "p0.0-1/1"}
    with path.open("a") as file:
        file.write("k p0.0-2 1\n")
    reader.look()
    assert reader.told("ok") == {"p0.0-1/0", "p0.0-1/1", "p0.0-2/0"}
    assert reader.notes[-1] == Note(12.5, "ok", ["p0.0-2", "1"])


def test_the_longest_wait_is_that_of_one_life_without_its_pauses(tmp_path: Path) -> None:
    reader = journal(tmp_path, "1 start", "2 ok a 1", "4 ok b 1", "30 start", "30.5 ok c 1", "40 ok d 1", "41 ok e 1")
    assert reader.longest_wait([]) == pytest.approx(9.5)
    assert reader.longest_wait([Pause(31, 39.5)]) == pytest.approx(2)
    assert reader.longest_wait([Pause(20, 31)]) == pytest.approx(9)


def test_numbers_that_each_life_counts_are_added_up(tmp_path: Path) -> None:
    reader = journal(tmp_path, "1 start", "2 duplicates 3", "3 duplicates 5", "4 start", "5 duplicates 2")
    assert reader.total("duplicates") == 7


def test_a_life_has_begun_with_its_first_try_and_is_done_when_it_says_so(tmp_path: Path) -> None:
    states = []
    for lines in (["1 start"], ["1 start", "2 try a 1"], ["1 start", "2 try a 1", "3 done"], ["3 done", "4 start"]):
        reader = journal(tmp_path, *lines)
        states.append((reader.at_work, reader.done))
    assert states == [(False, False), (True, False), (True, True), (False, False)]


# --- databases ---------------------------------------------------------------------------------------------------


def test_work_is_read_on_and_known_by_its_gid(tmp_path: Path) -> None:
    path = tmp_path / "producer.db"
    found_producer(path)
    books = ProducerBooks(path)
    with closing(connect(path)) as connection:
        note_work(connection, Work("w1", 2, "g1"))
        books.look()
        note_work(connection, Work("w2", 1, "g2"))
        confirm(connection, "w1")
    books.look()
    assert books.committed == {"w1/0", "w1/1", "w2/0"}
    assert books.of_gids(["g1", "other"]) == {"w1/0", "w1/1"}
    assert books.unconfirmed() == {"w2/0"}


@pytest.mark.parametrize("mode", ["check-back", "outbox"])
def test_a_row_learns_the_gid_of_a_block_that_has_not_asked_for_it(tmp_path: Path, url: str, mode: str) -> None:
    path = tmp_path / "producer.db"
    found_producer(path)
    with Client(url, group="chaos-rows") as client, closing(connect(path)) as connection:
        gids = {}
        for name in ("w1", "w2"):
            with client.transaction(connection, mode=mode) as tx:  # type: ignore[arg-type]
                note_work(connection, Work(name, 1))
                tx.send("chaos-rows", name)
            gids[tx.gid] = name
        rows = connection.execute("select gid, name from work").fetchall()
    assert dict(rows) == gids


def effect(connection: sqlite3.Connection, name: str, at: int) -> None:
    row = (name, f"{name}-id", f"{name}-id", "store", "topic", 0, at)
    connection.execute("insert into effect values (?, ?, ?, ?, ?, ?, ?)", row)


def test_an_effect_is_marked_by_its_inbox_row_or_by_an_offset_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "consumer.db"
    found_consumer(path)
    books = ConsumerBooks(path, "g")
    with closing(connect(path)) as connection:
        for at, name in enumerate(("by-offset", "by-inbox", "by-nothing", "of-another-group")):
            effect(connection, name, at)
        connection.execute("insert into tallystick_inbox values ('g', 'by-inbox-id', '')")
        connection.execute("insert into tallystick_inbox values ('h', 'of-another-group-id', '')")
        connection.execute("insert into tallystick_offset values ('g', 'store', 'topic', 0, 1, '')")
        books.look()
        marked = {one.name: one.marked for one in books.effects}
        assert marked == {"by-offset": True, "by-inbox": True, "by-nothing": False, "of-another-group": False}
        connection.execute("delete from tallystick_inbox")
    books.look_again()
    assert Effect("by-inbox", "by-inbox-id", False) in books.effects


def test_nothing_in_a_consumers_database_keeps_an_effect_from_happening_twice(tmp_path: Path) -> None:
    """Otherwise the monkey would pass without the inbox."""
    path = tmp_path / "consumer.db"
    found_consumer(path)
    with closing(connect(path)) as connection:
        effect(connection, "a", 0)
        effect(connection, "a", 0)


def test_one_blow_is_told_in_the_singular() -> None:
    struck = {("broker", "kill"): 2, ("broker", "pause"): 1, ("engine", "engine-stall"): 1, ("network", "cut"): 1}
    told = blows_text(struck)
    assert "2 kills, 1 pause, 1 cut" in told
    assert "1 stall to the engine" in told

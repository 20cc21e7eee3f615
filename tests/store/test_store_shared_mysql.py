"""What is MySQL's own about a shared store: bytes in statements, packets, rows of others, settings."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pymysql
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventually import eventually
from servers import Server
from shared_stores import new_number, opener, url_of
from tallystick.core.errors import ConfigError, StorageFailed
from tallystick.core.message import OutgoingMessage
from tallystick.core.mysql_urls import mysql_servers
from tallystick.core.ops import Send
from tallystick.store.kv.engine import Changes
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared import mysql, mysql_link, mysql_session
from tallystick.store.shared.mysql import MysqlServer
from tallystick.store.shared.mysql_session import MysqlSession
from tallystick.store.shared.server import ServerAway

pytestmark = [pytest.mark.mariadb, pytest.mark.full]

NOW = 1_700_000_000_000


@pytest.fixture(scope="module")
def url(mariadb: Server) -> str:
    return url_of(mariadb, mariadb.new_database())


@pytest.fixture
def server(url: str) -> Iterator[MysqlServer]:
    made = MysqlServer(url, new_number())
    made.create()
    yield made
    made.close()


def rows(count: int, size: int = 10) -> Changes:
    changes = Changes()
    changes.keys["index"] = {f"{number:06d}".encode(): b"x" * size for number in range(count)}
    return changes


def deletes(count: int) -> Changes:
    changes = Changes()
    changes.keys["index"] = {f"{number:06d}".encode(): None for number in range(count)}
    return changes


@contextmanager
def setting(server: Server, name: str, value: str) -> Iterator[None]:
    """A setting of the whole server, for connections that are made meanwhile."""
    ((before,),) = server.execute(f"select @@global.{name}")
    server.execute(f"set global {name} = {value}")
    try:
        yield
    finally:
        server.execute(f"set global {name} = {before}")


# --- bytes in statements ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,ANSI", "TRADITIONAL"])
@pytest.mark.parametrize("charset", ["utf8mb4", "latin1", "binary", "gbk", "sjis"])
def test_bytes_mean_the_same_in_every_mode_and_character_set(mariadb: Server, mode: str, charset: str) -> None:
    """Otherwise the content of a message could end a literal and go on as a statement."""
    with closing(mariadb.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(f"set sql_mode = '{mode}', names {charset}")

        def back(data: bytes) -> Any:
            cursor.execute(b"select hex(%s) as told" % mysql_link.quoted(data))
            return bytes.fromhex(cursor.fetchone()[0].decode() if charset == "binary" else cursor.fetchone()[0])

        special = st.lists(
            st.sampled_from([b"'", b"\\", b"\0", b'"', b"\x1a", b"\xbf", b"\x81", b"\n", b"%", b";--", b"a"])
        )

        @settings(max_examples=60, derandomize=True, deadline=None)
        @given(st.one_of(st.binary(max_size=50), special.map(b"".join)))
        def holds(data: bytes) -> None:
            assert back(data) == data

        holds()
        assert back(bytes(range(256)) * 40) == bytes(range(256)) * 40


# --- packets ---------------------------------------------------------------------------------------------------------


def test_a_unit_that_is_too_large_for_one_packet_is_still_one_unit(
    server: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql, "_ROWS_BYTES", 10_000)
    monkeypatch.setattr(mysql_session, "_HEAD_BYTES", 64 * 1024 * 1024 - 20_000)
    fence = server.claim("one")
    before = server.trips
    assert server.apply(fence.epoch, fence.unit, rows(1_000, 100))
    assert server.trips - before > 5
    assert len(server.page("index", b"", b"\xff", 2_000, 10**9, False)) == 1_000
    assert not server.apply(fence.epoch, fence.unit, deletes(1_000)), "its number is used up"
    assert len(server.look_up({"index": [*rows(1_000).keys["index"]]})["index"]) == 1_000
    assert server.apply(fence.epoch, fence.unit + 1, deletes(1_000))
    assert server.page("index", b"", b"\xff", 1, 1, False) == []


def test_a_unit_whose_later_packets_never_come_is_not_there_and_holds_nobody_up(
    url: str, server: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for the rest with the fence's row locked, and must not wait for long."""
    monkeypatch.setattr(mysql, "_IMPATIENT", b"set session wait_timeout = 2;")
    fence = server.claim("one")
    with server._connected() as session:
        session.send(mysql._IMPATIENT + b"begin;update tallystick_store_fence set unit = unit + 1")
        other = MysqlServer(url, int(server._store))
        assert other.fence() == fence, "told once the lock was given up"
        assert other.claim("two").epoch == fence.epoch + 1
        other.close()
        with pytest.raises(Exception, match=r"gone away|Lost connection|Aborted|broken|reset|disconnected"):
            session.send(b"commit")


def test_a_value_that_no_packet_can_hold_is_told_with_the_setting_to_raise(server: MysqlServer) -> None:
    fence = server.claim("one")
    with pytest.raises(ServerAway, match="max_allowed_packet"):
        server.apply(fence.epoch, fence.unit, rows(1, 64 * 1024 * 1024))
    assert server.fence() == fence


def test_a_server_that_takes_small_packets_only_is_refused_at_the_opening(mariadb: Server, url: str) -> None:
    small = setting(mariadb, "max_allowed_packet", str(16 * 1024 * 1024))
    with small, pytest.raises(StorageFailed, match="set it to 64M"):
        opener(url)(StoreSettings())


# --- others on the same server ---------------------------------------------------------------------------------------


def test_a_unit_waits_for_no_row_of_another_store(mariadb: Server, url: str, server: MysqlServer) -> None:
    """With few rows in the table, a delete that is left to itself reads all of them, and stops at a locked one."""
    fence, other = server.claim("one"), MysqlServer(url, new_number())
    theirs = other.claim("two")
    assert server.apply(fence.epoch, fence.unit, rows(100))
    assert other.apply(theirs.epoch, theirs.unit, rows(100))
    with closing(mariadb.connect(url.rpartition("/")[2])) as locking:
        cursor = locking.cursor()
        cursor.execute("set session transaction isolation level read committed")
        cursor.execute(b"select * from tallystick_store_index where store = %s for update" % other._store)
        changes = deletes(100)
        changes.ranges = [("index", b"", b"000050")]
        changes.keys["index"][b"new"] = b"1"
        assert server.apply(fence.epoch, fence.unit + 1, changes)
        assert server.page("index", b"", b"\xff", 9, 99, False) == [(b"new", b"1")]
    assert len(other.page("index", b"", b"\xff", 200, 10**9, False)) == 100
    other.close()


def test_a_refused_unit_leaves_no_lock_and_a_look_no_transaction(mariadb: Server, server: MysqlServer) -> None:
    fence = server.claim("one")
    assert not server.apply(fence.epoch, fence.unit + 1, rows(1))
    assert server.look_up({"index": [b"000000"]}) == {"index": {b"000000": None}}
    assert server.fence() == fence
    assert mariadb.execute("select count(*) from information_schema.innodb_trx") == [(0,)]


def test_a_locked_fence_is_told_of_and_the_unit_goes_in_afterwards(
    mariadb: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        mysql_session, "_SESSION", tuple(one.replace(b"= 10", b"= 1") for one in mysql_session._SESSION)
    )
    number = new_number()
    store = opener(url, number)(StoreSettings())
    with closing(mariadb.connect(url.rpartition("/")[2])) as locking:
        locking.cursor().execute(f"select * from tallystick_store_fence where store = {number} for update")
        with pytest.raises(Exception, match="Lock wait timeout"):
            store.write([Send([OutgoingMessage("orders", b"x")], "g")], NOW)
        assert store.recover() is None
    assert store.recover() is not None
    assert store.transaction("g") is None
    store.write([Send([OutgoingMessage("orders", b"x")], "g")], NOW)
    assert store.transaction("g") is not None
    store.close()


# --- settings --------------------------------------------------------------------------------------------------------


def test_tables_that_are_there_need_no_right_to_make_them(mariadb: Server, url: str, server: MysqlServer) -> None:
    database = url.rpartition("/")[2]
    mariadb.execute("create user clerk@'127.0.0.1' identified by 'word'")
    mariadb.execute(f"grant select, insert, update, delete on {database}.* to clerk@'127.0.0.1'")
    clerk = MysqlServer(f"mysql://clerk:word@127.0.0.1:{mariadb.port}/{database}", new_number())
    clerk.create()
    fence = clerk.claim("one")
    assert clerk.apply(fence.epoch, fence.unit, rows(1))
    clerk.close()


def test_each_weakness_is_a_sentence(mariadb: Server, server: MysqlServer) -> None:
    told = server.weaknesses()
    assert [one.split()[0] for one in told] == [
        "innodb_flush_log_at_trx_commit",
        "innodb_flush_method",
        "innodb_doublewrite",
    ]
    with setting(mariadb, "innodb_flush_log_at_trx_commit", "1"):
        assert server.weaknesses() == told[1:]


def test_a_server_that_takes_connections_and_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql_session, "CONNECT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = MysqlServer(f"mysql://user:word@127.0.0.1:{silent.getsockname()[1]}/database", 1)
        with pytest.raises(ServerAway, match="timed out"):
            server.fence()


def test_an_address_that_is_none_shows_no_password() -> None:
    with pytest.raises(ConfigError) as refused:
        MysqlServer("mysql://user:secret@host:port/database", 1)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_statement_that_is_not_utf_8_hides_no_session(mariadb: Server, url: str) -> None:
    """Otherwise a broker could not find out which of its own connections are dead."""
    (login,) = mysql_servers(url)
    with (
        closing(MysqlSession(login)) as asking,
        closing(MysqlSession(login)) as idle,
        closing(pymysql.connect(**login)) as other,
    ):

        def work() -> None:
            with suppress(pymysql.Error):  # it is killed
                other.query(b"select sleep(60) /* caf\xa1 */")  # type: ignore[arg-type]

        thread = threading.Thread(target=work)
        thread.start()
        name = f"{asking.session.rpartition('/')[0]}/{other.thread_id()}"
        eventually(lambda: asking.working_sessions().get(name), "the statement runs")
        assert asking.working_sessions()[idle.session] is False
        mariadb.execute(f"kill query {other.thread_id()}")
        thread.join()

"""Blocks that are open side by side, one in the other, in generators, across requests and in several threads."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from borders_support import Mode, Service

from tallystick.barrier.errors import TransactionOpen, UnsupportedConnection


def test_two_blocks_on_two_connections_of_one_thread_are_two_transactions(server_service: Service, mode: Mode) -> None:
    service, bank = server_service, server_service.bank
    with bank.connection() as outer, bank.connection() as inner:
        with pytest.raises(ValueError, match="outer"):
            service.block(outer, "outer", lambda _: fail_after(lambda: service.block(inner, "inner", mode=mode)), mode)
        service.block(outer, "both, outer", lambda _: service.block(inner, "both, inner", mode=mode), mode)
    service.agrees_on("inner", "both, outer", "both, inner")


def fail_after(work: Any) -> None:
    work()
    raise ValueError("outer")


def test_on_sqlite_the_second_connection_waits_in_vain_and_both_blocks_fail(sqlite_service: Service) -> None:
    service = sqlite_service
    with (
        contextlib.closing(sqlite3.connect(service.bank.path, timeout=0.1)) as outer,
        contextlib.closing(sqlite3.connect(service.bank.path, timeout=0.1)) as inner,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        service.block(outer, "outer", lambda _: service.block(inner, "inner"))
    service.agrees_on()


def in_a_generator(service: Service, connection: Any, note: str) -> Iterator[None]:
    with service.ts.transaction(connection) as tx:
        service.bank.note(connection, note)
        tx.send(service.topic, note)
        yield
        service.bank.note(connection, f"{note}, rest")
        tx.send(service.topic, f"{note}, rest")


def test_a_block_in_a_generator_ends_with_it(any_service: Service) -> None:
    service = any_service
    with service.bank.connection() as connection:
        closed = in_a_generator(service, connection, "closed")
        next(closed)
        closed.close()
        dropped = in_a_generator(service, connection, "dropped")
        next(dropped)
        del dropped
        gc.collect()
        for _ in in_a_generator(service, connection, "read to its end"):
            with pytest.raises(TransactionOpen, match="inside another Tallystick block"):
                service.block(connection, "second")
    service.agrees_on("read to its end", "read to its end, rest")


@pytest.mark.parametrize("forgotten", [True, False])
def test_what_a_block_that_never_ended_has_left_is_not_committed_by_the_next(
    any_service: Service, forgotten: bool
) -> None:
    """A request that begins a block by hand and leaves without its end, and the next one on the same connection."""
    service = any_service
    with service.bank.connection() as connection:
        left = service.ts.transaction(connection)
        left.__enter__()
        service.bank.note(connection, "left open")
        left.send(service.topic, "left open")
        if forgotten:
            del left
            gc.collect()
        with pytest.raises(TransactionOpen, match="roll the connection back"):
            service.block(connection, "next")
        connection.rollback()  # as a pool does with a connection that comes back
        service.block(connection, "after it")
    service.agrees_on("after it")


def test_threads_that_share_a_connection_are_refused_while_one_has_a_block_on_it(any_service: Service) -> None:
    service, others = any_service, 8
    with contextlib.closing(shared_connection(service)) as connection:
        refused: list[BaseException] = []

        def try_it() -> None:
            try:
                service.block(connection, "of another thread")
            except BaseException as error:
                refused.append(error)

        def let_others_try(_: Any) -> None:
            threads = [threading.Thread(target=try_it) for _ in range(others)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        service.block(connection, "of the first", let_others_try)
        try_it()
    assert [type(error) for error in refused] == [TransactionOpen] * others
    service.agrees_on("of the first", "of another thread")


def test_threads_that_begin_at_the_same_moment_on_one_connection_are_not_both_let_in(any_service: Service) -> None:
    """PyMySQL's connections cannot even be shared; whoever is refused has not touched it."""
    service, threads_at_once = any_service, 6
    for turn in range(4):
        start = threading.Barrier(threads_at_once)
        with contextlib.closing(shared_connection(service)) as connection:
            threads = [
                threading.Thread(target=_race, args=(service, connection, start, f"{turn}/{number}"))
                for number in range(threads_at_once)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    service.agrees_on(*service.bank.notes())


def _race(service: Service, connection: Any, start: threading.Barrier, note: str) -> None:
    start.wait()
    with contextlib.suppress(TransactionOpen, UnsupportedConnection, sqlite3.OperationalError):
        service.block(connection, note)


def shared_connection(service: Service) -> Any:
    if service.bank.engine == "sqlite":
        return sqlite3.connect(service.bank.path, check_same_thread=False)
    return service.bank.open()


def test_a_block_may_be_left_in_another_thread_than_it_was_entered_in(any_service: Service) -> None:
    """As frameworks do that run the two halves of a dependency in a pool of threads."""
    service = any_service
    with contextlib.closing(shared_connection(service)) as connection:
        block = service.ts.transaction(connection)
        tx = block.__enter__()
        service.bank.note(connection, "moved")
        tx.send(service.topic, "moved")
        leaving = threading.Thread(target=block.__exit__, args=(None, None, None))
        leaving.start()
        leaving.join()
    service.agrees_on("moved")

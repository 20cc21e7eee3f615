"""The client for threads: the asynchronous one, on an event loop of its own."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from tallystick.barrier.adapters.recognition import adapt_sync
from tallystick.barrier.names import BARRIER_TABLE
from tallystick.client import cleanup
from tallystick.client.async_client import AsyncClient
from tallystick.client.base import forks
from tallystick.client.base.calls import CallOptions
from tallystick.client.base.misuse import NotAsync
from tallystick.client.base.settings import DEFAULT_URL, CheckBack, Decider, OpenConnection
from tallystick.client.base.stats import Stats
from tallystick.client.base.times import milliseconds
from tallystick.client.blocking import BlockingOperations
from tallystick.client.connection.portal import Portal, is_closed, open_portal
from tallystick.client.consumers.running import GRACE_SECONDS
from tallystick.client.consumers.subscribing import Subscriptions
from tallystick.client.consumers.subscription import Subscription
from tallystick.client.runtime import CLOSE_SECONDS
from tallystick.client.transactions.block import PrepareOrder
from tallystick.client.transactions.modes import ModeName, new_block
from tallystick.client.transactions.outbox import REDRIVE_SECONDS
from tallystick.client.transactions.producer import Producer
from tallystick.client.transactions.script import play_sync
from tallystick.client.transactions.transaction import Transaction
from tallystick.credentials.credentials import FilePath
from tallystick.credentials.tokens import SecretToken, hidden

log = logging.getLogger("tallystick.client")

T = TypeVar("T")

AT_EXIT_SECONDS = 2.0
SIGNAL_SECONDS = 0.5
"""How late `run` may notice a signal."""


class Client(BlockingOperations, Subscriptions, NotAsync):
    """Transactions, messages and consumers, for any number of threads and in prefork servers.

    `urls` is one address, several with commas between them, or a list; of a cluster, some of its brokers. `group` is
    the producer group, whose members answer check-backs for each other. `timeout` bounds every call. A block returns
    once its local commit is durable, and its messages become visible a few milliseconds later; with `wait` it stays
    until they are, for at most `commit_wait` seconds. `check` and `check_after` say how and when the broker asks for
    the outcome of a transaction. `database` opens a connection to the service's own database (a list, if it has
    several): with it the client answers check-backs and re-drives the outbox from the start, and not only after its
    first transaction. `deciders` answer check-backs of transactions that were prepared with `source=` their name.

    `token`, or the file `token_file` that it is read from again when it has changed, says who asks; of brokers at
    https, `ca` is the CA to believe instead of the system's, and `cert` and `key` are a client certificate. Where one
    is not given, the environment counts: TALLYSTICK_TOKEN, _TOKEN_FILE, _CA_FILE, _CERT_FILE, _KEY_FILE.

    A process that was forked from this one gets a client with connections of its own at its first use.
    """

    _asynchronous = False
    _in_coroutines = "AsyncClient: `async with AsyncClient(...) as ts:`"

    def __init__(
        self,
        urls: str | Iterable[str] = DEFAULT_URL,
        *,
        group: str | None = None,
        member: str | None = None,
        timeout: float = 10.0,
        wait: bool = False,
        commit_wait: float = 2.0,
        check: CheckBack | None = None,
        check_after: float | None = None,
        database: OpenConnection | Sequence[OpenConnection] | None = None,
        deciders: Mapping[str, Decider] | None = None,
        barrier_table: str = BARRIER_TABLE,
        max_in_flight: int = 6,
        token: str | SecretToken | None = None,
        token_file: FilePath | None = None,
        ca: FilePath | None = None,
        cert: FilePath | None = None,
        key: FilePath | None = None,
    ) -> None:
        token = hidden(token)  # before anything can fail: no traceback shows it
        self._client = AsyncClient(
            urls,
            group=group,
            member=member,
            timeout=timeout,
            wait=wait,
            commit_wait=commit_wait,
            check=check,
            check_after=check_after,
            database=database,
            deciders=deciders,
            barrier_table=barrier_table,
            max_in_flight=max_in_flight,
            token=token,
            token_file=token_file,
            ca=ca,
            cert=cert,
            key=key,
        )
        self._operations = self._client
        self._core = self._client._core
        self._settings = self._core.settings
        self._subscriptions: list[Subscription] = self._client._subscriptions
        self._portal: Portal | None = None
        self._lock = threading.Lock()
        self._stop_asked = threading.Event()
        forks.watch(self)
        _open.add(self)
        if self._core.databases:
            self._call(self._core.open)

    # Life

    def _way(self) -> Portal:
        """Onto the client's own event loop."""
        portal = self._portal
        if portal is None:
            with self._lock:
                if self._core.closed:
                    raise is_closed()
                portal = self._portal = self._portal or open_portal()
        return portal

    def _call(self, function: Callable[[], Awaitable[T]]) -> T:
        return self._way().call(function)

    def _producer(self) -> Producer:
        """That of the client's own event loop, made at its first use."""
        runtime = self._core.latest or self._call(self._core.open)
        return runtime.producer

    def after_fork(self) -> None:
        """In a forked child: leave the parent's loop and sockets alone; the first use makes new ones."""
        if self._portal is not None:
            forks.never_destroy(self._portal)
        self._portal = None
        self._lock = threading.Lock()
        self._stop_asked = threading.Event()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop consumers, send what waits and close all connections, within `timeout` seconds.

        If handlers are still at work then, they are cancelled or abandoned, and what waits gets at most 1 s more. A
        handler cannot close its own client (`InvalidRequest`): call `stop()` there.
        """
        self._core.refuse_handlers()
        milliseconds(timeout, "timeout")
        self._stop_asked.set()
        _open.discard(self)
        with self._lock:
            portal, self._portal = self._portal, None
            self._core.closed = True
        if portal is not None:
            portal.call(lambda: self._core.close(timeout))
            portal.stop()

    @property
    def stats(self) -> Stats:
        """Counts of what happened without being raised."""
        return self._core.stats

    # The service's own database

    def transaction(
        self,
        connection: Any,
        *,
        mode: ModeName = "check-back",
        prepare: PrepareOrder = "late",
        check: CheckBack | None = None,
        gid: str | None = None,
        wait: bool | None = None,
        call_options: CallOptions | None = None,
    ) -> Transaction:
        """A block whose local transaction and messages happen together or not at all.

        `mode` is `check-back` (half messages wait in the broker), `outbox` (messages wait in the database) or
        `consumer-dedup` (messages go to the consumer, which waits for their outcome). With `prepare="early"` the block
        calls `tx.prepare()` after its sends and before its changes. With `wait=True` it stays until its
        messages are visible (default: what the client was told). `call_options` says how its calls are made.
        """
        block = new_block(
            mode,
            self._settings,
            self._producer,
            adapt_sync(connection),
            prepare=prepare,
            check=check,
            gid=gid,
            wait=wait,
            call_options=call_options,
        )
        return Transaction(block, self._way)

    def clean(self, connection: Any, *, older_than: float, groups: Sequence[str] | None = None) -> dict[str, int]:
        """Delete barrier, inbox, prepared and digest rows older than `older_than` seconds; how many of each.

        Rows that a broker may still need stay, however old: those of pending transactions, those within its memory of
        gids, and inbox rows of messages that a group has not settled. `groups` are the consumer groups with an inbox in
        this database (default: all that the brokers know). Nothing is deleted if a broker cannot be asked.
        """
        ages = self._call(lambda: self._core.plan_clean_up(older_than, groups))
        script = cleanup.carry_out(ages, self._settings.barrier_table)
        return play_sync(script, adapt_sync(connection), self._way)

    def redrive(self, open_connection: OpenConnection, *, every: float = REDRIVE_SECONDS) -> None:
        """Send, in the background, what died processes left in the outbox of a database."""
        self._call(lambda: self._client.redrive(open_connection, every=every))

    # Consumers

    def start(self) -> None:
        """Start the subscriptions, in the background."""
        self._call(self._client.start)

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Stop the subscriptions: handlers at work get `grace` seconds to finish, the rest is given back.

        Returns at most 1 s after `grace`. A coroutine that is still at work then is cancelled. A thread goes on without
        its lease, and its message comes again. In a handler, `stop()` returns at once and does not wait. The default
        leaves time for `close()` within the 30 s that Kubernetes waits after SIGTERM.
        """
        milliseconds(grace, "grace")
        self._stop_asked.set()
        if (consumers := self._core.handlers_consumers()) is not None:
            self._way().loop.call_soon_threadsafe(consumers.stop_soon, grace)
        else:
            self._call(lambda: self._client.stop(grace))

    def run(self) -> None:
        """Start the subscriptions and stay until `stop()`, SIGTERM or SIGINT; then stop with the default grace."""
        self._stop_asked.clear()
        before = self._catch_signals()
        try:
            self.start()
            # Not one wait for ever: a signal may be delivered to another thread (after SIGCONT, say), and Python
            # calls its handler on this one, which has to be awake for that.
            while not self._stop_asked.wait(SIGNAL_SECONDS):
                pass
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.stop()

    def _catch_signals(self) -> dict[signal.Signals, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}  # only the main thread may; another one is ended with stop()
        return {
            number: signal.signal(number, lambda *_: self._stop_asked.set())
            for number in (signal.SIGTERM, signal.SIGINT)
        }


_open: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Level 0 messages and the commits of last blocks, in a program that ends without closing its client."""
    for client in list(_open):
        try:
            client.close(AT_EXIT_SECONDS)
        except Exception:
            log.exception("a client could not be closed at the end of the process")  # the others still can


def _watch_workers() -> None:
    """A process of multiprocessing may end without `atexit`, and forgets what its parent has registered. It is looked
    for and not imported, which would take longer than most of what a client needs: where nobody has imported it, there
    are no such processes. So this is said again in every child: a worker's parent has it."""
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        multiprocessing.register_after_fork(_open, _close_all_in_worker)
        _close_all_in_worker(_open)


def _close_all_in_worker(_: object) -> None:
    sys.modules["multiprocessing.util"].Finalize(None, _close_all_after_threads, exitpriority=0)


def _close_all_after_threads() -> None:
    """It is told of its end before Python waits for its threads, which may still be in blocks."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    _close_all()


_watch_workers()
os.register_at_fork(after_in_child=_watch_workers)

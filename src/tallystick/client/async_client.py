"""The client for asyncio."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from tallystick.barrier.adapters.recognition import adapt
from tallystick.barrier.names import BARRIER_TABLE
from tallystick.client import cleanup
from tallystick.client.base.arguments import check_flag, checked_check
from tallystick.client.base.calls import CallOptions
from tallystick.client.base.misuse import NotSync
from tallystick.client.base.settings import DEFAULT_URL, CheckBack, Decider, OpenConnection, checked_settings
from tallystick.client.base.stats import Stats
from tallystick.client.base.times import milliseconds
from tallystick.client.consumers.running import GRACE_SECONDS
from tallystick.client.consumers.subscribing import Subscriptions
from tallystick.client.consumers.subscription import Subscription
from tallystick.client.operations import Operations
from tallystick.client.runtime import CLOSE_SECONDS, ClientCore
from tallystick.client.transactions.block import PrepareOrder
from tallystick.client.transactions.modes import ModeName, new_block
from tallystick.client.transactions.outbox import REDRIVE_SECONDS
from tallystick.client.transactions.script import play_async
from tallystick.client.transactions.transaction import AsyncTransaction
from tallystick.credentials.credentials import FilePath, find_credentials
from tallystick.credentials.tokens import SecretToken, hidden


class AsyncClient(Operations, Subscriptions, NotSync):
    """Transactions, messages and consumers, on the event loop that it is used on.

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
    """

    _asynchronous = True
    _on_threads = "Client: `with Client(...) as ts:`"

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
        check_flag(wait, "wait", "The limit of the wait is commit_wait.")
        self._settings = checked_settings(
            urls,
            group=group,
            member=member,
            timeout=timeout,
            wait=wait,
            commit_wait=commit_wait,
            check=checked_check(check, check_after) or CheckBack(),
            check_after=check_after,
            barrier_table=barrier_table,
            max_in_flight=max_in_flight,
            credentials=find_credentials(token, token_file=token_file, ca=ca, cert=cert, key=key),
        )
        self._core = ClientCore(self._settings, database, deciders)
        self._subscriptions: list[Subscription] = []
        self._stop_asked: asyncio.Event | None = None

    async def __aenter__(self) -> AsyncClient:
        await self._core.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop consumers, send what waits and close all connections, within `timeout` seconds.

        If handlers are still at work then, they are cancelled or abandoned, and what waits gets at most 1 s more. A
        handler cannot close its own client (`InvalidRequest`): call `stop()` there.
        """
        self._core.refuse_handlers()
        await self._core.close(timeout)

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
    ) -> AsyncTransaction:
        """A block whose local transaction and messages happen together or not at all.

        `mode` is `check-back` (half messages wait in the broker), `outbox` (messages wait in the database) or
        `consumer-dedup` (messages go to the consumer, which waits for their outcome). With `prepare="early"` the block
        calls `await tx.prepare()` after its sends and before its changes. With `wait=True` it stays until its
        messages are visible (default: what the client was told). `call_options` says how its calls are made.
        """
        adapter = adapt(connection)
        block = new_block(
            mode,
            self._settings,
            lambda: self._core.runtime().producer,
            adapter,
            prepare=prepare,
            check=check,
            gid=gid,
            wait=wait,
            call_options=call_options,
        )
        return AsyncTransaction(block, None if adapter.is_async else self._core.runtime().turn)

    async def redrive(self, open_connection: OpenConnection, *, every: float = REDRIVE_SECONDS) -> None:
        """Send, in the background, what died processes left in the outbox of a database."""
        await self._core.redrive(open_connection, every)

    async def clean(self, connection: Any, *, older_than: float, groups: Sequence[str] | None = None) -> dict[str, int]:
        """Delete barrier, inbox, prepared and digest rows older than `older_than` seconds; how many of each.

        Rows that a broker may still need stay, however old: those of pending transactions, those within its memory of
        gids, and inbox rows of messages that a group has not settled. `groups` are the consumer groups with an inbox in
        this database (default: all that the brokers know). Nothing is deleted if a broker cannot be asked.
        """
        ages = await self._core.plan_clean_up(older_than, groups)
        script = cleanup.carry_out(ages, self._settings.barrier_table)
        return await play_async(script, adapt(connection))

    # Consumers

    async def start(self) -> None:
        """Start the subscriptions, in the background."""
        self._core.runtime().consumers.start(self._subscriptions)

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Stop the subscriptions: handlers at work get `grace` seconds to finish, the rest is given back.

        Returns at most 1 s after `grace`. A coroutine that is still at work then is cancelled. A thread goes on without
        its lease, and its message comes again. In a handler, `stop()` returns at once and does not wait. The default
        leaves time for `close()` within the 30 s that Kubernetes waits after SIGTERM.
        """
        milliseconds(grace, "grace")
        if self._stop_asked is not None:
            self._stop_asked.set()
        if (consumers := self._core.handlers_consumers()) is not None:
            consumers.stop_soon(grace)
        else:
            await self._core.runtime().consumers.stop(grace)

    async def run(self) -> None:
        """Start the subscriptions and stay until `stop()`, SIGTERM or SIGINT; then stop with the default grace."""
        self._stop_asked = asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        # Only the main thread may catch signals; a loop on another one is ended with stop().
        main = threading.current_thread() is threading.main_thread()
        signals = (signal.SIGTERM, signal.SIGINT) if main else ()
        for number in signals:
            loop.add_signal_handler(number, asked.set)
        try:
            await self.start()
            await asked.wait()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            await self.stop()

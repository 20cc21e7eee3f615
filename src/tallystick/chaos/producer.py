"""A producer: work after work, each a row in its own database and its messages, in one of the modes.

It may be killed at any moment and started again: what it has to do again is read from its own database.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import tallystick
from tallystick.chaos.journal import JournalReader, JournalWriter
from tallystick.chaos.ledgers import (
    PRODUCERS,
    TOPIC,
    Work,
    confirm,
    connect,
    note_work,
    unconfirmed_work,
)
from tallystick.chaos.modes import PROMISES, Mode
from tallystick.chaos.worker import WorkerSettings, given_settings
from tallystick.client.connection.levels import Level
from tallystick.client.transactions.modes import ModeName
from tallystick.demo.worker import until_told

# Short: while a block waits for the broker it holds the only write lock of its database.
ANSWER_SECONDS = 2.0
THREADS = 2
IDLE_SECONDS = 0.1
AGAIN_SECONDS = 0.5
MOST_PARTS = 3
DOOMED = 10  # one in so many raises in its block
LEVELS: dict[Mode, Level] = {"level-0": 0, "level-1": 1, "level-2": 2}
BLOCKS: dict[Mode, ModeName] = {"check-back": "check-back", "outbox": "outbox", "consumer-dedup": "consumer-dedup"}

log = logging.getLogger("tallystick.chaos")


class DoomedWork(Exception):
    """What a service raises in a block when it changes its mind."""


def main() -> None:
    settings = given_settings()
    told = until_told()
    journal = JournalWriter(settings.journal)
    earlier = JournalReader(Path(settings.journal))
    earlier.look()
    life = earlier.count("start")
    journal.note("start")
    numbers = _Numbers(earlier.count("try"), settings, journal)
    group = f"{PRODUCERS}{settings.number}"
    client = tallystick.Client(
        settings.urls, group=group, database=lambda: connect(settings.database), timeout=ANSWER_SECONDS
    )
    with client:
        made = _Transactions if PROMISES[settings.mode].transactional else _Sends
        producer = made(settings, client, journal, f"p{settings.number}.{life}")
        with ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(_work, producer, numbers, told) for _ in range(THREADS)]:
                done.result()
        journal.note("done")
        # It stays: to answer check-backs, and to send what is in the outbox.
        while not told.wait(IDLE_SECONDS):
            pass


class _Numbers:
    """Numbers the work of all threads, and paces them."""

    def __init__(self, done: int, settings: WorkerSettings, journal: JournalWriter) -> None:
        self._settings, self._next, self._journal = settings, done, journal
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        """The numbers of one thread. Time that was lost is not made up for: a burst is no measure of anything."""
        pause = THREADS / self._settings.rate
        due = time.monotonic()
        while not self._settings.is_enough:
            if self._settings.is_held:
                self._journal.note("held")
                time.sleep(IDLE_SECONDS)
                continue
            with self._lock:
                number, self._next = self._next, self._next + 1
            if self._settings.messages and number >= self._settings.messages:
                return
            yield number
            due = max(due + pause, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


def _work(producer: _Producer, numbers: _Numbers, told: threading.Event) -> None:
    try:
        with closing(connect(producer.settings.database)) as connection:
            for number in numbers:
                if told.is_set():
                    return
                producer.do(connection, number)
            while producer.rest(connection) and not told.is_set():
                time.sleep(IDLE_SECONDS)
    except BaseException:
        told.set()
        raise


class _Producer:
    def __init__(self, settings: WorkerSettings, client: tallystick.Client, journal: JournalWriter, life: str) -> None:
        self.settings, self._client, self._journal, self._life = settings, client, journal, life

    def do(self, connection: sqlite3.Connection, number: int) -> None:
        raise NotImplementedError

    def rest(self, connection: sqlite3.Connection) -> bool:
        """Go on with what is not finished; False when nothing is left."""
        return False

    def _topic(self, number: int) -> str:
        return f"{TOPIC}{number % self.settings.consumers}"


class _Transactions(_Producer):
    """A row and up to three messages, to different consumers, in one block."""

    def do(self, connection: sqlite3.Connection, number: int) -> None:
        name, parts = f"{self._life}-{number}", number % MOST_PARTS + 1
        self._journal.note("try", name, parts)
        try:
            self._block(number)(connection, number, name, parts)
        except tallystick.OutcomeUnknown as unknown:
            log.info("%s: %s", name, unknown)
            self._journal.note("unknown", name, parts)
        except DoomedWork:
            self._journal.note("rolled_back", name, parts)
        except (tallystick.TallystickError, sqlite3.OperationalError) as error:
            log.info("%s: %s", name, error)
            self._journal.note("rolled_back", name, parts)
        else:
            self._journal.note("ok", name, parts)

    def _block(self, number: int) -> Callable[[sqlite3.Connection, int, str, int], None]:
        if self.settings.sabotage == "barrier":
            return self._send_first
        return self._early if self.settings.mode == "check-back" and number % 2 else self._late

    def _late(self, connection: sqlite3.Connection, number: int, name: str, parts: int) -> None:
        with self._client.transaction(connection, mode=BLOCKS[self.settings.mode]) as tx:
            # To read the gid binds the block to one broker; so that some can change it, not all do.
            note_work(connection, Work(name, parts, tx.gid if number % 4 == 0 else ""))
            self._send(tx.send, number, name, parts)
            if number % DOOMED == DOOMED - 1:
                raise DoomedWork

    def _early(self, connection: sqlite3.Connection, number: int, name: str, parts: int) -> None:
        with self._client.transaction(connection, prepare="early") as tx:
            self._send(tx.send, number, name, parts)
            tx.prepare()
            note_work(connection, Work(name, parts, tx.gid))
            if number % DOOMED == DOOMED - 1:
                raise DoomedWork

    def _send_first(self, connection: sqlite3.Connection, number: int, name: str, parts: int) -> None:
        """The mistake that transactions are for: messages that are out before their row is committed."""
        self._send(self._client.send, number, name, parts)
        if number % DOOMED == DOOMED - 1:
            raise DoomedWork
        note_work(connection, Work(name, parts))

    def _send(self, send: Callable[..., object], number: int, name: str, parts: int) -> None:
        for part, message in enumerate(Work(name, parts).messages):
            send(self._topic(number + part), message, key=name if number % 2 else None)


class _Sends(_Producer):
    """A row, then one message without a transaction, then the row's mark that it was confirmed. What was not confirmed
    is sent again, under the same gid at level 2, except at level 0, which promises nothing."""

    def __init__(self, settings: WorkerSettings, client: tallystick.Client, journal: JournalWriter, life: str) -> None:
        super().__init__(settings, client, journal, life)
        self._level = LEVELS[settings.mode]
        with closing(connect(settings.database)) as connection:
            left = unconfirmed_work(connection) if self._level else []
        self._again = deque((0.0, work) for work in left)

    def do(self, connection: sqlite3.Connection, number: int) -> None:
        self.rest(connection)
        work = Work(f"{self._life}-{number}", 1, self._client.new_gid() if self._level == 2 else "")
        self._journal.note("try", work.name, 1)
        note_work(connection, work)
        self._send_one(connection, work)

    def rest(self, connection: sqlite3.Connection) -> bool:
        try:
            due, work = self._again.popleft()
        except IndexError:
            return False
        if time.monotonic() < due:
            self._again.appendleft((due, work))
        else:
            self._journal.note("again", work.name)
            self._send_one(connection, work)
        return True

    def _send_one(self, connection: sqlite3.Connection, work: Work) -> None:
        topic = self._topic(int(work.name.rpartition("-")[2]))
        try:
            self._client.send(topic, work.messages[0], level=self._level, gid=work.gid or None)
        except tallystick.TallystickError as error:
            log.info("%s: %s", work.name, error)
            self._again.append((time.monotonic() + AGAIN_SECONDS, work))
            return
        if self._level:
            confirm(connection, work.name)
            self._journal.note("ok", work.name, 1)


if __name__ == "__main__":
    main()

"""Producer processes: one transaction with a moment at which it is killed or stopped, or as many as it can.

They report how a block ended: `ok`, `failed` (nothing happened, and the caller knows) or `unknown`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from child_report import Report, report_log
from moments import Moments, install
from places import Place, opened

import tallystick
from tallystick.client.base.databases import EXPECT_AFTER

BEFORE = "before-the-matrix"
INSERT = "insert into business values (%s, %s)"
# What a soaking producer does in turn: mode, order of prepare.
WAYS = (("check-back", "late"), ("outbox", "late"), ("check-back", "early"), ("consumer-dedup", "late"), ("send", ""))
_BACKGROUND_SECONDS = 3.0


def main(case: dict[str, Any]) -> None:
    report, place = Report(case["report"]), Place(*case["place"])
    report_log(report)
    moments = Moments(case["at"], case.get("signal", signal.SIGKILL), case.get("moment"))
    install(moments)
    options = {key: case[key] for key in ("group", "check_after", "wait")} | {"commit_wait": 5.0}
    if place.driver == "MySQLdb":  # it does not tell its password
        options["database"] = place.connect
    producer = _Producer(case, place, moments)
    if case.get("asynchronous"):
        asyncio.run(producer.run_async(tallystick.AsyncClient(case["url"], **options)))
    else:
        producer.run(tallystick.Client(case["url"], **options))
    report.write(outcome=producer.outcome, error=producer.error)
    report.write(moments=moments.passed)


class Refused(Exception):
    """The service changes its mind within the block."""


class _Producer:
    """One transaction, over a client of either kind."""

    def __init__(self, case: dict[str, Any], place: Place, moments: Moments) -> None:
        self._case, self._place, self._moments = case, place, moments
        self._early = case["prepare"] == "early"
        self._block = {"mode": case["mode"], "prepare": case["prepare"], "gid": case.get("gid")}
        self.outcome, self.error = "ok", ""

    def run(self, client: tallystick.Client) -> None:
        with client, opened(self._place) as connection:
            client._call(client._core.look)  # what the brokers are: no moment of the transaction
            for _ in self._blocks_before():
                with client.transaction(connection) as tx:
                    tx.send(BEFORE, "of an earlier block")
            with self._judged():
                self._transact(client, connection)
            self._end()

    def _blocks_before(self) -> Iterator[int]:
        """What came before is no moment of the transaction."""
        self._moments.asleep = True
        yield from range(EXPECT_AFTER if self._case.get("experienced") else 0)
        self._moments.asleep = False

    def _transact(self, client: tallystick.Client, connection: Any) -> None:
        with client.transaction(connection, **self._block) as tx:
            if self._early:
                self._send(tx)
                tx.prepare()
            self._place.run(connection, INSERT, self._case["id"], tx.gid if self._early else "")
            self._moments.reach("business change")
            if self._case.get("refuse"):
                raise Refused
            if not self._early:
                self._send(tx)

    async def run_async(self, client: tallystick.AsyncClient) -> None:
        connection = await self._place.connect_async()
        async with client:
            await client._core.look()
            for _ in self._blocks_before():
                async with client.transaction(connection) as tx:
                    tx.send(BEFORE, "of an earlier block")
            with self._judged():
                await self._transact_async(client, connection)
            await asyncio.to_thread(self._end)
        await self._place.close_async(connection)

    async def _transact_async(self, client: tallystick.AsyncClient, connection: Any) -> None:
        async with client.transaction(connection, **self._block) as tx:
            await self._place.run_async(connection, INSERT, self._case["id"], "")
            self._moments.reach("business change")
            self._send(tx)

    def _send(self, tx: Any) -> None:
        tx.send(self._case["topic"], self._case["id"], key=self._case["id"])
        self._moments.reach("message added")

    @contextlib.contextmanager
    def _judged(self) -> Iterator[None]:
        try:
            yield
        except tallystick.OutcomeUnknown as unknown:
            self.outcome, self.error = "unknown", str(unknown)
        except Exception as failure:
            self.outcome, self.error = "failed", f"{type(failure).__name__}: {failure}"

    def _end(self) -> None:
        if self.outcome == "ok" and self._case["mode"] != "check-back":
            self._await("after deletion")
        elif self.outcome == "ok":
            self._await("commit request answered")
        if self._case.get("refuse"):
            self._await("rollback request answered")
        self._moments.reach("end")

    def _await(self, name: str) -> None:
        """Stay for what happens in the background; a process that ended before would leave it to others.

        One that slept for long finds that its request has run out of time: it does leave it to them.
        """
        deadline = time.monotonic() + self._case.get("patience", _BACKGROUND_SECONDS)
        while name not in self._moments.passed and time.monotonic() < deadline:
            time.sleep(0.005)


def soak(case: dict[str, Any]) -> None:
    """Transactions of every kind, and messages without one, until somebody kills it; told before and after each."""
    report, place = Report(case["report"]), Place(*case["place"])
    client = tallystick.Client(case["url"], group=case["group"], check_after=case["check_after"], timeout=5.0)
    with opened(place) as connection:
        for number in itertools.count():
            name = f"{case['number']}-{number}"
            mode, prepare = WAYS[number % len(WAYS)]
            if mode == "send":
                _send(client, case["topic"], name, report)
                continue
            report.write(tried=name)
            one = _Producer({**case, "id": name, "mode": mode, "prepare": prepare}, place, Moments())
            with one._judged():
                one._transact(client, connection)
            report.write(told=[name, one.outcome])


def returns(case: dict[str, Any]) -> None:
    """A few transactions, and a kill right after the last has returned, or a moment later."""
    place = Place(*case["place"])
    client = tallystick.Client(case["url"], group=case["group"], check_after=case["check_after"])
    done: set[str] = set()
    with opened(place) as connection:
        for name in case["names"]:
            one = _Producer({**case, "id": name, "prepare": "late"}, place, Moments())
            while name not in done:
                with contextlib.suppress(sqlite3.OperationalError):  # others have locked it for longer than it waits
                    one._transact(client, connection)
                    done.add(name)
        if case["later"]:
            time.sleep(case["later"])
        os.kill(os.getpid(), signal.SIGKILL)


def naive(case: dict[str, Any]) -> None:
    """Mistakes that transactions are for: database and broker are told one after the other; a crash comes between."""
    place = Place(*case["place"])
    client = tallystick.Client(case["url"], group=case["group"])
    with opened(place) as connection:
        place.run(connection, INSERT, case["id"], "")
        if case["mistake"] == "commit first":
            connection.commit()
        elif case["mistake"] == "send first":
            client.send(case["topic"], case["id"])
        else:
            gid = client.new_gid()
            client.prepare(gid, [tallystick.outgoing(case["topic"], case["id"])])
            client.commit(gid)
        os.kill(os.getpid(), signal.SIGKILL)


def _send(client: tallystick.Client, topic: str, name: str, report: Report) -> None:
    report.write(sending=name)
    try:
        client.send(topic, name, key=name)
    except tallystick.TallystickError as error:
        report.write(unconfirmed=name, error=str(error))
    else:
        report.write(confirmed=name)

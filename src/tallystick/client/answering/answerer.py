"""Answering the broker's questions: a long poll to each broker, the truth from the barrier."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable

from tallystick.barrier.operations.barrier import Decision, decide_many
from tallystick.client.answering.deciders import RememberedOutcomes, ask_decider
from tallystick.client.base.databases import run_on_new
from tallystick.client.base.opened_connections import RefusedOpener
from tallystick.client.base.refusals import Refusals
from tallystick.client.base.tasks import Tasks, repeat
from tallystick.client.connection import questions
from tallystick.client.connection.loop_connection import LoopConnection
from tallystick.client.connection.peer import BrokerPeer
from tallystick.core.errors import TallystickError
from tallystick.core.ops import Answer, AnswerChecks
from tallystick.core.wire import CheckPoll

log = logging.getLogger("tallystick.client")

POLL_SECONDS = 20.0
# The broker waits about ten seconds for an answer; an honest `unknown` in time lets it plan the next question.
ANSWER_SECONDS = 8.0
# Batches of questions that are worked on at a time: no more are fetched than can be answered, for a question that is
# answered `unknown` only because there are many would count against its transaction.
BATCHES = 8
# Those of them that may be in one database, and how long another one waits for its turn there. A database in which
# nothing moves for that long hangs, and must not hold up the others.
BATCHES_PER_SOURCE = 2
TURN_SECONDS = 2.0

Answers = dict[str, tuple[Answer, str]]


class Answerer:
    """Answers for this process as one member of its producer group."""

    def __init__(self, connection: LoopConnection) -> None:
        self._connection = connection
        self._brokers = connection.brokers
        self._settings = connection.settings
        self._member = connection.member
        self._databases = connection.databases
        self._workers = connection.workers
        self._stats = connection.stats
        self._remembered = RememberedOutcomes()
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(BATCHES_PER_SOURCE))
        self._answering: set[asyncio.Task[None]] = set()
        self._tasks = Tasks()
        self._started = False

    def start(self) -> None:
        """Begin to listen; a second call does nothing."""
        if self._started:
            return
        self._started = True
        self._tasks.start(self._listen(self._settings.needs_group("answering check-backs")))

    async def _listen(self, group: str) -> None:
        # A process that only consumes may have a token without the right to poll, and needs none.
        refusals = Refusals("polling for checks", needed=lambda: self._connection.prepares)
        for broker in await self._brokers.known():
            what = f"polling {broker.address} for checks"
            self._tasks.start(repeat(what, self._poll(broker, group), refusals, broker.address))

    async def stop(self) -> None:
        await self._tasks.cancel()

    def _poll(self, broker: BrokerPeer, group: str) -> Callable[[], Awaitable[float]]:
        poll = CheckPoll(group, self._member, wait_ms=int(POLL_SECONDS * 1000))

        async def once() -> float:
            while len(self._answering) >= BATCHES:
                await asyncio.wait(self._answering, return_when=asyncio.FIRST_COMPLETED)
            by_source: defaultdict[str, list[str]] = defaultdict(list)
            for check in await questions.poll_checks(broker, poll):
                by_source[check.source].append(check.gid)
            # Each database by itself: one that hangs must not delay the answers of the others.
            for source, gids in by_source.items():
                task = self._tasks.start(self._answer(broker, group, source, gids))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            return 0.0

        return once

    async def _answer(self, broker: BrokerPeer, group: str, source: str, gids: list[str]) -> None:
        answers = await self._answers(source, gids)
        told = {gid: answer for gid, (answer, _) in answers.items()}
        reasons = {gid: reason[:1024] for gid, (_, reason) in answers.items() if reason}
        unknown = sum(answer == "unknown" for answer in told.values())
        self._stats.checks_unknown += unknown
        self._stats.checks_answered += len(told) - unknown
        try:
            op = AnswerChecks(told, reasons, group, self._member)
            await broker.ops.run(op, self._settings.timeout, waits=True)
        except TallystickError as error:
            log.warning("answers to %s were lost, it will ask again: %s", broker.address, error)

    async def _answers(self, source: str, gids: list[str]) -> Answers:
        answers: Answers = {}
        for gid in gids:
            outcome = self._remembered.get(gid)
            if outcome is not None:
                answers[gid] = (outcome, "")
        asked = [gid for gid in gids if gid not in answers]
        if asked:
            answers.update(await self._ask(source, asked))
        return answers

    async def _ask(self, source: str, gids: list[str]) -> Answers:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turns[source].acquire()
        except TimeoutError:
            return _all_unknown(gids, f"the database {source} does not answer")
        decided = self._tasks.start(self._decide(source, gids))
        try:
            # Shielded: a late answer is remembered for the next question.
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.shield(decided)
        except TimeoutError:
            return _all_unknown(gids, f"the database {source} does not answer")

    async def _decide(self, source: str, gids: list[str]) -> Answers:
        try:
            decisions = await self._decisions(source, gids)
        except Exception as failure:
            # An error is never an outcome: the answer names it, and the broker asks again.
            level = logging.DEBUG if isinstance(failure, RefusedOpener) else logging.WARNING  # that one is logged
            log.log(level, "the barrier of %s cannot be read: %s", source, failure)
            return _all_unknown(gids, f"{type(failure).__name__}: {failure}")
        finally:
            self._turns[source].release()
        if decisions is None:
            return _all_unknown(gids, f"this process does not know the database {source}")
        return {gid: self._as_answer(gid, decisions[gid]) for gid in gids}

    async def _decisions(self, source: str, gids: list[str]) -> dict[str, Decision] | None:
        """None if the source is not known here."""
        decider = self._databases.decider(source)
        if decider is not None:
            return await ask_decider(self._workers, decider, gids)
        table = self._settings.barrier_table
        door = await self._databases.find(source, self._workers, table)
        if door is None:
            return None
        return await run_on_new(self._workers, door, decide_many(gids, table=table, source=source))

    def _as_answer(self, gid: str, decision: Decision) -> tuple[Answer, str]:
        if decision == "running":
            return "unknown", "the local transaction is still running"
        self._remembered.put(gid, decision)
        return decision, ""


def _all_unknown(gids: list[str], reason: str) -> Answers:
    return dict.fromkeys(gids, ("unknown", reason))

"""A machine that makes random histories on a store and on the model, and compares them after every step."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

from columns import in_columns, laying_down_little
from engines import Place, open_place
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from machine_access import AccessRules
from machine_calls import PLANS, CallRules, calls_of, options_of, word
from model import CHECK_AFTER, CHECK_CAP, CHECK_FIRST, DEDUP, MAX_ATTEMPTS, MAX_CHECKS, Model, Text, Visible
from model_access import AUDIT_RETENTION, MOST_TOKENS
from model_calls import MAX_TRIES, RETRY_CAP, RETRY_FIRST, Plan

from tallystick.core.backoff import Backoff
from tallystick.core.limits import Limits
from tallystick.core.message import OutgoingMessage, StoredMessage
from tallystick.core.ops import (
    Ack,
    AnswerChecks,
    Check,
    Commit,
    CommitBatch,
    Nack,
    PartRef,
    Prepare,
    PreparePart,
    Renew,
    Rollback,
    Send,
)
from tallystick.core.transaction import CheckDefaults
from tallystick.store.kv import parts
from tallystick.store.protocol import (
    ClaimChecks,
    DeleteTopic,
    ExpireParts,
    ExpireTombstones,
    FailChecks,
    OperatorResolve,
    PromoteDelayed,
    PutTopic,
    Receive,
    Resume,
    StoreOp,
    StoreSettings,
)

SETTINGS = StoreSettings(
    checks=CheckDefaults(CHECK_AFTER, MAX_CHECKS, Backoff(CHECK_FIRST, CHECK_CAP, jitter=0.0)),
    default_queues=2,
    limits=Limits(tokens=MOST_TOKENS),
    dedup_retention_ms=DEDUP,
    audit_retention_ms=AUDIT_RETENTION,
    max_attempts=MAX_ATTEMPTS,
    calls=Backoff(RETRY_FIRST, RETRY_CAP, jitter=0.0),
    max_call_attempts=MAX_TRIES,
)
CLAIM_LEASE = 500

gids = st.sampled_from([f"gid-{number}" for number in range(6)])
part_names = st.sampled_from(["part", "part-1", "part-2"])
groups = st.sampled_from(["g", "h"])
topics = st.sampled_from(["red", "blue"])
keys = st.sampled_from([None, "k1", "k2", "k3"])
few = st.integers(1, 3)


def visible(message: StoredMessage) -> Visible:
    return Visible((message.topic, message.key, message.value.decode()), message.gid, message.sequence)


class StoreMachine(CallRules, AccessRules, RuleBasedStateMachine):
    engine = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="tallystick-"))
        self.place: Place = open_place(self.engine, self.directory, SETTINGS)
        self.model = Model(self.place.now)
        self.number = 0
        self.receipts: list[tuple[str, str]] = []
        self.claims = []
        self.places_seen: dict[tuple[str, int, int], Visible] = {}
        self.ended: dict[str, list[int]] = {}  # of a topic that was deleted, where its queues ended

    def teardown(self) -> None:
        self.place.store.close()
        shutil.rmtree(self.directory)

    def texts(self, count: int, topic: str, key: str | None, variant: int) -> list[Text]:
        # A gid may be used anew once its tombstone is gone; what it then carries must be told from the first.
        return [(topic, key, f"{self.model.forgotten}.{variant}.{number}") for number in range(count)]

    def do(self, op: StoreOp, expected: str) -> Any:
        (result,) = self.place.write(op)
        assert word(result) == expected, (op, result, expected)
        return result

    # --- transactions ------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        """Two transactions to begin with, so that short histories are about something."""
        self.prepare("gid-0", "red", "k1", 1, 0, 2, "park", Plan(("http://a:1/x", "http://b:1/x")))
        self.prepare("gid-1", "blue", None, 2, 0, 3, "rollback", Plan())

    @rule(
        gid=gids,
        topic=topics,
        key=keys,
        count=few,
        variant=st.integers(0, 1),
        checks=few,
        exhausted=st.sampled_from(["park", "rollback"]),
        plan=st.sampled_from([Plan()] * len(PLANS) + PLANS),
    )
    def prepare(
        self, gid: str, topic: str, key: str | None, count: int, variant: int, checks: int, exhausted: str, plan: Plan
    ) -> None:
        texts = self.texts(count, topic, key, variant)
        check = Check(max_checks=checks, on_exhausted=exhausted)  # type: ignore[arg-type]
        expected = self.model.prepare(gid, "shop", texts, checks, exhausted, plan)
        calls, options = calls_of(gid, plan), options_of(plan)
        self.do(
            Prepare(gid, "shop", [outgoing(text) for text in texts], check, calls=calls, call_options=options), expected
        )
        if self.place.store.topic(topic) is not None:
            self.model.topics.setdefault(topic, [])

    @rule(
        gid=gids,
        names=st.lists(part_names, max_size=2, unique=True),
        wrong=st.booleans(),
        delay=st.sampled_from([0, 0, 700]),
    )
    def commit(self, gid: str, names: list[str], wrong: bool, delay: int) -> None:
        refs = [(name, len(self.model.part(name)) + (wrong and name == names[-1])) for name in names]
        self.do(Commit(gid, [PartRef(*ref) for ref in refs], delay), self.model.commit(gid, refs, delay))

    @rule(
        app=st.sampled_from(["app1", "app2"]),
        version=st.integers(0, 4),
        gid=gids,
        names=st.lists(part_names, max_size=2, unique=True),
        wrong=st.booleans(),
    )
    def commit_batch(self, app: str, version: int, gid: str, names: list[str], wrong: bool) -> None:
        refs = [(name, len(self.model.part(name)) + (wrong and name == names[-1])) for name in names]
        expected = self.model.commit_batch(app, version, gid, refs)
        self.do(CommitBatch(app, version, gid, [PartRef(*ref) for ref in refs]), expected)

    @rule(gid=gids)
    def commit_again(self, gid: str) -> None:
        for _ in range(2):
            self.do(Commit(gid), self.model.commit(gid, []))

    @rule(gid=gids, names=st.lists(part_names, max_size=1))
    def rollback(self, gid: str, names: list[str]) -> None:
        self.do(Rollback(gid, names), self.model.rollback(gid, names))

    @rule(gid=gids, outcome=st.sampled_from(["committed", "rolled_back"]))
    def operator(self, gid: str, outcome: Any) -> None:
        self.do(OperatorResolve(gid, outcome), self.model.operator(gid, outcome))

    @rule(gid=st.none() | gids, topic=topics, key=keys, delay=st.sampled_from([0, 0, 100, 2_000]))
    def send(self, gid: str | None, topic: str, key: str | None, delay: int) -> None:
        self.number += 1
        text = (topic, key, f"send-{self.number}")
        at = self.place.now + delay
        self.do(Send([outgoing(text, at)], gid), self.model.send(gid, text, at))

    @rule(
        name=part_names,
        index=st.integers(0, 2),
        variant=st.integers(0, 1),
        ttl=st.sampled_from([100, 10_000]),
        count=few,
        way=st.sampled_from(["kept", "laid down", "in columns"]),
    )
    def part(self, name: str, index: int, variant: int, ttl: int, count: int, way: str) -> None:
        texts = self.texts(count, "red", "k1", variant)
        messages = [outgoing(text) for text in texts]
        # A part of a few bytes is treated as a large one, whose messages lie in bodies.
        with laying_down_little(rows=1), patch.object(parts, "SMALL_BYTES", 0 if way != "kept" else parts.SMALL_BYTES):
            if way == "in columns":
                op: StoreOp = in_columns(self.place, name, messages, index, ttl)
            else:
                op = PreparePart(name, messages, index, ttl)
            expected = self.model.put_part(name, index, texts, ttl, way)
            self.do(op, expected)
        if expected == "ok":
            self.model.topics.setdefault("red", [])

    # --- topics ------------------------------------------------------------------------------------------------

    @rule(
        topic=st.sampled_from(["red", "blue", "dlq.g"]),
        made_again=st.booleans(),
        queues=st.sampled_from([None, 1, 3]),
    )
    def delete_topic(self, topic: str, made_again: bool, queues: int | None) -> None:
        view = self.place.store.topic(topic)
        self.do(DeleteTopic(topic), self.model.delete_topic(topic))
        if view is not None:
            before = self.ended.get(topic, [])
            self.ended[topic] = view.ends + before[view.queues :]
        if made_again:
            self.do(PutTopic(topic, queues), "ok")
            self.model.topics[topic] = []

    # --- time --------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 50, 200, 1_000, 5_000, DEDUP]))
    def wait(self, ms: int) -> None:
        self.place.wait(ms)
        self.model.wait_until(self.place.now)

    @rule()
    def sweep(self) -> None:
        self.place.write(ExpireParts(100), PromoteDelayed(100), ExpireTombstones(100))
        self.model.expire_parts()
        self.model.promote()
        self.model.expire_tombstones()

    @rule()
    def much_later(self) -> None:
        self.wait(DEDUP)
        self.sweep()
        self.expire_audit()

    @rule()
    def reopen(self) -> None:
        self.place.reopen()

    # --- checks --------------------------------------------------------------------------------------------------

    @rule()
    def claim(self) -> None:
        channels = [channel.id for channel in self.place.store.channels() if channel.via != "call"]
        claimed = self.place.claim(ClaimChecks(channels, 100, CLAIM_LEASE))
        assert len(claimed) == len(set(claimed))
        assert set(claimed) == self.model.claim(CLAIM_LEASE)

    @rule(gid=gids, said=st.sampled_from(["committed", "rolled_back", "unknown", "unknown"]))
    def answer(self, gid: str, said: Any) -> None:
        self.do(AnswerChecks({gid: said}), "ok")
        self.model.answer(gid, said)

    @rule(gid=gids, permanent=st.booleans())
    def fail(self, gid: str, permanent: bool) -> None:
        self.do(FailChecks({gid: "no answer"}, permanent), "ok")
        self.model.fail(gid, permanent)

    @rule(gid=gids)
    def resume(self, gid: str) -> None:
        self.do(Resume(gid), self.model.resume(gid))

    # --- consumers -----------------------------------------------------------------------------------------------

    @rule(group=groups, topic=topics, most=st.sampled_from([1, 2, 50]), invisible=st.sampled_from([50, 1_000]))
    def receive(self, group: str, topic: str, most: int, invisible: int) -> None:
        free = self.model.free(group, topic)
        result = self.do(Receive(group, topic, most, invisible), "ok")
        self.model.topics.setdefault(topic, [])
        lent = [visible(one.message) for one in result.deliveries]
        assert len(lent) <= most
        assert not Counter(lent) - Counter(free), "lent what is settled, lent already, or not there"
        for one, message in zip(result.deliveries, lent, strict=True):
            assert not self.model.worn_out(group, message)
            assert one.attempt == self.model.lend(group, message, one.receipt, self.place.now + invisible)
            self.receipts.append((group, one.receipt))
        self._note_dead(group, [one for one in free if one not in lent], everything=len(lent) < most)

    @rule(group=groups, topic=topics)
    def consumer_dies(self, group: str, topic: str) -> None:
        """What it held is lent again once the lease is over."""
        self.receive(group, topic, 50, 50)
        self.wait(50)
        self.receive(group, topic, 50, 1_000)

    def _note_dead(self, group: str, kept: list[Visible], everything: bool) -> None:
        """Messages that wore out were moved to the dead-letter topic on the way, all of them if there was room."""
        dead = {replaced(one) for one in map(visible, self.place.messages(f"dlq.{group}"))}
        known = {replaced(one) for one in self.model.topics.get(f"dlq.{group}", [])}
        for message in kept:
            if self.model.worn_out(group, message) and replaced(message) in dead - known:
                self.model.bury(group, message)
            else:
                assert not everything, f"{message} was free and not lent"

    def _some(self, data: st.DataObject) -> tuple[str, str, Visible | None] | None:
        if not self.receipts:
            return None
        group, receipt = data.draw(st.sampled_from(self.receipts))
        return group, receipt, self.model.holder(group, receipt)

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        if (some := self._some(data)) is not None:
            group, receipt, held = some
            self.do(Ack(group, [receipt]), "ok" if held else "stale_lease")
            if held:
                self.model.ack(group, held)

    @rule(data=st.data(), delay=st.sampled_from([0, 100]))
    def nack(self, data: st.DataObject, delay: int) -> None:
        if (some := self._some(data)) is not None:
            group, receipt, held = some
            self.do(Nack(group, [receipt], delay), "ok" if held else "stale_lease")
            if held:
                self.model.nack(group, held, delay)

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        if (some := self._some(data)) is not None:
            group, receipt, held = some
            self.do(Renew(group, [receipt], 300), "ok" if held else "stale_lease")
            if held:
                self.model.renew(group, held, 300)

    # --- what must hold after every step -------------------------------------------------------------------------

    @invariant()
    def same_messages(self) -> None:
        for topic in {*self.model.topics, *(view.name for view in self.place.store.topics())}:
            expected = self.model.topics.get(topic, [])
            found = self.place.messages(topic)
            assert Counter(map(visible, found)) == Counter(expected)
            order = {message: place for place, message in enumerate(expected)}
            queues: defaultdict[int, list[StoredMessage]] = defaultdict(list)
            homes: defaultdict[str, set[int]] = defaultdict(set)
            for one in found:
                queues[one.queue].append(one)
                if one.key is not None:
                    homes[one.key].add(one.queue)
                seen = self.places_seen.setdefault((topic, one.queue, one.offset), visible(one))
                assert seen == visible(one), "a message changed its place"
            assert all(len(known) == 1 for known in homes.values())
            self._dense(topic, queues)
            for queue in queues.values():
                if len(order) == len(expected):
                    assert [order[visible(one)] for one in queue] == sorted(order[visible(one)] for one in queue)

    def _dense(self, topic: str, queues: dict[int, list[StoredMessage]]) -> None:
        """A queue begins where it ended when a topic of that name was last deleted, and has every offset since."""
        view = self.place.store.topic(topic)
        for number in range(view.queues if view else 0):
            assert view is not None
            ended = self.ended.get(topic, [])
            begin = ended[number] if number < len(ended) else 0
            found = [one.offset for one in queues.get(number, [])]
            assert found == list(range(begin, view.ends[number]))
            assert (view.begins[number], view.starts[number]) == (begin, begin)

    @invariant()
    def same_transactions(self) -> None:
        views, after = self.place.store.scan(None, None, None, 1_000)
        assert after is None
        assert {one.gid: one.state for one in views} == {gid: one.state for gid, one in self.model.transactions.items()}
        for view in views:
            known = self.model.transactions[view.gid]
            assert self.place.store.transaction(view.gid) == view
            pushed = self.model.calls.pushed.get(view.gid)
            assert view.calls == (len(pushed.calls) if pushed else 0)
            if view.state in ("prepared", "parked"):
                assert (view.checks, view.messages) == (known.checks, len(known.messages))
            if view.state == "prepared":
                assert view.next_check_at == known.next_at

    @invariant()
    def same_counts(self) -> None:
        counts = self.place.store.counts()
        assert (counts.pending, counts.parked, counts.parts, counts.leased) == self.model.counts()
        assert (counts.oldest_pending_at is None) == (counts.pending == 0)


def replaced(message: Visible) -> tuple[str | None, str, str, int]:
    """A message without its topic: the same one before and after its death."""
    return message.text[1], message.text[2], message.gid, message.sequence


def outgoing(text: Text, deliver_at: int = 0) -> OutgoingMessage:
    topic, key, value = text
    return OutgoingMessage(topic, value.encode(), key, deliver_at=deliver_at)

"""What a store must do, in dicts and lists. Written from the rules, with no thought for speed or for disks.

Every method mirrors one operation: it changes the model and returns the word that the store must answer with,
`ok`, `duplicate`, or the code of the refusal. Checks are made without jitter, so that their times can be told.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from model_access import AccessModel
from model_calls import CallsModel, Plan

Text = tuple[str, str | None, str]  # topic, key, value

CHECK_AFTER, CHECK_FIRST, CHECK_CAP, MAX_CHECKS = 1_000, 200, 800, 3
DEDUP, MAX_ATTEMPTS = 50_000, 3


@dataclass
class Transaction:
    group: str
    messages: list[Text]
    state: str = "prepared"
    next_at: int = 0
    checks: int = 0
    max_checks: int = MAX_CHECKS
    on_exhausted: str = "park"
    resolved_at: int = 0
    plan: Plan | None = None
    checked: bool = False  # claimed, or told when to be: its check has a state of its own
    looked_at: int | None = None  # a tombstone that is kept for its calls: when to look at it again


@dataclass(frozen=True)
class Visible:
    """A message in a topic."""

    text: Text
    gid: str
    sequence: int


@dataclass(frozen=True)
class Lease:
    """Who has a message of a group, or had it last."""

    receipt: str
    attempt: int
    until: int


@dataclass
class Model:
    now: int
    transactions: dict[str, Transaction] = field(default_factory=dict)
    parts: dict[tuple[str, int], tuple[list[Text], int]] = field(default_factory=dict)
    laid: set[tuple[str, int]] = field(default_factory=set)  # parts whose messages lie in their topic already
    columnar: set[tuple[str, int]] = field(default_factory=set)  # of them, those that came in columns
    lost: set[tuple[str, int]] = field(default_factory=set)  # of them, those whose topic was deleted
    ledger: dict[str, int] = field(default_factory=dict)
    topics: dict[str, list[Visible]] = field(default_factory=dict)
    delayed: list[tuple[int, Visible]] = field(default_factory=list)
    leases: dict[tuple[str, Visible], Lease] = field(default_factory=dict)
    settled: set[tuple[str, Visible]] = field(default_factory=set)
    forgotten: int = 0  # tombstones that have expired
    calls: CallsModel = field(init=False)
    access: AccessModel = field(default_factory=AccessModel)

    def __post_init__(self) -> None:
        self.calls = CallsModel(self.now)

    def wait_until(self, now: int) -> None:
        self.now = self.calls.now = now

    # --- transactions ------------------------------------------------------------------------------------------

    def prepare(
        self, gid: str, group: str, messages: list[Text], max_checks: int, on_exhausted: str, plan: Plan
    ) -> str:
        known = self.transactions.get(gid)
        if known is None:
            if not self.calls.take(gid, plan):
                return "not_found"
            due = self.now + CHECK_AFTER
            made = Transaction(group, messages, "prepared", due, 0, max_checks, on_exhausted, plan=plan)
            self.transactions[gid] = made
            return "ok"
        if known.state in ("committed", "rolled_back"):
            return "already_resolved"
        same = (known.group, known.messages, known.plan or Plan()) == (group, messages, plan)
        return "duplicate" if same else "different_content"

    def commit(self, gid: str, parts: list[tuple[str, int]], delay: int = 0) -> str:
        known = self.transactions.get(gid)
        if known is not None and known.state in ("committed", "rolled_back"):
            return "duplicate" if known.state == "committed" else "outcome_conflict"
        if known is None and not parts:
            return "not_found"
        claimed: list[Text] = []
        for name, count in parts:
            found = self.part(name)
            if len(found) != count or self.is_lost(name):
                return "part_unavailable"
            claimed += found
        for name, _ in parts:
            self.drop_part(name)
        own = known.messages if known else []
        self.resolve(gid, "committed", own + claimed, delay)
        return "ok"

    def commit_batch(self, app: str, version: int, gid: str, parts: list[tuple[str, int]]) -> str:
        if version <= self.ledger.get(app, -1):
            for name, _ in parts:
                self.drop_part(name)
            return "duplicate"
        if gid in self.transactions:
            return "different_content"
        if any(len(self.part(name)) != count or self.is_lost(name) for name, count in parts):
            return "part_unavailable"
        claimed = [text for name, _ in parts for text in self.part(name)]
        for name, _ in parts:
            self.drop_part(name)
        self.resolve(gid, "committed", claimed)
        self.transactions[gid].group = app
        self.ledger[app] = version
        return "ok"

    def rollback(self, gid: str, parts: list[str]) -> str:
        known = self.transactions.get(gid)
        if known is not None and known.state in ("committed", "rolled_back"):
            return "duplicate" if known.state == "rolled_back" else "outcome_conflict"
        for name in parts:
            self.drop_part(name)
        self.resolve(gid, "rolled_back", [])
        return "ok"

    def operator(self, gid: str, outcome: str) -> str:
        known = self.transactions.get(gid)
        if known is None:
            return "not_found"
        if known.state in ("committed", "rolled_back"):
            return "duplicate" if known.state == outcome else "outcome_conflict"
        self.resolve(gid, outcome, known.messages)
        return "ok"

    def resolve(self, gid: str, outcome: str, messages: list[Text], delay: int = 0) -> None:
        known = self.transactions.setdefault(gid, Transaction("", []))
        known.state, known.resolved_at = outcome, self.now
        self.calls.settle(gid, outcome, delay)
        if outcome == "committed":
            for sequence, text in enumerate(messages):
                self.topics.setdefault(text[0], []).append(Visible(text, gid, sequence))

    def send(self, gid: str | None, text: Text, deliver_at: int) -> str:
        known = self.transactions.get(gid) if gid else None
        if known is not None:
            if known.state == "committed":
                return "duplicate"
            return "outcome_conflict" if known.state == "rolled_back" else "invalid_request"
        if gid:
            self.transactions[gid] = Transaction("", [], "committed", resolved_at=self.now)
        self.topics.setdefault(text[0], [])
        message = Visible(text, gid or "", 0)
        if deliver_at > self.now:
            self.delayed.append((deliver_at, message))
        else:
            self.topics[text[0]].append(message)
        return "ok"

    def send_calls(self, gid: str, plan: Plan) -> str:
        known = self.transactions.get(gid)
        if known is not None:
            if known.state == "committed":
                return "duplicate"
            return "outcome_conflict" if known.state == "rolled_back" else "invalid_request"
        if not self.calls.take(gid, plan):
            return "not_found"
        self.resolve(gid, "committed", [])
        return "ok"

    def expire_tombstones(self) -> None:
        """Those of transactions whose calls are not done are kept, and looked at again after another retention."""
        for gid, known in list(self.transactions.items()):
            if known.state not in ("committed", "rolled_back"):
                continue
            old = known.resolved_at <= self.now - DEDUP if known.looked_at is None else known.looked_at < self.now
            if old and self.calls.unfinished(gid):
                known.looked_at = self.now + DEDUP
            elif old:
                del self.transactions[gid]
                self.calls.pushed.pop(gid, None)
                self.forgotten += 1

    def promote(self) -> None:
        due = sorted((at, number) for number, (at, _) in enumerate(self.delayed) if at <= self.now)
        for _, number in due:
            message = self.delayed[number][1]
            self.topics[message.text[0]].append(message)
        self.delayed = [one for one in self.delayed if one[0] > self.now]

    # --- parts -------------------------------------------------------------------------------------------------

    def put_part(self, name: str, index: int, messages: list[Text], ttl: int, way: str) -> str:
        """The same messages in another form are another request: it is known by its bytes."""
        place = (name, index)
        known = self.parts.get(place)
        if known is not None:
            same = known[0] == messages and (place in self.columnar) == (way == "in columns")
            return "duplicate" if same else "different_content"
        self.parts[place] = (messages, self.now + ttl)
        if way != "kept":
            self.laid.add(place)
        if way == "in columns":
            self.columnar.add(place)
        return "ok"

    def is_lost(self, name: str) -> bool:
        return any(known == name for known, _ in self.lost)

    def part(self, name: str) -> list[Text]:
        indexes = sorted(index for known, index in self.parts if known == name)
        return [text for index in indexes for text in self.parts[(name, index)][0]]

    def drop_part(self, name: str) -> None:
        self._keep_parts({key: value for key, value in self.parts.items() if key[0] != name})

    def expire_parts(self) -> None:
        self._keep_parts({key: value for key, value in self.parts.items() if value[1] > self.now})

    def _keep_parts(self, kept: dict[tuple[str, int], tuple[list[Text], int]]) -> None:
        self.parts = kept
        self.laid &= kept.keys()
        self.columnar &= kept.keys()
        self.lost &= kept.keys()

    # --- topics ------------------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> str:
        """Takes everything with it that is in it or waits for its time; half messages are in no topic yet, unless
        they are of a part that was laid down."""
        if self.topics.pop(topic, None) is None:
            return "not_found"
        self.delayed = [one for one in self.delayed if one[1].text[0] != topic]
        self.leases = {key: lease for key, lease in self.leases.items() if key[1].text[0] != topic}
        self.settled = {one for one in self.settled if one[1].text[0] != topic}
        self.lost |= {key for key in self.laid if self.parts[key][0][0][0] == topic}
        return "ok"

    # --- checks ------------------------------------------------------------------------------------------------

    def claim(self, lease: int) -> set[str]:
        due = {gid for gid, one in self.transactions.items() if one.state == "prepared" and one.next_at <= self.now}
        for gid in due:
            self.transactions[gid].next_at, self.transactions[gid].checked = self.now + lease, True
        return due

    def answer(self, gid: str, said: str) -> None:
        known = self.transactions.get(gid)
        if known is None or known.state in ("committed", "rolled_back"):
            return
        if said == "unknown":
            self.fail(gid, permanent=False)
        else:
            self.resolve(gid, said, known.messages)

    def fail(self, gid: str, permanent: bool) -> None:
        known = self.transactions.get(gid)
        if known is None or known.state != "prepared":
            return
        known.checks, known.checked = known.checks + 1, True
        if known.checks >= known.max_checks:
            if known.on_exhausted == "rollback":
                self.resolve(gid, "rolled_back", [])
            else:
                known.state = "parked"
            return
        wait = min(CHECK_CAP, CHECK_FIRST * 2 ** (known.checks - 1))
        known.next_at = self.now + (CHECK_CAP if permanent else wait)

    def resume(self, gid: str) -> str:
        known = self.transactions.get(gid)
        if known is None:
            return "not_found"
        if known.state in ("committed", "rolled_back"):
            return "conflict"
        if known.state == "prepared":
            return "duplicate"
        known.state, known.checks, known.next_at = "prepared", 0, self.now
        return "ok"

    def hurry(self, gid: str) -> str:
        known = self.transactions.get(gid)
        if known is None:
            return "not_found"
        if known.state != "prepared":
            return "ok" if self.calls.hurry(gid) else "duplicate"
        if known.next_at <= self.now:
            return "duplicate"
        known.next_at, known.checked = self.now, True
        return "ok"

    def far_away(self, after: int) -> set[str]:
        """Transactions whose next check, other than the first, or whose next try waits longer than that."""
        checked = {gid for gid, one in self.transactions.items() if one.state == "prepared" and one.checked}
        far = {gid for gid in checked if self.transactions[gid].next_at > self.now + after}
        return far | self.calls.far_away(after)

    # --- leases ------------------------------------------------------------------------------------------------

    def free(self, group: str, topic: str) -> list[Visible]:
        """What a receive may hand out now."""
        return [one for one in self.topics.get(topic, []) if self._is_free(group, one)]

    def _is_free(self, group: str, message: Visible) -> bool:
        lease = self.leases.get((group, message))
        return (group, message) not in self.settled and (lease is None or lease.until <= self.now)

    def worn_out(self, group: str, message: Visible) -> bool:
        lease = self.leases.get((group, message))
        return lease is not None and lease.attempt >= MAX_ATTEMPTS

    def lend(self, group: str, message: Visible, receipt: str, until: int) -> int:
        before = self.leases.get((group, message))
        attempt = before.attempt + 1 if before else 1
        self.leases[(group, message)] = Lease(receipt, attempt, until)
        return attempt

    def holder(self, group: str, receipt: str) -> Visible | None:
        """The message that a receipt still holds."""
        found = [one for (known, one), lease in self.leases.items() if known == group and lease.receipt == receipt]
        return found[0] if found else None

    def ack(self, group: str, message: Visible) -> None:
        del self.leases[(group, message)]
        self.settled.add((group, message))

    def nack(self, group: str, message: Visible, delay: int) -> bool:
        """Whether it died."""
        lease = self.leases[(group, message)]
        if lease.attempt >= MAX_ATTEMPTS:
            self.bury(group, message)
            return True
        self.leases[(group, message)] = replace(lease, receipt="given back", until=self.now + delay)
        return False

    def renew(self, group: str, message: Visible, invisible: int) -> None:
        self.leases[(group, message)] = replace(self.leases[(group, message)], until=self.now + invisible)

    def bury(self, group: str, message: Visible) -> None:
        self.ack(group, message)
        _, key, value = message.text
        letter = replace(message, text=(f"dlq.{group}", key, value))
        self.topics.setdefault(f"dlq.{group}", []).append(letter)

    # --- numbers -------------------------------------------------------------------------------------------------

    def counts(self) -> tuple[int, int, int, int]:
        """Pending, parked, parts, leased."""
        states = [one.state for one in self.transactions.values()]
        parked = states.count("parked")
        return states.count("prepared") + parked, parked, len(self.parts), len(self.leases)

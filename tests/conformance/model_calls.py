"""What a store must do with calls, in dicts and lists; the part of the model that `model.py` leaves to this file.

Waits are made without jitter, and claims take the oldest first, so that every answer of the store can be told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

RETRY_FIRST, RETRY_CAP, MAX_TRIES = 100, 400, 3


class Plan(NamedTuple):
    """The calls that a transaction asks for: URLs, and how they are to be made."""

    urls: tuple[str, ...] = ()
    concurrent: bool = False
    delay: int = 0
    tries: int | None = None


@dataclass
class Call:
    url: str
    branch: str
    state: str = "behind"  # behind, waiting, leased, done, parked, stopped
    next_at: int = 0
    attempts: int = 0
    failures: int = 0
    why: str = "first"  # first, retry, unreached

    @property
    def host(self) -> str:
        return "/".join(self.url.split("/")[:3])

    @property
    def public(self) -> str:
        return "waiting" if self.state in ("behind", "leased") else self.state


@dataclass
class Pushed:
    """The calls of one transaction. `outcome` is empty until it has one."""

    plan: Plan
    calls: list[Call]
    created_at: int
    outcome: str = ""
    finished_at: int = 0

    @property
    def state(self) -> str:
        if self.outcome != "committed":
            return "dropped" if self.outcome else "held"
        states = [call.public for call in self.calls]
        return next((one for one in ("waiting", "parked", "stopped") if one in states), "done")


@dataclass
class CallsModel:
    now: int
    pushed: dict[str, Pushed] = field(default_factory=dict)
    topics: dict[str, list[str]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    """The hosts whose line has grown since the last look."""

    # --- coming in -----------------------------------------------------------------------------------------------

    def expand(self, plan: Plan) -> list[Call] | None:
        """The calls that a plan stands for now; None if it names a topic that nobody subscribes to."""
        found: list[Call] = []
        for place, url in enumerate(plan.urls, 1):
            if not url.startswith("topic://"):
                found.append(Call(url, f"{place:02d}"))
                continue
            subscribers = self.topics.get(url.removeprefix("topic://"), [])
            if not subscribers:
                return None
            for number, one in enumerate(subscribers, 1):
                found.append(Call(one, f"{place:02d}" if len(subscribers) == 1 else f"{place:02d}-{number:02d}"))
        return found

    def take(self, gid: str, plan: Plan) -> bool:
        """Keep the calls of a new transaction; False if they are refused."""
        calls = self.expand(plan)
        if calls:
            self.pushed[gid] = Pushed(plan, calls, self.now)
        return calls is not None

    def settle(self, gid: str, outcome: str, delay: int = 0) -> None:
        pushed = self.pushed.get(gid)
        if pushed is None:
            return
        pushed.outcome = outcome
        if outcome == "rolled_back":
            pushed.finished_at = self.now
            return
        for call in pushed.calls:
            wait = max(pushed.plan.delay, delay)
            call.next_at = pushed.created_at + wait if wait else 0
        self._line_up(pushed)

    def _line_up(self, pushed: Pushed) -> None:
        for call in pushed.calls:
            if call.state == "behind":
                self._put(call, max(self.now, call.next_at), "first")
            if call.state != "done" and not pushed.plan.concurrent:
                return

    def _put(self, call: Call, at: int, why: str) -> None:
        call.state, call.next_at, call.why = "waiting", at, why
        self.called.add(call.host)

    # --- being made ------------------------------------------------------------------------------------------------

    def _in(self, state: str) -> list[tuple[int, str, int, Call]]:
        """The calls in a state, in the order of their time."""
        found = [
            (call.next_at, gid, index, call)
            for gid, pushed in self.pushed.items()
            if pushed.outcome == "committed"
            for index, call in enumerate(pushed.calls)
            if call.state == state
        ]
        return sorted(found, key=lambda one: one[:3])

    def requeue(self, limit: int, everything: bool) -> int:
        """Put those back whose lease is over; how many there were."""
        over = [one for one in self._in("leased") if everything or one[0] <= self.now][:limit]
        for _, _, _, call in over:
            self._put(call, self.now, "unreached")
        return len(over)

    def claim(self, host: str, limit: int, lease: int, early: bool) -> list[tuple[str, int]]:
        line = [one for one in self._in("waiting") if one[3].host == host]
        due = [one for one in line if one[0] <= self.now or (early and one[3].why == "unreached")][:limit]
        for _, _, _, call in due:
            call.state, call.next_at = "leased", self.now + lease
        return [(gid, index) for _, gid, index, _ in due]

    def next_due(self, host: str) -> int | None:
        line = [at for at, _, _, call in self._in("waiting") if call.host == host]
        return min(line, default=None)

    def finish(self, gid: str, index: int, outcome: str, own: bool = False) -> None:
        pushed = self.pushed.get(gid)
        if pushed is None or pushed.outcome != "committed" or pushed.calls[index].state == "done":
            return
        call = pushed.calls[index]
        if outcome == "success":
            call.state, call.next_at = "done", 0
            call.attempts += 1
            self._line_up(pushed)
            if all(one.state in ("done", "stopped") for one in pushed.calls):
                pushed.finished_at = self.now
        elif call.state == "leased":
            self._again(pushed, call, outcome, own)

    def _again(self, pushed: Pushed, call: Call, outcome: str, own: bool) -> None:
        if outcome == "released":
            self._put(call, self.now, "unreached")
            return
        call.attempts += 1
        if call.attempts >= (pushed.plan.tries or MAX_TRIES):
            call.state, call.next_at = "parked", 0
            return
        wait = RETRY_FIRST
        if outcome != "ongoing":
            call.failures += 1
            wait = min(RETRY_CAP, RETRY_FIRST * 2 ** (call.failures - 1))
        self._put(call, self.now + wait, "unreached" if outcome == "unreachable" and not own else "retry")

    # --- an operator's word ----------------------------------------------------------------------------------------

    def _under_way(self, gid: str) -> Pushed | None:
        pushed = self.pushed.get(gid)
        return pushed if pushed and pushed.outcome == "committed" else None

    def resume(self, gid: str) -> str:
        pushed = self._under_way(gid)
        if pushed is None:
            return "not_found"
        parked = [call for call in pushed.calls if call.state == "parked"]
        for call in parked:
            call.attempts = call.failures = 0
            self._put(call, self.now, "retry")
        return "ok" if parked else "duplicate"

    def stop(self, gid: str) -> str:
        pushed = self._under_way(gid)
        if pushed is None:
            return "not_found"
        left = [call for call in pushed.calls if call.state not in ("done", "stopped")]
        if not left:
            return "duplicate" if any(call.state == "stopped" for call in pushed.calls) else "conflict"
        for call in left:
            call.state, call.next_at = "stopped", 0
        pushed.finished_at = self.now
        return "ok"

    def hurry(self, gid: str) -> bool:
        """Whether there was something to bring forward."""
        pushed = self._under_way(gid)
        waiting = [call for call in pushed.calls if call.state == "waiting"] if pushed else []
        moved = [call for call in waiting if call.attempts and call.next_at > self.now]
        for call in moved:
            self._put(call, self.now, "retry")
        return bool(moved)

    def far_away(self, after: int) -> set[str]:
        """Transactions with a try that waits longer than that, after one that failed."""
        return {gid for at, gid, _, call in self._in("waiting") if at > self.now + after and call.why != "first"}

    # --- call topics -----------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, url: str) -> str:
        if url in self.topics.get(topic, []):
            return "conflict"
        self.topics.setdefault(topic, []).append(url)
        self.versions[topic] = self.versions.get(topic, 0) + 1
        return "ok"

    def unsubscribe(self, topic: str, url: str) -> str:
        if url not in self.topics.get(topic, []):
            return "not_found"
        self.topics[topic].remove(url)
        self.versions[topic] += 1
        return "ok"

    def drop_topic(self, topic: str) -> str:
        if topic not in self.topics:
            return "not_found"
        del self.topics[topic], self.versions[topic]
        return "ok"

    # --- looking ---------------------------------------------------------------------------------------------------

    def counts(self) -> tuple[int, int]:
        """Waiting, parked."""
        states = [
            call.public for pushed in self.pushed.values() if pushed.outcome == "committed" for call in pushed.calls
        ]
        return states.count("waiting"), states.count("parked")

    def listed(self, state: str) -> set[tuple[str, int]]:
        """What a list of waiting or parked calls shows: those in line or under lease, not those behind another."""
        names = ("waiting", "leased") if state == "waiting" else ("parked",)
        return {(gid, index) for name in names for _, gid, index, _ in self._in(name)}

    def unfinished(self, gid: str) -> bool:
        pushed = self.pushed.get(gid)
        return pushed is not None and not pushed.finished_at

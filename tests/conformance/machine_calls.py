"""The rules and invariants about calls of the machine that makes random histories."""

from __future__ import annotations

from typing import Any

from engines import Place
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from model import Model
from model_calls import Plan

from tallystick.core.calls import CallPolicy, CallResult, CallView, OutgoingCall
from tallystick.core.ops import OpResult, Send
from tallystick.store.protocol import (
    ClaimCalls,
    DropCallTopic,
    FinishCalls,
    Hurry,
    HurryAll,
    RequeueCalls,
    ResumeCalls,
    StopCalls,
    Subscribe,
    Unsubscribe,
)

CALL_LEASE = 300
A, B = "http://a:1/x", "http://b:1/x"

gids = st.sampled_from([f"gid-{number}" for number in range(6)])
# In order, at once, one host and two, delayed, with few tries, through a topic: each a few times.
PLANS = [
    Plan((A,)),
    Plan((A, B)),
    Plan((A, "http://a:1/y", B)),
    Plan((A, B), concurrent=True),
    Plan((A,), delay=500),
    Plan((B, A), tries=1),
    Plan(("topic://news", A)),
]
plans = st.sampled_from(PLANS)
call_topics = st.sampled_from(["news", "olds"])
subscribers = st.sampled_from([A, B, "http://c:1/x"])
OUTCOMES = ["success", "success", "success", "failure", "ongoing", "error", "unreachable", "released"]


def word(result: Any) -> str:
    """A store's answer as the model says it."""
    if isinstance(result, OpResult):
        return result.error or ("duplicate" if result.duplicate else "ok")
    return "ok"


def calls_of(gid: str, plan: Plan) -> list[OutgoingCall]:
    return [OutgoingCall(url, f"{gid} {place}".encode(), delay_ms=plan.delay) for place, url in enumerate(plan.urls)]


def options_of(plan: Plan) -> CallPolicy | None:
    return CallPolicy(plan.concurrent, max_attempts=plan.tries) if plan.urls else None


class CallRules:
    """Mixed into the machine, which has the store's place and the model."""

    place: Place
    model: Model
    claims: list[tuple[str, int, int]]
    """Every call that was ever claimed, and how many tombstones had expired by then: results may come late."""

    def do(self, op: Any, expected: str) -> Any:
        raise NotImplementedError

    def wait(self, ms: int) -> None:
        raise NotImplementedError

    # --- coming in -----------------------------------------------------------------------------------------------

    @rule(gid=gids, plan=plans)
    def send_calls(self, gid: str, plan: Plan) -> None:
        op = Send([], gid, calls=calls_of(gid, plan), call_options=options_of(plan))
        self.do(op, self.model.send_calls(gid, plan))

    # --- being made ------------------------------------------------------------------------------------------------

    @rule(limit=st.sampled_from([1, 2, 100, 100]), early=st.booleans())
    def claim_calls(self, limit: int, early: bool) -> None:
        channels = {one.id: one.name for one in self.place.store.channels() if one.via == "call"}
        made = self.do(ClaimCalls(list(channels), limit, 10**9, CALL_LEASE, early), "ok")
        self.model.calls.requeue(limit, everything=False)
        for channel, host in channels.items():
            claimed = [(one.gid, one.index) for one in made.claims if one.channel == channel]
            assert claimed == self.model.calls.claim(host, limit, CALL_LEASE, early)
            told, due = made.next_due[channel], self.model.calls.next_due(host)
            # After a stop it may be too early: then the deliverer looks once for nothing.
            assert told == due or (told is not None and self.model.now < told and (due is None or told < due))
        for one in made.claims:
            known = self.model.calls.pushed[one.gid].calls[one.index]
            assert (one.call.url, one.call.branch, one.attempts) == (known.url, known.branch, known.attempts)
            assert one.call.body == self.place.store.call_body(one.gid, one.index)
            assert one.call.body.decode().startswith(one.gid)
            self.claims.append((one.gid, one.index, self.model.forgotten))

    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), own=st.booleans())
    def finish_call(self, data: st.DataObject, outcome: Any, own: bool) -> None:
        """A result of now or of long ago, but not from before the gid was forgotten."""
        known = [(gid, index) for gid, index, forgotten in self.claims if forgotten == self.model.forgotten]
        if known:
            gid, index = data.draw(st.sampled_from(known))
            self.do(FinishCalls([CallResult(gid, index, outcome, "why", own)]), "ok")
            self.model.calls.finish(gid, index, outcome, own)

    @rule(outcome=st.sampled_from(OUTCOMES))
    def make_every_call(self, outcome: Any) -> None:
        """Claim all that is due, and let it come to the same end in one unit."""
        before = len(self.claims)
        self.claim_calls(100, False)
        taken = [(gid, index) for gid, index, _ in self.claims[before:]]
        self.do(FinishCalls([CallResult(gid, index, outcome, "why") for gid, index in taken]), "ok")
        for gid, index in taken:
            self.model.calls.finish(gid, index, outcome)

    @rule(limit=st.sampled_from([1, 100]), everything=st.booleans())
    def requeue_calls(self, limit: int, everything: bool) -> None:
        progress = self.do(RequeueCalls(limit, everything), "ok")
        assert progress.done == self.model.calls.requeue(limit, everything)
        assert progress.more == (progress.done >= limit)

    @rule(gid=gids, other=gids, plan=plans, outcome=st.sampled_from(OUTCOMES), stops=st.booleans())
    def in_one_unit(self, gid: str, other: str, plan: Plan, outcome: Any, stops: bool) -> None:
        """Calls that come in, are claimed and finished twice in the same group commit, as under load."""
        channels = {one.id: one.name for one in self.place.store.channels() if one.via == "call"}
        claim = ClaimCalls(list(channels), 100, 10**9, CALL_LEASE)
        ops: list[Any] = [Send([], gid, calls=calls_of(gid, plan), call_options=options_of(plan))]
        words, claims = [self.model.send_calls(gid, plan)], []
        for _ in range(2):
            taken = self._claimed_by_the_model(channels)
            claims.append(taken)
            results = [CallResult(one, index, outcome, "why") for one, index in taken]
            for one, index in taken:
                self.model.calls.finish(one, index, outcome)
            ops += [claim, FinishCalls(results)]
        operator: Any = (StopCalls if stops else Hurry)(other)
        words.append(self.model.calls.stop(other) if stops else self.model.hurry(other))
        sent, first, _, second, _, told = self.place.write(*ops, operator)
        assert [word(sent), word(told)] == words
        assert [[(one.gid, one.index) for one in made.claims] for made in (first, second)] == claims

    def _claimed_by_the_model(self, channels: dict[int, str]) -> list[tuple[str, int]]:
        self.model.calls.requeue(100, everything=False)
        return [one for host in channels.values() for one in self.model.calls.claim(host, 100, CALL_LEASE, early=False)]

    @rule()
    def deliverer_dies(self) -> None:
        """What it held is made by another once the lease is over."""
        self.claim_calls(100, False)
        self.wait(CALL_LEASE)
        self.claim_calls(100, False)

    # --- an operator's word ----------------------------------------------------------------------------------------

    @rule(gid=gids)
    def resume_calls(self, gid: str) -> None:
        self.do(ResumeCalls(gid), self.model.calls.resume(gid))

    @rule(gid=gids)
    def stop_calls(self, gid: str) -> None:
        self.do(StopCalls(gid), self.model.calls.stop(gid))

    @rule(gid=gids)
    def hurry(self, gid: str) -> None:
        self.do(Hurry(gid), self.model.hurry(gid))

    @rule(after=st.sampled_from([0, 150, 1_000]))
    def hurry_all(self, after: int) -> None:
        far = self.model.far_away(after)
        progress = self.do(HurryAll(after, 100), "ok")
        assert (progress.done, progress.more) == (len(far), False)
        for gid in far:
            assert self.model.hurry(gid) == "ok"

    # --- call topics -----------------------------------------------------------------------------------------------

    @rule(topic=call_topics, url=subscribers)
    def subscribe(self, topic: str, url: str) -> None:
        self.do(Subscribe(topic, url), self.model.calls.subscribe(topic, url))

    @rule(topic=call_topics, url=subscribers)
    def unsubscribe(self, topic: str, url: str) -> None:
        self.do(Unsubscribe(topic, url), self.model.calls.unsubscribe(topic, url))

    @rule(topic=call_topics)
    def drop_call_topic(self, topic: str) -> None:
        self.do(DropCallTopic(topic), self.model.calls.drop_topic(topic))

    # --- what must hold after every step -------------------------------------------------------------------------

    @invariant()
    def same_calls(self) -> None:
        for gid in self.model.transactions:
            view, known = self.place.store.calls(gid), self.model.calls.pushed.get(gid)
            assert (view is None) == (known is None), gid
            if view is None or known is None:
                continue
            assert (view.state, view.concurrent) == (known.state, known.plan.concurrent)
            assert view.transaction == self.model.transactions[gid].state
            assert bool(view.finished_at) == bool(known.finished_at)
            assert [shown(one) for one in view.calls] == [
                (call.url, call.branch, call.public if known.outcome == "committed" else known.state, call.attempts)
                for call in known.calls
            ]
            for one, call in zip(view.calls, known.calls, strict=True):
                assert one.next_at == (call.next_at if call.state in ("waiting", "leased") else 0)

    @invariant()
    def same_lists(self) -> None:
        counts = self.place.store.counts()
        assert (counts.calls_waiting, counts.calls_parked) == self.model.calls.counts()
        for state in ("waiting", "parked"):
            listed, after = self.place.store.scan_calls(state, None, 1_000)
            assert after is None
            assert {(one.gid, one.index) for one in listed} == self.model.calls.listed(state)
            assert len(listed) == len(self.model.calls.listed(state))

    @invariant()
    def same_call_topics(self) -> None:
        views = self.place.store.call_topics()
        found = {one.topic: (one.version, [who.url for who in one.subscribers]) for one in views}
        known = self.model.calls
        assert found == {topic: (known.versions[topic], urls) for topic, urls in known.topics.items()}

    @invariant()
    def deliverers_are_woken(self) -> None:
        names = {one.id: one.name for one in self.place.store.channels()}
        woken = {names[channel] for channel in self.place.take_made().called}
        assert woken == self.model.calls.called
        self.model.calls.called.clear()


def shown(view: CallView) -> tuple[str, str, str, int]:
    return view.url, view.branch, view.state, view.attempts

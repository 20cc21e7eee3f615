"""The rules and invariants about access of the machine that makes random histories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines import Place
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from model import Model
from model_access import AccessModel, may_touch

from tallystick.core.access import Grant
from tallystick.core.ops import AnswerChecks, Commit, Rollback
from tallystick.core.token_records import TokenRecord
from tallystick.store.protocol import (
    Audited,
    AuditQuery,
    DropToken,
    ExpireAudit,
    Guarded,
    Hurry,
    OperatorResolve,
    PutToken,
    Resume,
    ResumeCalls,
    StopCalls,
)

gids = st.sampled_from([f"gid-{number}" for number in range(6)])
names = st.sampled_from(["ann", "bob", "cid"])
patterns = st.sampled_from([("shop",), ("bank", "sh*"), ("bank",), ("app*",), ("*",)])

Deciding = Callable[[Model, str], str]
# Operations on a transaction, and what the model says of each.
TOUCHING: dict[str, tuple[Callable[[str], Any], Deciding]] = {
    "commit": (Commit, lambda model, gid: model.commit(gid, [])),
    "rollback": (Rollback, lambda model, gid: model.rollback(gid, [])),
    "resolve": (
        lambda gid: OperatorResolve(gid, "committed"),
        lambda model, gid: model.operator(gid, "committed"),
    ),
    "resume": (Resume, lambda model, gid: model.resume(gid)),
    "hurry": (Hurry, lambda model, gid: model.hurry(gid)),
    "resume calls": (ResumeCalls, lambda model, gid: model.calls.resume(gid)),
    "stop calls": (StopCalls, lambda model, gid: model.calls.stop(gid)),
}
SAID_AGAIN = ("commit", "rollback")  # by whoever likes, of what is nobody's


class AccessRules:
    """Mixed into the machine, which has the store's place and the model."""

    place: Place
    model: Model

    @property
    def access(self) -> AccessModel:
        return self.model.access

    def do(self, op: Any, expected: str) -> Any:
        raise NotImplementedError

    # --- tokens --------------------------------------------------------------------------------------------------

    @rule(name=names, token_id=st.sampled_from(["1", "2"]), audited=st.booleans())
    def put_token(self, name: str, token_id: str, audited: bool) -> None:
        op = PutToken(TokenRecord(name, token_id, f"digest-{token_id}", (Grant(("reader",)),), self.place.now))
        self._act(op, self.access.put_token(name, token_id), name, audited)

    @rule(name=names, token_id=st.sampled_from(["", "", "1", "2"]), audited=st.booleans())
    def drop_token(self, name: str, token_id: str, audited: bool) -> None:
        self._act(DropToken(name, token_id), self.access.drop_token(name, token_id), name, audited)

    # --- guards --------------------------------------------------------------------------------------------------

    @rule(what=st.sampled_from(sorted(TOUCHING)), gid=gids, groups=patterns, audited=st.booleans())
    def touch_for_somebody(self, what: str, gid: str, groups: tuple[str, ...], audited: bool) -> None:
        make, decide = TOUCHING[what]
        expected = decide(self.model, gid) if self._may(what, gid, groups) else "forbidden"
        self._act(Guarded(make(gid), groups), expected, gid, audited)

    @rule(some=st.lists(gids, min_size=1, max_size=3, unique=True), groups=patterns)
    def answer_for_somebody(self, some: list[str], groups: tuple[str, ...]) -> None:
        """One of them commits: in which order those of one answer become visible is nobody's business."""
        answers: dict[str, Any] = {gid: "rolled_back" if place else "committed" for place, gid in enumerate(some)}
        foreign = [gid for gid in some if not self._may("answer", gid, groups)]
        for gid, said in answers.items():
            if gid not in foreign:
                self.model.answer(gid, said)
        self.do(Guarded(AnswerChecks(answers), groups), "forbidden" if foreign else "ok")

    def _may(self, what: str, gid: str, groups: tuple[str, ...]) -> bool:
        known = self.model.transactions.get(gid)
        if known is None or may_touch(groups, known.group):
            return True
        return not known.group and what in SAID_AGAIN

    # --- the audit log ---------------------------------------------------------------------------------------------

    @rule()
    def expire_audit(self) -> None:
        self.place.write(ExpireAudit(100))
        self.access.expire(self.place.now)

    def _act(self, op: Any, expected: str, subject: str, audited: bool) -> None:
        if not audited:
            self.do(op, expected)
            return
        action = type(op).__name__
        self.do(Audited(op, "ann", "token", "10.0.0.1", action, subject), expected)
        self.access.write_down(expected, (self.place.now, action, subject))

    # --- what must hold after every step -------------------------------------------------------------------------

    @invariant()
    def same_tokens(self) -> None:
        assert {one.name: one.id for one in self.place.store.tokens()} == self.access.tokens

    @invariant()
    def same_deeds(self) -> None:
        lines, after = self.place.store.audit(AuditQuery(1_000))
        assert after is None
        assert [(one.at, one.action, one.subject) for one in reversed(lines)] == self.access.deeds
        assert all((one.who, one.kind, one.source) == ("ann", "token", "10.0.0.1") for one in lines)

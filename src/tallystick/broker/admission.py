"""What a client's operations must keep to before anything of them is stored: limits, the allow-list, the drain."""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.broker.checkback.databases import BarrierDatabases
from tallystick.broker.config import Config
from tallystick.broker.outbound.allow_list import AllowedUrls
from tallystick.core.calls import OutgoingCall, check_body
from tallystick.core.errors import InvalidRequest, NotAllowed, TallystickError
from tallystick.core.headers import check_headers
from tallystick.core.limits import Limits
from tallystick.core.ops import ClientOp, Prepare, PrepareColumns, PreparePart, Send
from tallystick.core.urls import TOPIC_SCHEME
from tallystick.store.protocol import BrokerOp, Subscribe


class Admission:
    """Refuses by raising. While there is a `refusal` for all, nothing new is taken; what was accepted may still be
    settled."""

    def __init__(self, config: Config, limits: Limits, allowed: AllowedUrls, databases: BarrierDatabases) -> None:
        self._config, self._limits, self._allowed, self._databases = config, limits, allowed, databases
        self.refusal: type[TallystickError] | None = None

    def check(self, ops: Sequence[ClientOp | PrepareColumns]) -> int | None:
        """Refuse what breaks a rule; tell the shortest time to a first check among what is prepared."""
        soonest: int | None = None
        for index, op in enumerate(ops):
            kind = type(op)
            if kind is Prepare:
                self._check_prepare(op, f"ops[{index}]")  # type: ignore[arg-type]
                after = op.check.after_ms  # type: ignore[union-attr]
                after = self._config.check_after if after is None else after
                soonest = after if soonest is None else min(soonest, after)
            elif kind is Send:
                self._limits.check_messages(op.messages, f"ops[{index}].messages")  # type: ignore[union-attr,arg-type]
                if op.calls:  # type: ignore[union-attr]
                    self._check_calls(op.calls, f"ops[{index}].calls")  # type: ignore[union-attr]
            elif kind is PreparePart:
                most = self._limits.part_messages
                self._limits.check_messages(op.messages, f"ops[{index}].messages", most)  # type: ignore[union-attr,arg-type]
            if self.refusal is not None and kind in (Prepare, PrepareColumns, PreparePart, Send):
                raise self.refusal()
        return soonest

    def check_action(self, op: BrokerOp) -> None:
        if isinstance(op, Subscribe) and op.url:
            self._allowed.check(op.url, "url")

    def refuse_while_draining(self) -> None:
        if self.refusal is not None:
            raise self.refusal()

    def _check_prepare(self, op: Prepare, at: str) -> None:
        self._limits.check_messages(op.messages, at + ".messages")
        if op.calls:
            self._check_calls(op.calls, at + ".calls")
        check = op.check
        if check.via == "group":
            return
        if check.via == "none":
            self._check_unchecked(at + ".check.via")
            return
        if not check.target:
            field = at + ".check.target"
            raise InvalidRequest(f"{field}: a check-back by {check.via} needs its {check.via} here", field=field)
        if check.via == "url":
            check_headers(check.headers, at + ".check.headers", check.target)
            self._allowed.check(check.target, at + ".check.target")
        else:
            self._databases.check(check.target, at + ".check.target")

    def _check_unchecked(self, at: str) -> None:
        if not self._config.allow_unchecked:
            raise NotAllowed(
                f"{at}: a transaction that nobody can be asked about would be committed blindly; name a check-back, "
                "or let the operator set allow_unchecked",
                field=at,
            )

    def _check_calls(self, calls: list[OutgoingCall], at: str) -> None:
        self._limits.check_calls(calls, at)
        for index, call in enumerate(calls):
            check_headers(call.headers, f"{at}[{index}].headers", call.url)
            if not call.url.startswith(TOPIC_SCHEME):
                self._allowed.check(call.url, f"{at}[{index}].url")
                check_body(call, call.url, f"{at}[{index}]")

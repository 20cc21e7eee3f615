"""What one broker of a cluster knows and wants, without I/O: what it tells of itself, what follows from a look."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from tallystick.broker.cluster.spread import spread
from tallystick.broker.cluster.succession import Succession
from tallystick.broker.cluster.watch import Watch
from tallystick.core.addresses import broker_address
from tallystick.store.shared.registry import Holding, Member, Seen

LEASE_MS = 3_000
TICK_MS = 250


class Todo(Struct, frozen=True):
    """What follows from a look. Everything in it is safe to do late, twice or not at all: the epochs decide."""

    lost: tuple[int, ...] = ()  # stores that are no longer ours
    take: tuple[Holding, ...] = ()
    give: tuple[Holding, ...] = ()  # best one at a time, unless the broker leaves
    forget: tuple[str, ...] = ()


class Membership:
    """Of a store that was taken or released while a look was under way, that look may show what is no longer so:
    whoever runs this must put in what is known."""

    def __init__(self, me: Member, lease_ms: int = LEASE_MS) -> None:
        self.me, self.lease_ms = me, lease_ms
        self.held: dict[int, int] = {}  # the epochs under which stores are ours, by their numbers
        self._succession = Succession()
        self._watch = Watch(lease_ms)
        self._at_my_address: set[str] = set()  # others who tell that they are where we are
        self._on_other_machines: set[str] = set()

    def beat(self) -> Member:
        """What to tell with the next look."""
        self.me = msgspec.structs.replace(self.me, beat=self.me.beat + 1)
        return self.me

    def leave(self) -> None:
        self.me = msgspec.structs.replace(self.me, leaving=True)

    def alive(self, member_id: str) -> bool:
        """As far as can be seen from here. Whoever was at our address before us cannot be there any more, unless it is
        seen to live: then two have been given one address."""
        if member_id in self._at_my_address and self._watch.left_behind(member_id):
            return False
        return member_id == self.me.id or self._watch.alive(member_id)

    def owned(self, holdings: Iterable[Holding], at: int) -> None:
        """These are the owners now, as a look or what was done since tells."""
        self._succession.saw(holdings, at, self._watch.seen_at)

    def silent_ms(self, member_id: str, now: int) -> int | None:
        """How long ago its last beat was seen."""
        seen_at = self._watch.seen_at(member_id)
        return None if seen_at is None else now - seen_at

    def owned_ms(self, number: int, now: int) -> int:
        """For how long the owner that this store has, or nobody, was seen to have it."""
        return now - self._succession.reigns[number].since_ms

    def vacant_ms(self, number: int) -> int | None:
        """How long nobody was seen to have it before."""
        return self._succession.reigns[number].vacant_ms

    def twins(self) -> list[str]:
        """Others who live at our address, where only one of us can be asked."""
        return self._living(self._at_my_address)

    def strangers(self) -> list[str]:
        """Others who live on machines from which our address does not lead to us."""
        return self._living(self._on_other_machines) if broker_address(self.me.url).loopback else []

    def _living(self, members: set[str]) -> list[str]:
        return sorted(member_id for member_id in members if self._watch.beating(member_id))

    def others_stay(self, seen: Seen | None) -> bool:
        """Whether somebody else is there to take over."""
        members = () if seen is None else seen.members
        return any(
            member.id != self.me.id and not member.leaving and self.alive(member.id) and member.url
            for member in members
        )

    def won(self, number: int, epoch: int) -> None:
        self.held[number] = epoch

    def gone(self, number: int) -> None:
        """Released, or somebody else's."""
        self.held.pop(number, None)

    def saw(self, seen: Seen, asked_at: int, answered_at: int) -> Todo:
        """`asked_at` and `answered_at` are read from a monotonic clock of our own, in milliseconds."""
        self._watch.saw(seen.members, asked_at, answered_at)
        self.owned(seen.holdings, answered_at)
        others = [member for member in seen.members if member.id != self.me.id]
        self._at_my_address = {member.id for member in others if member.url == self.me.url}
        self._on_other_machines = {member.id for member in others if member.url and member.name != self.me.name}
        alive = {member.id for member in others if self.alive(member.id)} | {self.me.id}
        aside = {member.id for member in others if member.leaving or not self._watch.beating(member.id)}
        if self.me.leaving:
            aside.add(self.me.id)
        lost = {holding.number for holding in seen.holdings if self._is_lost(holding)}
        wanted = spread(self.me.id, seen.holdings, alive, aside)
        return Todo(
            tuple(sorted(lost)),
            (*wanted.take, *(holding for holding in self._ours_unknown(seen) if holding not in wanted.give)),
            tuple(holding for holding in wanted.give if self._may_give(holding)),
            tuple(self._watch.long_dead()),
        )

    def _is_lost(self, holding: Holding) -> bool:
        """Held, but not as we hold it. A later epoch is somebody's claim; an earlier one is left by a failover of the
        engine that has taken back our own."""
        held = self.held.get(holding.number)
        return held is not None and (holding.epoch, holding.owner) != (held, self.me.id)

    def _may_give(self, holding: Holding) -> bool:
        """What is ours by name only, because the answer to a claim was lost, nobody works on: it can go at once."""
        return self.held.get(holding.number, holding.epoch) == holding.epoch

    def _ours_unknown(self, seen: Seen) -> tuple[Holding, ...]:
        """Ours, but nobody told us: the answer to the claim was lost. It is claimed again, so that there is one epoch
        of which we know that nobody has written under it."""
        return tuple(
            holding
            for holding in seen.holdings
            if holding.owner == self.me.id and holding.epoch > self.held.get(holding.number, -1)
        )

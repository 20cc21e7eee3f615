"""Live members of producer groups: who holds a long poll and can be asked."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable

from msgspec import Struct

from tallystick.core.errors import Busy, TallystickError
from tallystick.core.wire import CheckRequest
from tallystick.store.protocol import Claim


class _Poll(Struct):
    member: str
    most: int
    future: asyncio.Future[list[CheckRequest]]


class Members:
    def __init__(self, most_polls: int, on_arrival: Callable[[], None]) -> None:
        self._most = most_polls
        self._on_arrival = on_arrival
        # Oldest poll first: taking from the front and coming back at the end is what makes it a round robin.
        self._polls: defaultdict[str, OrderedDict[str, _Poll]] = defaultdict(OrderedDict)
        self._count = 0

    @property
    def waiting(self) -> int:
        return self._count

    def capacity(self, group: str) -> int:
        """How many checks the waiting members of a group would take."""
        return sum(poll.most for poll in self._polls[group].values()) if group in self._polls else 0

    async def poll(self, group: str, member: str, most: int, seconds: float) -> list[CheckRequest]:
        """Wait to be asked; an empty list when nothing is due in time."""
        if self._count >= self._most:
            raise Busy(f"{self._count} members are waiting for check-backs, the limit is {self._most}")
        poll = _Poll(member, most, asyncio.get_running_loop().create_future())
        earlier = self._polls[group].pop(member, None)
        if earlier is not None and not earlier.future.done():
            earlier.future.set_result([])  # the same member polls again: its older poll is dead or superseded
        self._polls[group][member] = poll
        self._count += 1
        self._on_arrival()
        try:
            async with asyncio.timeout(seconds):
                return await poll.future
        except TimeoutError:
            # It may have been asked in the very moment its time was up.
            return [] if poll.future.cancelled() else poll.future.result()
        finally:
            self._count -= 1
            self._forget(group, poll)

    def _forget(self, group: str, poll: _Poll) -> None:
        polls = self._polls.get(group)
        if polls is not None and polls.get(poll.member) is poll:
            del polls[poll.member]
        if not polls:
            self._polls.pop(group, None)

    def hand_out(self, group: str, claims: list[Claim]) -> list[Claim]:
        """Give claims to waiting members, the original one first; returns those that nobody took."""
        polls = self._polls.get(group, OrderedDict())
        loads: dict[str, list[Claim]] = {member: [] for member in polls}
        left = []
        for claim in claims:
            taker = self._choose(claim, polls, loads)
            if taker is None:
                left.append(claim)
            else:
                loads[taker].append(claim)
        for member, load in loads.items():
            if load:
                poll = polls[member]
                if poll.future.done():
                    left.extend(load)
                    continue
                self._forget(group, poll)
                poll.future.set_result([claim.request for claim in load])
        return left

    @staticmethod
    def _choose(claim: Claim, polls: OrderedDict[str, _Poll], loads: dict[str, list[Claim]]) -> str | None:
        # A member that could not tell before is not asked first again: it may lack the database in question.
        original = polls.get(claim.member) if claim.request.checks == 0 else None
        if original is not None and len(loads[original.member]) < original.most:
            return original.member
        free = [member for member, poll in polls.items() if len(loads[member]) < poll.most]
        return min(free, key=lambda member: len(loads[member]), default=None)

    def close(self, refusal: type[TallystickError] | None = None) -> None:
        for polls in list(self._polls.values()):
            for poll in list(polls.values()):
                if poll.future.done():
                    continue
                if refusal is None:
                    poll.future.set_result([])
                else:
                    poll.future.set_exception(refusal())

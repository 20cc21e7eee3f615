"""Those who know outcomes whose truth is in no SQL database, and the outcomes that were told before."""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import cast, get_args

from tallystick.barrier.errors import BarrierError
from tallystick.barrier.operations.barrier import Decision
from tallystick.client.base.results import awaited, runs_on_loop
from tallystick.client.base.settings import Decider
from tallystick.client.base.workers import Workers
from tallystick.core.ops import Outcome


async def ask_decider(workers: Workers, decider: Decider, gids: Sequence[str]) -> dict[str, Decision]:
    """What a decider says of each: on a thread, or here if it is asynchronous."""
    if runs_on_loop(decider.decide):
        return {gid: _checked(decider, await awaited(decider.decide(gid))) for gid in gids}
    return await asyncio.wrap_future(workers.submit(lambda _: {gid: decide_sync(decider, gid) for gid in gids}))


def decide_sync(decider: Decider, gid: str) -> Decision:
    """What a decider says, where nothing can be awaited."""
    decision = decider.decide(gid)
    if inspect.iscoroutine(decision):
        decision.close()
    return _checked(decider, decision)


def _checked(decider: Decider, said: object) -> Decision:
    """Nothing but these words is an answer; least of all something that happens to be true."""
    for decision in get_args(Decision):
        if said == decision:
            return cast(Decision, decision)
    raise BarrierError(
        f"{type(decider).__name__}.decide() returned {said!r:.200}, not one of {', '.join(get_args(Decision))}; "
        "an asynchronous decider needs an asynchronous handler"
    )


class RememberedOutcomes:
    """The last `most` outcomes, by gid: they are final. Safe to use from several threads."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._outcomes: OrderedDict[str, Outcome] = OrderedDict()
        self._lock = Lock()

    def get(self, gid: str) -> Outcome | None:
        with self._lock:
            outcome = self._outcomes.get(gid)
            if outcome is not None:
                self._outcomes.move_to_end(gid)
            return outcome

    def put(self, gid: str, outcome: Outcome) -> None:
        with self._lock:
            self._outcomes[gid] = outcome
            self._outcomes.move_to_end(gid)
            if len(self._outcomes) > self._most:
                self._outcomes.popitem(last=False)

"""Who is killed, and when: a plan drawn from a seed.

Some kills come from outside, at any moment. The others are traps: the process kills itself at exactly that moment, with
all the orders that are in its hands.
"""

import random
import time
from typing import NamedTuple

from stage.traps import Traps

from tallystick.demo.processes import Crew


class Kill(NamedTuple):
    role: str
    moment: str | None  # of a trap; None: from outside
    delay: float = 0.0  # so that a kill from outside can hit anything


KINDS = (
    Kill("shop", "before-deduction"),
    Kill("shop", "after-deduction"),
    Kill("shop", "after-commit"),
    Kill("orders", "order-stored"),
    Kill("shop", None),
    Kill("orders", None),
    Kill("broker", None),
    Kill("redis", None),
)


def plan(kills: int, seed: int) -> list[Kill]:
    """Every kind has its turn before one has a second."""
    chance = random.Random(seed)  # noqa: S311 - it must be repeatable, not unguessable
    drawn: list[Kill] = []
    while len(drawn) < kills:
        drawn += [kind._replace(delay=chance.uniform(0, 0.1)) for kind in chance.sample(KINDS, len(KINDS))]
    return drawn[:kills]


def carry_out(kill: Kill, crew: Crew, traps: Traps) -> str:
    """Kill, start again, and say what was done; an empty string if nobody came to the moment of a trap."""
    (process,) = crew.of(kill.role)
    if kill.moment is None:
        time.sleep(kill.delay)
        crew.kill(process)
        return f"kill -9 {kill.role}, at any moment"
    caught = traps.catch(crew, process, kill.moment)
    return f"kill -9 {kill.role}, {kill.moment.replace('-', ' ')}" if caught else ""

"""What is struck, how, when and for how long: all of it drawn from the seed before anything runs."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

Role = Literal["producer", "broker", "consumer", "engine"]
ROLES: tuple[Role, ...] = ("producer", "broker", "consumer", "engine")
Blow = Literal[
    "kill",  # -9, and started again
    "pause",  # SIGSTOP, then SIGCONT
    "cut",  # connections end, new ones are refused
    "stall",  # bytes wait on their way, and arrive late
    "lose",  # requests arrive, answers do not
    "engine-cut",  # the same three between a broker and the engine that it shares with the others
    "engine-stall",
    "engine-lose",
]
# A killed node leaves most behind, so it is drawn most often.
BLOWS: tuple[Blow, ...] = ("kill", "kill", "kill", "pause", "cut", "stall", "lose")
ENGINE_BLOWS: tuple[Blow, ...] = ("engine-cut", "engine-stall", "engine-lose")

# Shares of a round's time. The nodes of one kind are struck together, the kinds at moments of their own: a producer
# that dies while its broker is away leaves what nobody but the check-back can find.
LATEST_BLOW = 0.4
SHORTEST, LONGEST = 0.1, 0.45
JITTER_SECONDS = 0.2
ENGINE_EVERY = 3  # rounds: while the engine is away, other blows show little


class Sizes(NamedTuple):
    """How many nodes of each kind there are."""

    producer: int = 4
    broker: int = 2
    consumer: int = 4
    engine: int = 0  # one, if it is ours to kill


class Strike(NamedTuple):
    """One blow at one node. Times are seconds, `at` from the beginning of the round."""

    role: Role
    number: int
    blow: Blow
    at: float
    lasts: float

    @property
    def ends(self) -> float:
        return self.at + self.lasts


def plan(seed: str, rounds: int, seconds: float, sizes: Sizes, shared: bool = False) -> list[list[Strike]]:
    """The strikes of each round, in order of time. Round 1 strikes one node of each kind, round 2 two, and so on; when
    all of a kind have been struck at once it begins again with one. `shared`: the brokers share an engine."""
    chance = random.Random(seed)  # noqa: S311 - it must be repeatable, not unguessable
    blows: dict[Role, tuple[Blow, ...]] = dict.fromkeys(ROLES, BLOWS)
    blows["engine"] = ("kill",)
    if shared:
        blows["broker"] = (*BLOWS, *ENGINE_BLOWS)
    return [_round(chance, number, seconds, sizes, blows) for number in range(rounds)]


def _round(
    chance: random.Random, number: int, seconds: float, sizes: Sizes, blows: dict[Role, tuple[Blow, ...]]
) -> list[Strike]:
    strikes: list[Strike] = []
    for role, size in zip(ROLES, sizes, strict=True):
        if not size or (role == "engine" and (number + 1) % ENGINE_EVERY):
            continue
        moment = chance.uniform(0, LATEST_BLOW) * seconds
        for node in sorted(chance.sample(range(size), number % size + 1)):
            at = moment + chance.uniform(0, JITTER_SECONDS)
            lasts = chance.uniform(SHORTEST, LONGEST) * seconds
            strikes.append(Strike(role, node, chance.choice(blows[role]), round(at, 3), round(lasts, 3)))
    return sorted(strikes, key=lambda strike: strike.at)

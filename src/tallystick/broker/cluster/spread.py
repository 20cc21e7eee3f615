"""Which member should own which store. A pure function of what was seen, so that all who see the same want the same;
where they see different things for a moment, the epochs decide who gets a store."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence

from msgspec import Struct

from tallystick.store.shared.registry import Holding


class Spread(Struct, frozen=True):
    """What one member is to do: stores to take, and of those it has the ones that are too many."""

    take: tuple[Holding, ...]
    give: tuple[Holding, ...]


def spread(me: str, holdings: Sequence[Holding], alive: Collection[str], aside: Collection[str]) -> Spread:
    """`alive` are all who live, and keep what they have; `aside` those of them who take nothing any more, or who are
    not to be waited for."""
    sharing = sorted(set(alive) - set(aside))
    owned = Counter(holding.owner for holding in holdings if holding.owner in alive)
    mine = [holding for holding in holdings if holding.owner == me]
    if me in aside:
        return Spread((), tuple(mine))
    if me not in sharing:
        return Spread((), ())
    too_many = owned[me] - _share(me, len(holdings), sharing, owned)
    give = sorted(mine, key=lambda holding: _weight(holding.id, me))[:too_many] if too_many > 0 else ()
    return Spread(_my_turns(me, holdings, sharing, owned), tuple(give))


def _share(me: str, count: int, sharing: list[str], owned: Counter[str]) -> int:
    """How many stores are mine in the end. Where it does not come out even, who has more keeps more."""
    ordered = sorted(sharing, key=lambda member: (-owned[member], member))
    least, remainder = divmod(count, len(sharing))
    return least + (ordered.index(me) < remainder)


def _my_turns(me: str, holdings: Sequence[Holding], sharing: list[str], owned: Counter[str]) -> tuple[Holding, ...]:
    """Stores without a living owner go to whoever has fewest, one after the other."""
    having = Counter({member: owned[member] for member in sharing})
    mine = []
    for holding in sorted(holdings, key=lambda each: each.number):
        if owned[holding.owner]:
            continue
        taker = min(sharing, key=lambda member: (having[member], -_weight(holding.id, member), member))
        having[taker] += 1
        if taker == me:
            mine.append(holding)
    return tuple(mine)


def _weight(store_id: str, member: str) -> int:
    """Highest random weight: a draw that comes out the same for everybody, and other for each pair."""
    return int.from_bytes(hashlib.blake2b(f"{store_id}/{member}".encode(), digest_size=8).digest())

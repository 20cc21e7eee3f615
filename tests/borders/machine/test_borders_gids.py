"""One gid in two databases, as two tenants use it who number their orders alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from border_kinds import Kind
from border_play import Play
from border_verdict import broken

from brokers import BrokerProcess

KINDS = [
    "sqlite",
    pytest.param("psycopg", marks=pytest.mark.postgresql),
    pytest.param("pymysql", marks=pytest.mark.mariadb),
]


@pytest.mark.parametrize("first_ends", ["vanish", "died"])
@pytest.mark.parametrize("name", KINDS)
def test_a_gid_belongs_to_the_database_it_was_prepared_for(
    name: str, first_ends: str, broker: BrokerProcess, kind_named: Callable[[str], Kind]
) -> None:
    """The check-back is answered from the first one's barrier, which knows nothing of the second."""
    kind = kind_named(name)
    play = Play(broker.url, kind)
    try:
        gid = f"order-17-{play.name}"
        for place, ending in ((0, first_ends), (1, "died")):
            block = play.enter(play.open_seat(place, kind.variants[0]), "early", gid, early="call")
            if block is not None:
                block.hand.do("insert")
                play.leave(block, ending)
        assert broken(play, patience=20) == []
    finally:
        play.close()

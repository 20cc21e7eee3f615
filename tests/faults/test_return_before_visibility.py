"""A block returns once its local commit is durable. Killed right then, its process leaves the rest to others."""

from __future__ import annotations

import random
import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from places import Place, sqlite_place
from seeds import chosen_seed
from survivors import BROKER, Survivors

from brokers import BrokerProcess, running_broker
from fork_server import ForkServer

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1800)]

CHECK_AFTER = 1.0
AT_A_TIME = 8
LATER_SECONDS = 0.004
"""By then, what nobody waited for is on its way, or has arrived."""


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**BROKER) as process:
        yield process


@pytest.mark.parametrize("kills", [40, pytest.param(1_000, marks=pytest.mark.full)])
def test_every_message_of_a_block_that_returned_arrives(
    broker: BrokerProcess, crew: ForkServer, tmp_path: Path, kills: int
) -> None:
    place = sqlite_place(tmp_path / "service.db")
    survivors = Survivors(broker.url, place, crew, tmp_path, CHECK_AFTER)
    seed = chosen_seed()
    with survivors.living():
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            returned = pool.map(
                lambda number: killed(survivors, place, random.Random(f"{seed}-{number}")), range(kills)
            )
            names = {name for some in returned for name in some}
        assert survivors.committed() == names
        survivors.settle(names)
    survivors.outcomes_agree()


def killed(survivors: Survivors, place: Place, chance: random.Random) -> list[str]:
    """The names of what a producer has returned from before it was killed."""
    names = [uuid.uuid4().hex for _ in range(chance.randint(1, 3))]
    child = survivors.crew.start(
        "producer_main:returns",
        names=names,
        mode=chance.choice(["check-back", "check-back", "outbox"]),
        later=chance.choice([0, 0, chance.random() * LATER_SECONDS]),
        url=survivors.url,
        group=survivors.group,
        topic=survivors.topic,
        place=place,
        check_after=CHECK_AFTER,
    )
    assert child.wait() == -signal.SIGKILL, survivors.crew.log_text()[-4_000:]
    return names

"""Requests to a broker that answers checks, and not them: each has a limit of its own."""

from __future__ import annotations

import asyncio

import pytest

from eventually import SECONDS
from tallystick.api.cluster.circuits import Circuits
from tallystick.api.cluster.owners import ANSWER_SECONDS, POLL_SECONDS, _limit
from tallystick.api.dtm.http import PREFIX as DTM_PREFIX
from tallystick.api.serving.forwarding import PeerWait
from tallystick.core.addresses import broker_address
from tallystick.core.errors import BrokerUnavailable, BrokerUnreachable

ADDRESS = broker_address("http://127.0.0.1:7440")


class Peer:
    """The other broker, as far as checks see it."""

    def __init__(self) -> None:
        self.silent, self.checks = False, 0

    async def check(self, _: object) -> None:
        self.checks += 1
        if self.silent:
            raise ConnectionResetError("silent")


def waiting_for(seconds: float) -> PeerWait:
    wait = PeerWait()
    wait.since = asyncio.get_running_loop().time() - seconds
    return wait


@pytest.mark.parametrize(
    ("path", "least"),
    [("/v1/topics", 0.0), ("/v1/groups/g/receive", POLL_SECONDS), (f"{DTM_PREFIX}submit", POLL_SECONDS)],
)
async def test_a_request_ends_although_its_broker_answers_checks(path: str, least: float) -> None:
    limit = _limit({"path": path, "query_string": b""})
    assert limit >= ANSWER_SECONDS + least
    circuits = Circuits(Peer().check, lambda _: True, lambda: 6.0)
    circuits.review(ADDRESS, waiting_for(limit - 5), limit)
    with pytest.raises(BrokerUnavailable, match="has not answered for"):
        circuits.review(ADDRESS, waiting_for(limit + 1), limit)
    circuits.review(ADDRESS, PeerWait(), limit)  # this one waits for its own client
    await circuits.close()


async def test_a_silent_address_is_refused_until_a_check_is_answered() -> None:
    peer = Peer()
    peer.silent = True
    circuits = Circuits(peer.check, lambda _: True, lambda: 0.0)
    circuits.asked(ADDRESS)
    async with asyncio.timeout(SECONDS):
        while circuits.answers(ADDRESS):
            circuits.review(ADDRESS, waiting_for(0), 60.0)
            await asyncio.sleep(0.01)
        with pytest.raises(BrokerUnreachable, match="does not answer this broker"):
            circuits.refuse_if_open(ADDRESS)
        with pytest.raises(BrokerUnavailable):
            circuits.review(ADDRESS, waiting_for(2), 60.0)
        peer.silent = False
        while not circuits.answers(ADDRESS):
            await asyncio.sleep(0.01)
    circuits.refuse_if_open(ADDRESS)
    assert circuits.silent() == 0
    await circuits.close()

"""PyPI's dtmcli, unmodified, in front of a cluster of three: a plain load balancer, and brokers that die."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from dtmcli_bank import Bank, open_bank

from broker_clusters import running_cluster
from eventually import eventually, eventually_equal
from round_robin import round_robin
from servers import Server
from shared_stores import url_of

pytestmark = [pytest.mark.mariadb, pytest.mark.postgresql, pytest.mark.full, pytest.mark.timeout(900)]

AMOUNT = 10


class Transfer(NamedTuple):
    gid: str
    began: float
    ended: float
    raised: str


class Sender:
    """One transfer after the other, until it is enough."""

    def __init__(self, bank: Bank) -> None:
        self._bank, self.enough = bank, threading.Event()
        self.done: list[Transfer] = []

    def run(self) -> None:
        while not self.enough.is_set():
            gid, began = f"dtmcli-{uuid4().hex}", time.monotonic()
            told = self._bank.do("transfer", gid=gid, amount=AMOUNT, timeout_to_fail=2)
            self.done.append(Transfer(gid, began, time.monotonic(), told.raised))

    def goes_on(self, transfers: int = 2) -> None:
        wanted = self._ok() + transfers
        eventually(lambda: self._ok() >= wanted, "transfers that succeed")

    def _ok(self) -> int:
        return sum(not one.raised for one in self.done)


def test_money_moves_once_while_brokers_die(postgres: Server, mariadb: Server, tmp_path: Path) -> None:
    url = url_of(postgres, postgres.new_database())
    with (
        running_cluster(url, brokers=3, stores=3, lease="2s", check_after="1s", check_interval="500ms") as cluster,
        round_robin([broker.port for broker in cluster.brokers]) as proxy,
        open_bank(proxy, mariadb, tmp_path) as bank,  # type: ignore[arg-type]
        ThreadPoolExecutor(2) as threads,
    ):
        senders, kills = [Sender(bank) for _ in range(2)], []
        running = [threads.submit(sender.run) for sender in senders]
        try:
            for broker in cluster.brokers:
                for sender in senders:
                    sender.goes_on()
                kills.append(time.monotonic())
                broker.kill()
                cluster.wait_until_spread()
                for sender in senders:
                    sender.goes_on()
                broker.start()
                cluster.wait_until_spread()
        finally:
            for sender in senders:
                sender.enough.set()
        for one in running:
            one.result(200)
        transfers = [one for sender in senders for one in sender.done]
        gids = [one.gid for one in transfers]
        assert all(any(one.began < kill < one.ended for one in transfers) for kill in kills)
        # Who was told that it worked finds it so; of the others it is known which, once they are settled.
        ended = (None, "succeed", "failed")
        eventually(
            lambda: all(bank.status(gid) in ended for gid in gids),
            "an end of each",
            ignoring=(AssertionError,),  # while a store has no owner, whoever asks is told to ask again
        )
        told = {one.gid for one in transfers if not one.raised}
        moved = {gid for gid in gids if bank.status(gid) == "succeed"}
        assert told <= moved
        assert len(told) > len(gids) / 2, [one for one in transfers if one.raised]
        eventually_equal(bank.balances, (-AMOUNT * len(moved), AMOUNT * len(moved)))
        paid = {(gid, "00", "msg", "01", "msg") for gid in moved}
        taken = {(gid, "01", "action", "01", "action") for gid in moved}
        assert {row for row in bank.barriers(*gids) if row[-1] != "rollback"} == paid | taken

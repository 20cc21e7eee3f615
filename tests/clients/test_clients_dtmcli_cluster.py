"""PyPI's dtmcli, unmodified, in front of a cluster of three: a plain load balancer, and brokers that die."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from dtmcli_bank import open_bank

from broker_clusters import running_cluster
from eventually import eventually, eventually_equal
from round_robin import round_robin
from servers import Server
from shared_stores import url_of

pytestmark = [pytest.mark.mariadb, pytest.mark.postgresql, pytest.mark.full]


def test_money_moves_once_while_brokers_die(postgres: Server, mariadb: Server, tmp_path: Path) -> None:
    url = url_of(postgres, postgres.new_database())
    with (
        running_cluster(url, brokers=3, stores=3, lease="2s", check_after="1s", check_interval="500ms") as cluster,
        round_robin([broker.port for broker in cluster.brokers]) as proxy,
        open_bank(proxy, mariadb, tmp_path) as bank,  # type: ignore[arg-type]
    ):
        gids = [f"dtmcli-{uuid4().hex}" for _ in range(12)]
        with ThreadPoolExecutor(2) as pool:
            told = {gid: pool.submit(bank.do, "transfer", gid=gid, timeout_to_fail=2) for gid in gids}
            for broker in cluster.brokers[:2]:
                broker.kill()
                cluster.wait_until_spread()
                broker.start()
                cluster.wait_until_spread()
            raised = {gid: one.result(200).raised for gid, one in told.items()}
        # Who was told that it worked finds it so; of the others it is known which, once they are settled.
        ended = (None, "succeed", "failed")
        eventually(
            lambda: all(bank.status(gid) in ended for gid in gids),
            "an end of each",
            ignoring=(AssertionError,),  # while a store has no owner, whoever asks is told to ask again
        )
        moved = {gid for gid in gids if bank.status(gid) == "succeed"}
        assert {gid for gid, error in raised.items() if not error} <= moved
        eventually_equal(bank.balances, (-30 * len(moved), 30 * len(moved)))

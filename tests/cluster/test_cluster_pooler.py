"""Brokers whose way to PostgreSQL goes through a PgBouncer that pools by session, the one mode that the docs allow."""

from __future__ import annotations

import pytest

import tallystick
from broker_clusters import running_cluster
from servers import Server, pgbouncer
from shared_stores import url_of


@pytest.mark.full
@pytest.mark.postgresql
def test_a_cluster_behind_a_pooler_of_sessions_works_and_takes_over(postgres: Server) -> None:
    database = postgres.new_database()
    with (
        pgbouncer(postgres, "session") as pooler,
        running_cluster(url_of(pooler, database), brokers=2, stores=3, lease="1s") as cluster,
        tallystick.Client(cluster.urls, group="shop") as client,
    ):
        for number in range(30):
            client.send("orders", str(number), key=str(number))
        cluster.brokers[0].kill()
        for number in range(30, 60):
            client.send("orders", str(number), key=str(number))
        assert sum(client.topic("orders").ends) == 60

"""A broker that joins a cluster which is there already asks for no more than to use it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from broker_clusters import BrokerCluster, running_cluster
from brokers import running_broker
from raw_client import RawClient
from servers import Server, redis_server
from shared_stores import url_of
from tallystick.store.shared.definitions import table_names

STORES = 4


@contextmanager
def dump(postgres: Server, database: str) -> Iterator[None]:
    """What pg_dump holds for as long as it runs."""
    tables = ", ".join([*table_names("postgresql"), *table_names("postgresql_cluster")])
    with closing(postgres.connect(database)) as session:
        session.execute(f"lock table {tables} in access share mode")
        yield


@contextmanager
def joining(cluster: BrokerCluster, store: str) -> Iterator[None]:
    with running_broker(store=store, allow_weak_durability=True) as late:
        cluster.brokers.append(late)
        cluster.wait_until_spread()
        yield


def send(cluster: BrokerCluster) -> None:
    for broker in cluster.brokers:
        with RawClient(broker.url) as client:
            content = {"messages": [{"topic": "orders", "key": broker.url, "value": 1}]}
            assert client.json("POST", "/v1/messages", content).status == 201


@pytest.mark.postgresql
def test_a_broker_joins_while_the_database_is_dumped_and_keeps_nobody_from_work(postgres: Server) -> None:
    database = postgres.new_database()
    url = url_of(postgres, database)
    with (
        running_cluster(url, brokers=1, stores=STORES) as cluster,
        dump(postgres, database),
        joining(cluster, url),
    ):
        send(cluster)


@pytest.mark.postgresql
def test_a_user_who_may_make_no_tables_runs_a_broker_where_they_are(postgres: Server) -> None:
    database = postgres.new_database()
    with running_cluster(url_of(postgres, database), brokers=1, stores=STORES) as cluster:
        for statement in (
            "create role joiner login password 'word'",
            "revoke create on schema public from public",
            "grant select, insert, update, delete on all tables in schema public to joiner",
        ):
            postgres.execute(statement, database)
        with joining(cluster, f"postgresql://joiner:word@{postgres.host}:{postgres.port}/{database}"):
            send(cluster)


@pytest.mark.mariadb
@pytest.mark.full
def test_so_does_one_of_mariadb(mariadb: Server) -> None:
    database = mariadb.new_database()
    with running_cluster(url_of(mariadb, database), brokers=1, stores=STORES) as cluster:
        mariadb.execute("create user joiner@'127.0.0.1' identified by 'word'")
        mariadb.execute(f"grant select, insert, update, delete on {database}.* to joiner@'127.0.0.1'")
        with joining(cluster, f"mysql://joiner:word@{mariadb.host}:{mariadb.port}/{database}"):
            send(cluster)


def test_what_the_pages_say_that_a_user_of_redis_needs_is_enough() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/shared-engines.md").read_text()
    (rights,) = re.findall(r"`(~\{ts:\* [^`]*)`", page)
    unescaped = rights.replace("\\|", "|")  # as a cell of a table has it
    with redis_server() as server, closing(server.connect()) as admin:
        admin.execute_command(f"ACL SETUSER joiner on >word {unescaped}")
        url = f"redis://joiner:word@{server.host}:{server.port}/0"
        with running_cluster(url, brokers=2, stores=STORES) as cluster:
            send(cluster)
        refused = [entry for entry in admin.acl_log() if entry["username"] == "joiner"]
        assert refused == []

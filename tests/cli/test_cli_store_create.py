"""`tallystick store create`: tables and stores of a cluster, before any broker runs."""

from __future__ import annotations

from contextlib import closing

import pytest
from command_line import one_line, tallystick

from brokers import running_broker
from servers import Server
from shared_stores import MARKS, SHARED, new_place, url_of
from tallystick.store.shared.definitions import table_names
from tallystick.store.shared.opening import registry_at

# Redis, which is started in a moment, is in the short run too.
SERVERS = [pytest.param(one.values[0], marks=MARKS["redis"]) if one.values[0] == "redis" else one for one in SHARED]


@pytest.mark.parametrize("engine", SERVERS)
def test_a_cluster_is_made_once(engine: str, request: pytest.FixtureRequest) -> None:
    url = new_place(engine, request)
    made = tallystick("store", "create", url, "--stores", "3")
    assert made.code == 0, made.err
    assert "made a cluster with 3 stores" in one_line(made.err)
    with closing(registry_at(url)) as registry:
        assert registry.made() == 3
    for again in (tallystick("store", "create", url), tallystick("store", "create", url, "--stores", "3")):
        assert again.code == 0, again.err
        assert "there already, with 3 stores" in one_line(again.err)
    assert tallystick("store", "create", url, "--json").json() == {"stores": 3, "created": False}
    other = tallystick("store", "create", url, "--stores", "4")
    assert other.code != 0
    assert "made with 3 stores" in one_line(other.err)


@pytest.mark.postgresql
def test_what_it_prints_makes_the_tables_for_a_broker_that_may_make_none(postgres: Server) -> None:
    database = postgres.new_database()
    printed = tallystick("store", "create", url_of(postgres, database), "--sql")
    assert printed.code == 0, printed.err
    with closing(registry_at(url_of(postgres, database))) as registry:
        assert registry.made() == 0, "nothing was run"
    postgres.execute(printed.out, database)
    for statement in (
        "create role worker login password 'word'",
        "revoke create on schema public from public",
        *(
            f"grant select, insert, update, delete on {table} to worker"
            for table in (*table_names("postgresql"), *table_names("postgresql_cluster"))
        ),
    ):
        postgres.execute(statement, database)
    url = f"postgresql://worker:word@{postgres.host}:{postgres.port}/{database}"
    with running_broker(store=url, stores=2, allow_weak_durability=True) as broker:
        shown = tallystick("cluster", "--json", url=broker.url)
        assert len(shown.json()["stores"]) == 2


def test_statements_are_those_of_the_engine_and_nobody_is_asked_for_them() -> None:
    for engine in ("postgresql", "mysql"):
        printed = tallystick("store", "create", f"{engine}://nobody@127.0.0.1:1/x", "--sql").out
        for table in (*table_names(engine), *table_names(f"{engine}_cluster")):
            assert f"create table if not exists {table} (" in printed
    assert "no tables" in tallystick("store", "create", "redis://127.0.0.1:1/0", "--sql").out


def test_who_cannot_be_asked_is_told_in_one_line() -> None:
    refused = tallystick("store", "create", "postgresql://nobody@127.0.0.1:1/x")
    assert refused.code != 0
    assert "refused" in one_line(refused.err).lower()
    assert "begins with none of postgresql://" in one_line(tallystick("store", "create", "ftp://host/x").err)

"""Several databases, pools, other drivers; and the tests of a project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import Client, override_settings
from django_support import Place, environment_of, new_place, new_shop, raises
from storefront.models import Order

from servers import Server
from tallystick.core.errors import OutcomeUnknown
from tallystick.core.wire import SOURCE_HEADER
from tallystick.django import ts

HERE = Path(__file__).parent


def test_blocks_in_two_databases_are_two_transactions(two_places: dict[str, Place]) -> None:
    with new_shop(two_places) as shop:
        with raises(RuntimeError), ts.transaction() as tx:
            with ts.transaction("warehouse") as other:
                Order.objects.using("warehouse").create(note="kept")
                other.send("stock", "kept")
            tx.send("orders", "lost")
            raise RuntimeError
        assert shop.has("kept", using="warehouse")
        assert shop.sent("stock") == ["kept"]
        assert shop.sent("orders") == []


@pytest.mark.full
def test_check_backs_of_several_databases_are_answered_from_the_start(two_places: dict[str, Place]) -> None:
    """By a process that has had no block yet, and by the URL."""
    with new_shop(two_places) as shop:
        gids = {}
        for using in two_places:
            with raises(RuntimeError), transaction.atomic(using):
                with ts.transaction(using) as tx:
                    Order.objects.using(using).create(note="x")
                    tx.send(using, "x")
                gids[using] = tx.gid
                raise RuntimeError
        sources = {source.rpartition("/")[2]: source for source in ts.client._core.databases._by_source}
        ts.close()
        for using, gid in gids.items():
            with connections[using].cursor() as cursor:
                cursor.execute("select reason from tallystick_barrier where gid not in (%s, %s)", list(gids.values()))
                found = cursor.fetchall()
            (name,) = [source for identity, source in sources.items() if (identity,) in found]
            settings = {"GROUP": "other", "URL": shop.broker.url, "DATABASES": list(two_places)}
            with override_settings(TALLYSTICK=settings):
                answer = Client().get(f"/tallystick/check?gid={gid}", headers={SOURCE_HEADER: name})
                assert answer.status_code == 409, answer.content
        settings = {"GROUP": "storefront", "URL": shop.broker.url, "DATABASES": list(two_places)}
        with override_settings(TALLYSTICK=settings):
            assert ts.client.stats is not None
            assert {shop.outcome(gid) for gid in gids.values()} == {"rolled_back"}


@pytest.mark.full
@pytest.mark.postgresql
def test_a_pool_of_one_connection_is_enough(postgres: Server) -> None:
    place = new_place(postgres, pool={"min_size": 1, "max_size": 1, "timeout": 5})
    with new_shop({"default": place}) as shop:
        for number in range(3):
            with ts.transaction() as tx:
                Order.objects.create(note=str(number))
                tx.send("pooled", str(number))
            connection.close()  # back into the pool
        with raises(RuntimeError), transaction.atomic():
            with ts.transaction() as tx:
                Order.objects.create(note="lost")
                tx.send("pooled", "lost")
            raise RuntimeError
        assert shop.outcome(tx.gid) == "rolled_back"
        assert shop.sent("pooled") == ["0", "1", "2"]


@pytest.mark.full
@pytest.mark.postgresql
def test_a_connection_that_the_server_has_ended_is_opened_anew(postgres: Server) -> None:
    place = {**new_place(postgres), "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}
    with new_shop({"default": place}) as shop:
        with ts.transaction() as tx:
            tx.send("anew", "first")
        postgres.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
        connection.close_if_unusable_or_obsolete()  # as each request begins
        with ts.transaction() as tx, ts.transaction() as inner:
            inner.send("anew", "second")
        assert shop.sent("anew") == ["first", "second"]


@pytest.mark.full
@pytest.mark.postgresql
@pytest.mark.mariadb
def test_psycopg2_and_pymysql_do_the_same() -> None:
    """The tests of blocks once more, in a process that has these in the place of psycopg and mysqlclient."""
    files = [str(HERE / "test_django_blocks.py")]
    environment = {**os.environ, "STOREFRONT_DRIVERS": "older"}
    options = ["-p", "no:cacheprovider", "-q", "-x", "-k", "postgresql or mysql"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        env=environment,
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    "place",
    [
        "sqlite",
        pytest.param("postgres", marks=[pytest.mark.postgresql, pytest.mark.full]),
        pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.full]),
    ],
)
def test_the_tests_of_a_project_see_what_was_sent(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """With Django's own runner, whose test database has another name; on SQLite it is in memory."""
    where: Any = tmp_path / "shop.db" if place == "sqlite" else request.getfixturevalue(place)
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **environment_of({"default": new_place(where)}, {"GROUP": "shop"}), "PYTHONPATH": path}
    command = [sys.executable, "-W", "error", "-m", "django", "test", "storefront"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 12 tests" in done.stderr


@pytest.mark.full
def test_where_nobody_else_can_look_no_commit_is_claimed() -> None:
    """A second connection to a database in memory is refused while the first one writes, as in a `TestCase`."""
    memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:nobody?mode=memory&cache=shared", "OPTIONS": {}}
    with new_shop({"default": memory}, check_after="1h") as shop, raises(OutcomeUnknown), transaction.atomic():
        for _ in range(2):
            with ts.transaction(gid="looked-at") as tx:
                tx.send("looked", "made")
        assert shop.sent("looked") == []

"""What `manage.py` does: migrations, checks, commands; and the pages of the admin."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import override_settings
from django_support import Shop, environment_of, in_databases, new_place, new_shop

import tallystick
from eventually import eventually, eventually_equal
from tallystick.barrier import create_tables
from tallystick.django import conf, ts

TABLES = ("barrier", "digest", "inbox", "offset", "outbox", "prepared")


def _printed(*command: Any, **options: Any) -> str:
    out = io.StringIO()
    call_command(*command, stdout=out, **options)
    return out.getvalue()


# Migrations


def test_the_models_are_as_the_migration_says(shop: Shop) -> None:
    call_command("makemigrations", "tallystick", check=True, dry_run=True, verbosity=0)


@pytest.mark.full
def test_a_database_with_the_tables_of_another_program_is_migrated(tmp_path: Path) -> None:
    place = new_place(tmp_path / "old.db")
    import sqlite3

    with closing(sqlite3.connect(place["NAME"])) as raw:
        create_tables(raw)
    with new_shop({"default": place}) as shop:
        with ts.transaction() as tx:
            tx.send("old", "made")
        assert shop.sent("old") == ["made"]


class OnlyDefault:
    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool:
        return db == "default" or app_label != "tallystick"


@pytest.mark.full
def test_a_router_says_where_the_tables_live(two_places: Any) -> None:
    with override_settings(DATABASE_ROUTERS=["test_django_project.OnlyDefault"]), new_shop(two_places):
        found = {alias: set(connections[alias].introspection.table_names()) for alias in two_places}
    assert "tallystick_barrier" in found["default"]
    assert "tallystick_barrier" not in found["warehouse"]


# Settings


def test_every_option_of_the_client_is_a_setting() -> None:
    import inspect

    assert {*inspect.signature(tallystick.Client).parameters, "verifier"} == set(conf.KEYS.values())


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"GROPU": "x"}, "unknown GROPU; there are URL"),
        (["x"], "a dictionary"),
        ({"GROUP": "not a name"}, "group"),
        ({"GROUP": "x", "TIMEOUT": -1}, "timeout"),
        ({"GROUP": "x", "DATABASES": ["nowhere"]}, "no database nowhere"),
        ({"GROUP": "x", "DATABASES": "default"}, "a list of database aliases"),
        ({"GROUP": "x", "CHECK": {"often": 1}}, "CHECK"),
        ({"GROUP": "x", "CHECK": {"url": "nonsense"}}, "TALLYSTICK['CHECK']: url: no broker may call 'nonsense'"),
        ({"GROUP": "x", "CHECK": {"after": "soon"}}, "TALLYSTICK['CHECK']"),
        ({"GROUP": "x", "URL": 5}, "TALLYSTICK['URL']"),
        ({"GROUP": "x", "URL": [5]}, "TALLYSTICK['URL']"),
        ({"GROUP": "x", "TIMEOUT": "soon"}, "TALLYSTICK['TIMEOUT']"),
        ({"GROUP": "x", "DATABASES": 5}, "a list of database aliases"),
    ],
)
def test_wrong_settings_are_refused_and_found_by_the_checks(setting: Any, said: str) -> None:
    with override_settings(TALLYSTICK=setting):
        with pytest.raises(ImproperlyConfigured, match=re.escape(said)):
            ts.client  # noqa: B018
        (problem,) = run_checks(tags=["tallystick"])
    assert problem.id == "tallystick.E001"
    assert said in problem.msg


def test_a_check_back_by_url_can_be_set(shop: Shop) -> None:
    check = {"url": "http://127.0.0.1:9/check", "after": 3}
    with override_settings(TALLYSTICK={"GROUP": "x", "CHECK": check, "DATABASES": []}):
        assert ts.client._settings.check == tallystick.CheckBack(**check)


def test_a_missing_group_and_a_database_in_memory_are_warned_of() -> None:
    memory = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    with override_settings(TALLYSTICK={}), in_databases(memory):
        assert [problem.id for problem in run_checks(tags=["tallystick"])] == ["tallystick.W001", "tallystick.W002"]


def test_a_project_without_databases_is_warned() -> None:
    with override_settings(TALLYSTICK={"GROUP": "x", "DATABASES": []}):
        (problem,) = run_checks(tags=["tallystick"])
    assert problem.id == "tallystick.W004"
    assert "re-drives no outbox" in problem.msg


@pytest.mark.full
def test_missing_tables_are_found_when_the_database_is_looked_into(tmp_path: Path) -> None:
    with in_databases({"default": new_place(tmp_path / "empty.db")}), override_settings(TALLYSTICK={"GROUP": "x"}):
        found = [problem for problem in run_checks(databases=["default"]) if problem.id == "tallystick.W003"]
        assert "migrate tallystick --database default" in found[0].hint
        call_command("migrate", verbosity=0, skip_checks=False)
        assert not [problem for problem in run_checks(databases=["default"]) if problem.id == "tallystick.W003"]


def test_a_database_of_another_kind_is_refused() -> None:
    with in_databases({"default": {"ENGINE": "django.db.backends.dummy"}}), override_settings(TALLYSTICK={}):
        assert "tallystick.E002" in [problem.id for problem in run_checks(tags=["tallystick"])]
        with pytest.raises(tallystick.barrier.UnsupportedConnection, match="unknown is not supported"):
            tallystick.barrier.adapt(connection)


# Commands


def test_old_rows_are_cleaned(shop: Shop) -> None:
    assert _printed("tallystick_clean").splitlines() == [
        f"{kind}: 0 deleted" for kind in ("barrier", "inbox", "prepared", "digest")
    ]
    away = {"URL": "http://127.0.0.1:9", "GROUP": "x", "TIMEOUT": 1, "DATABASES": []}
    with override_settings(TALLYSTICK=away), pytest.raises(CommandError, match="nothing was cleaned"):
        call_command("tallystick_clean", older_than=1)


def test_messages_are_consumed_until_sigterm(shop: Shop, tmp_path: Path) -> None:
    settings = {"URL": shop.broker.url, "GROUP": "storefront", "WAIT": True}
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **environment_of(shop.places, settings), "PYTHONPATH": path}
    command = [sys.executable, "-m", "django", "tallystick_consume", "--topic", "letters", "--topic", "parcels"]
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        try:
            shop_client = tallystick.Client(shop.broker.url)
            shop_client.send("parcels", "a parcel")
            shop_client.send("letters", "a letter")
            shop_client.close()
            eventually(lambda: (shop.has("a parcel") and shop.has("a letter")) or process.poll() is not None)
            eventually_equal(lambda: shop.sent("answers"), ["to a letter"])
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    assert log.read_text().splitlines() == [
        "parcels: storefront.tallystick_handlers.keep, in database default",
        "letters: storefront.tallystick_handlers.answer, in database default",
        "consuming; stop with SIGTERM or Ctrl-C",
        "stopped",
    ]


def test_a_topic_without_a_handler_is_refused() -> None:
    with pytest.raises(CommandError, match=r"no handler is subscribed to lettres; .* ledger, letters, news, parcels"):
        call_command("tallystick_consume", topic=["lettres"])

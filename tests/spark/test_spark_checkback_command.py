"""`tallystick spark checkback`: which databases are meant, and what is printed. Nothing here starts Spark."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tallystick.barrier import create_tables
from tallystick.broker.config import load_config
from tallystick.cli import main
from tallystick.cli.spark import checkback
from tallystick.core.errors import ConfigError
from tallystick.spark.jobs.checkback import CheckbackSummary, Decided, Foreign, ProducerDatabase

CONFIG = """
barrier_table = "dtm_barrier.barrier"
[databases]
shop = "postgresql://u:hidden@db.internal/shop"
bank = "sqlite:///bank.db"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "broker.toml"
    file.write_text(CONFIG)
    return file


def names(config: Path, *given: str, sources: tuple[str, ...] = ()) -> list[tuple[str, str, tuple[str, ...]]]:
    found = checkback._databases(given, sources, load_config(config, environ={}))
    return [(one.name, one.database.address.engine, one.also) for one in found]


def test_databases_are_named_by_address_by_both_or_by_the_broker_s_configuration(config: Path) -> None:
    assert names(config) == [("shop", "postgresql", ()), ("bank", "sqlite", ())]
    assert names(config, "bank") == [("bank", "sqlite", ())]
    assert names(config, "sqlite:///a.db", "x=mysql://u@h/d") == [("", "sqlite", ()), ("x", "mysql", ())]
    # A password may hold what separates a name from its address.
    assert ProducerDatabase.parse("mysql://u:p=q@h/d").database.address.parameters["password"] == "p=q"


def test_a_further_source_belongs_to_the_only_database_or_to_the_named_one(config: Path) -> None:
    other = "postgresql://proxy:6432/shop"
    assert names(config, "shop", sources=(other,)) == [("shop", "postgresql", (other,))]
    assert names(config, sources=(f"shop={other}",)) == [("shop", "postgresql", (other,)), ("bank", "sqlite", ())]
    with pytest.raises(ConfigError, match="NAME=SOURCE"):
        names(config, sources=(other,))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--database", "nothing"],
            "nor a database of the broker's configuration (it has: bank, shop)",
        ),
        (["--database", "shop", "--sourceless"], "--sourceless: only with one --database and with --group"),
        (["--database", "shop", "--older-than", "long"], "--older-than: 'long' is not a duration"),
        (["--database", "shop", "--group", "a b"], "group"),
        (["--database", "shop", "--barrier-table", "a;b"], "is not a valid table name"),
        (["--database", "x=mysql://u:hidden@h:port/d"], "--database x: not a valid address"),
    ],
)
def test_wrong_usage_is_told_before_spark_is_started(
    config: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["spark", "checkback", "--config", str(config), *arguments]) != 0
    err = capsys.readouterr().err
    assert said in err
    assert "hidden" not in err


def test_a_database_that_only_a_group_can_tell_is_refused_before_spark_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        create_tables(shop)
    assert main(["spark", "checkback", "--master", "nowhere", "--database", f"sqlite://{tmp_path}/shop.db"]) == 2
    said = f"sqlite:{tmp_path}/shop.db means another database on every machine; add --group NAME"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "orders"], "say where the replay ends, by a time (until)"),
        (["replay", "orders", "--until", "2026-11-15T08:30"], "a replay of a live topic takes from_offsets"),
        (["reconcile", "--producer", "oracle://u:hidden@h/d"], "producer 1: not an address that begins with sqlite://"),
        (["reconcile", "--consumer", "billing=oracle://u:hidden@h/d"], "consumer billing: not an address"),
    ],
)
def test_so_is_what_the_other_jobs_can_tell(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["spark", *arguments, "--master", "nowhere"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "hidden" not in err


def test_without_a_database_it_is_asked_for_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TALLYSTICK_DATABASES", raising=False)
    assert main(["spark", "checkback"]) == 2
    assert "--database: name at least one" in capsys.readouterr().err


def test_the_summary_says_what_was_decided_and_what_was_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    summary = CheckbackSummary(pending=10, foreign=2, seconds=2.0, dry_run=True)
    summary.foreign_sources = [Foreign("sqlite:/other.db", "group", 2)]
    for outcome, count in [("committed", 4), ("rolled_back", 2), ("unknown", 1)]:
        summary.add(Decided("shop", outcome, count))
    checkback._show(summary, False)
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert {"pending 10", "committed 4", "rolled back 2", "still running, left alone 1"} <= set(lines)
    assert {"shop rolled_back 2", "sqlite:/other.db group 2", "outcomes a second 3"} <= set(lines)
    assert "--source" in err
    assert "dry run" in err

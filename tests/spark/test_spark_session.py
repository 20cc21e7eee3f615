"""The session that jobs run in, and databases read through it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from servers import Server
from service_database import Service
from tallystick.barrier import BARRIER_TABLE
from tallystick.core.errors import ConfigError, InvalidRequest, TallystickError
from tallystick.spark import ARROW_ROWS, jdbc, register
from tallystick.spark.jdbc import Database, DriverMissing
from tallystick.spark.session import job_session

pytestmark = pytest.mark.spark


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | Server:
    return tmp_path / "a service.db" if request.param == "sqlite" else request.getfixturevalue(request.param)


def test_python_workers_run_with_the_packages_of_the_driver(spark: SparkSession) -> None:
    found = spark.range(2).mapInArrow(_with_msgspec, "found boolean").collect()
    assert [row.found for row in found] == [True, True]


def _with_msgspec(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import msgspec

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"found": [bool(msgspec.__version__)] * batch.num_rows})


def test_a_session_that_is_there_is_used_and_left_running(spark: SparkSession) -> None:
    with job_session("another", master="local[1]") as used:
        assert used is spark
    assert spark.range(3).count() == 3


def test_times_are_utc_and_nothing_listens_to_the_outside(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.parametrize("partition_by", [None, "id", "gid"])
def test_a_table_is_read_whole_however_it_is_split(
    spark: SparkSession, place: Path | Server, partition_by: str | None
) -> None:
    service = Service(place)
    gids = [f"gid-{number}" for number in range(101)]
    service.commit(*gids)
    database = Database.parse(service.url)
    found = database.read(spark, BARRIER_TABLE, ["gid", "reason"], partition_by=partition_by, partitions=3)
    rows = [tuple(row) for row in found.collect() if row.gid in gids]  # one more is the table's identity
    assert (sorted(rows), found.count()) == (sorted((gid, "msg") for gid in gids), len(gids) + 1)
    expected = 1 if partition_by is None or isinstance(place, Path) else 3
    assert found.rdd.getNumPartitions() == expected


def test_a_query_is_read_like_a_table(spark: SparkSession, place: Path | Server) -> None:
    service = Service(place)
    service.commit("a", "b")
    query = f"select gid from {BARRIER_TABLE} where gid = 'b'"
    assert [row.gid for row in Database.parse(service.url).read(spark, query).collect()] == ["b"]


def test_an_empty_table_has_no_rows(spark: SparkSession, place: Path | Server) -> None:
    database = Database.parse(Service(place).url)
    assert database.read(spark, "tallystick_outbox", partition_by="gid").count() == 0


def test_a_database_that_cannot_be_read_is_told_without_its_password(spark: SparkSession, postgres: Server) -> None:
    url = f"postgresql://nobody:hidden@127.0.0.1:{postgres.port}/service"
    with pytest.raises(TallystickError) as refused:
        Database.parse(url, "--database shop").read(spark, BARRIER_TABLE)
    assert "--database shop" in refused.value.detail
    assert "hidden" not in refused.value.detail + repr(Database.parse(url))


def test_a_missing_driver_is_told_with_its_package(
    spark: SparkSession, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = jdbc._DRIVERS["postgresql"]
    monkeypatch.setitem(jdbc._DRIVERS, "postgresql", known._replace(java_class="org.postgresql.NoSuchDriver"))
    with pytest.raises(DriverMissing) as missing:
        Database.parse(Service(postgres).url).read(spark, BARRIER_TABLE)
    for word in ("org.postgresql.NoSuchDriver", "libpostgresql-jdbc-java", "--jars", "TALLYSTICK_JDBC_JARS"):
        assert word in missing.value.detail


def test_a_split_needs_numbers_or_text(spark: SparkSession, postgres: Server) -> None:
    with pytest.raises(ConfigError, match="create_time is neither"):
        Database.parse(Service(postgres).url).read(spark, BARRIER_TABLE, partition_by="create_time")


def test_a_setting_with_which_pyspark_reads_nothing_is_named(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    before = spark.conf.get(ARROW_ROWS)
    spark.conf.set(ARROW_ROWS, "0")
    try:
        register(spark)
        with pytest.raises(InvalidRequest, match=rf"{ARROW_ROWS}: .*at least 1 \(got 0\)"):
            job_session("refused").__enter__()
    finally:
        spark.conf.set(ARROW_ROWS, before)
    assert [record.message for record in caplog.records if ARROW_ROWS in record.message]
    caplog.clear()
    register(spark)
    assert not caplog.records

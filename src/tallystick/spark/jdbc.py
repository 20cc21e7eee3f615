"""The services' own databases, seen from Spark: read in parallel by JDBC, and written to by their Python drivers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from tallystick.barrier.addresses import DatabaseAddress, Engine
from tallystick.core.errors import ConfigError, TallystickError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

JARS_VARIABLE = "TALLYSTICK_JDBC_JARS"
JAR_DIRECTORY = "/usr/share/java"
FETCH_ROWS = 10_000


class DriverMissing(TallystickError):
    """The JDBC driver of a database was not found."""

    code = "driver_missing"


class _Driver(NamedTuple):
    java_class: str
    jars: tuple[str, ...]  # file names, the best first; `*` stands for a version
    package: str


_DRIVERS: dict[Engine, _Driver] = {
    "postgresql": _Driver("org.postgresql.Driver", ("postgresql*.jar",), "libpostgresql-jdbc-java"),
    "mysql": _Driver("org.mariadb.jdbc.Driver", ("mariadb-java-client*.jar",), "libmariadb-java"),
    "sqlite": _Driver("org.sqlite.JDBC", ("xerial-sqlite-jdbc*.jar", "sqlite-jdbc*.jar"), "libxerial-sqlite-jdbc-java"),
}

# libpq's parameters that mean the same to the JDBC driver, under its own names.
_POSTGRESQL_NAMES = {
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "options": "options",
    "connect_timeout": "connectTimeout",
}


def driver_jars(given: Sequence[str] = ()) -> list[str]:
    """The jar of every driver that can be found, without those that are among the given ones already."""
    named = [Path(jar).name for jar in given]
    missing = [driver for driver in _DRIVERS.values() if not any(_is_of(driver, name) for name in named)]
    return [jar for driver in missing if (jar := _find_jar(driver)) is not None]


class FoundDriver(NamedTuple):
    """The driver of one kind of database: its jar as far as it is found, and the Debian package that has it."""

    engine: Engine
    jar: str | None
    package: str


def found_drivers() -> Iterator[FoundDriver]:
    return (FoundDriver(engine, _find_jar(driver), driver.package) for engine, driver in _DRIVERS.items())


def _is_of(driver: _Driver, name: str) -> bool:
    return any(Path(name).match(pattern) for pattern in driver.jars)


def _find_jar(driver: _Driver) -> str | None:
    listed = [jar for jar in os.environ.get(JARS_VARIABLE, "").split(",") if _is_of(driver, Path(jar).name)]
    installed = [jar for pattern in driver.jars for jar in sorted(glob(f"{JAR_DIRECTORY}/{pattern}"))]
    found = [*listed, *installed]
    return str(Path(found[0]).resolve()) if found else None


def library_options() -> str:
    """Java options under which Debian's SQLite driver finds its native half; empty where it brings it along."""
    native = [str(Path(library).parent) for library in sorted(glob("/usr/lib/*/jni/libsqlitejdbc.so"))]
    return f"-Djava.library.path={native[0]}" if native else ""


@dataclass(frozen=True)
class Database:
    """One database. Its representation shows no password, and it may be sent to executors."""

    address: DatabaseAddress
    named: str = "--database"

    @classmethod
    def parse(cls, url: str, named: str = "--database") -> Database:
        """From an address as the broker's own `databases` setting takes it; `named` is what the user calls it."""
        return cls(DatabaseAddress.parse(url, named, "database"), named)

    def connect(self, wait: float = 3.0) -> Any:
        """A connection of psycopg, PyMySQL or sqlite3, for statements that wait at most `wait` seconds for a lock."""
        return self.address.connect(wait)

    def read(
        self,
        spark: SparkSession,
        table_or_query: str,
        columns: Sequence[str] | None = None,
        partition_by: str | None = None,
        partitions: int | None = None,
    ) -> DataFrame:
        """A table (`name` or `schema.name`) or a query as a DataFrame; filters and columns are left to the database.

        `partition_by` splits it: a whole-number column into ranges, a text column by its hash.
        """
        whole = self._load(self._reader(spark, table_or_query))
        if partition_by is not None and self.address.engine != "sqlite":
            many = partitions or spark.sparkContext.defaultParallelism
            whole = self._split(spark, table_or_query, whole, partition_by, many)
        return whole if columns is None else whole.select(*columns)

    def _reader(self, spark: SparkSession, table_or_query: str) -> DataFrameReader:
        reader = spark.read.format("jdbc").option("fetchsize", FETCH_ROWS)
        for name, value in self._options(table_or_query).items():
            reader = reader.option(name, value)
        return reader

    def _options(self, table_or_query: str) -> dict[str, str]:
        return {
            "url": self.jdbc_url(),
            "driver": _DRIVERS[self.address.engine].java_class,
            "dbtable": _as_table(table_or_query),
            **self._properties(),
        }

    def _load(self, reader: DataFrameReader) -> DataFrame:
        from pyspark.errors import PySparkException

        try:
            return reader.load()
        except Exception as error:
            driver = _DRIVERS[self.address.engine]
            if driver.java_class in str(error) and "ClassNotFound" in str(error):
                raise self._driver_missing() from None
            if not isinstance(error, PySparkException) and type(error).__name__ != "Py4JJavaError":
                raise
            raise TallystickError(f"{self.named}: the database cannot be read by JDBC: {_first_line(error)}") from None

    def _driver_missing(self) -> DriverMissing:
        driver = _DRIVERS[self.address.engine]
        return DriverMissing(
            f"{self.named}: Spark has no JDBC driver for {self.address.engine} ({driver.java_class}); install Debian's "
            f"{driver.package}, or name the jar ({driver.jars[0]}) with --jars or in {JARS_VARIABLE}"
        )

    # --- splitting -------------------------------------------------------------------------------------------

    def _split(
        self, spark: SparkSession, table_or_query: str, whole: DataFrame, column: str, partitions: int
    ) -> DataFrame:
        from pyspark.sql.types import IntegralType, StringType

        kind = whole.schema[column].dataType
        if isinstance(kind, StringType):
            predicates = list(self._hash_predicates(column, partitions))
            return spark.read.jdbc(
                self.jdbc_url(), _as_table(table_or_query), predicates=predicates, properties=self._all_properties()
            )
        if not isinstance(kind, IntegralType):
            raise ConfigError(f"partition_by: {column} is neither whole numbers nor text but {kind.simpleString()}")
        low, high = self.bounds(table_or_query, column)
        reader = self._reader(spark, table_or_query)
        # Rows outside of the bounds go to the first and the last part: none is left out.
        for name, value in {"lowerBound": low, "upperBound": high + 1, "numPartitions": partitions}.items():
            reader = reader.option(name, value)
        return self._load(reader.option("partitionColumn", column))

    def _hash_predicates(self, column: str, partitions: int) -> Iterator[str]:
        hashed = f"crc32({column})" if self.address.engine == "mysql" else f"abs(hashtext({column})::bigint)"
        return (f"{hashed} % {partitions} = {part}" for part in range(partitions))

    def bounds(self, table_or_query: str, column: str) -> tuple[int, int]:
        """The smallest and the largest value of a whole-number column; zeros if there are no rows."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(f"select min({column}), max({column}) from {_as_table(table_or_query)}")  # noqa: S608
            low, high = cursor.fetchone()
        finally:
            connection.close()
        return int(low or 0), int(high or 0)

    # --- how Java is told ------------------------------------------------------------------------------------

    def jdbc_url(self) -> str:
        """Without user and password, which go beside it."""
        return {"postgresql": self._postgresql_url, "mysql": self._mysql_url, "sqlite": self._sqlite_url}[
            self.address.engine
        ]()

    def _properties(self) -> dict[str, str]:
        known = self.address.parameters
        given = {name: str(known[name]) for name in ("user", "password") if known.get(name)}
        if self.address.engine == "mysql":
            # A server may be set to dirty reads, and would then show a running transaction as a committed one.
            given["sessionInitStatement"] = "set session transaction isolation level read committed"
        return given

    def _all_properties(self) -> dict[str, str]:
        driver = _DRIVERS[self.address.engine].java_class
        return {"driver": driver, "fetchsize": str(FETCH_ROWS), **self._properties()}

    def _postgresql_url(self) -> str:
        known = self.address.parameters
        hosts, ports = str(known.get("host") or "localhost").split(","), str(known.get("port") or "5432").split(",")
        if hosts[0].startswith("/"):
            raise ConfigError(f"{self.named}: JDBC cannot use a local socket; give a host", field="database")
        ports = ports if len(ports) == len(hosts) else ports * len(hosts)
        places = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
        more = urlencode({name: known[mine] for mine, name in _POSTGRESQL_NAMES.items() if mine in known})
        database = quote(str(known.get("dbname") or known.get("user") or ""), safe="")
        return f"jdbc:postgresql://{places}/{database}" + (f"?{more}" if more else "")

    def _mysql_url(self) -> str:
        # Not jdbc:mariadb://, under which Spark quotes names in a way that the server reads as text.
        known = self.address.parameters
        more = {"permitMysqlScheme": "true"}
        if "unix_socket" in known:
            more["localSocket"] = known["unix_socket"]
        place = f"{known['host']}:{known['port']}/{quote(known['database'], safe='')}"
        return f"jdbc:mysql://{place}?{urlencode(more)}"

    def _sqlite_url(self) -> str:
        return f"jdbc:sqlite:{self.address.parameters['path']}"


def _as_table(table_or_query: str) -> str:
    return f"({table_or_query}) tallystick_query" if " " in table_or_query.strip() else table_or_query


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(java if java is not None else error).strip().splitlines()[0]

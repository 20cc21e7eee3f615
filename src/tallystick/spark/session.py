"""The Spark session of a job: the one that is there, or a new one with settings that suit our jobs."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tallystick.core.errors import InvalidRequest, TallystickError
from tallystick.spark.command_lines import refuse_conf, refuse_submit_arguments
from tallystick.spark.java import find_java
from tallystick.spark.jdbc import driver_jars, library_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
PANDAS_WARNING = "PySpark does not yet fully support pandas"
_WARNS_OF_IT = "org.apache.spark.sql.execution.datasources.DataSourceManager"
_OPTIONS_OF_JAVA = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


class SparkMissing(TallystickError):
    """The jobs run on Spark, and PySpark is not installed."""

    code = "spark_missing"


@contextmanager
def job_session(
    app: str, master: str | None = None, jars: Sequence[str] = (), conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session with our format in it. One that is active already is used as it is and left running.

    `master` is where to run (default: all cores of this machine); under spark-submit that, and not this, decides.
    JDBC drivers are added to `jars` as far as they are found; `conf` wins over every default.
    """
    session_class = _session_class()
    active = session_class.getActiveSession()
    if active is not None:
        yield _registered(active)
        return
    spark = _started(session_class, app, master, jars, conf or {})
    try:
        yield _registered(spark)
    finally:
        spark.stop()


def _session_class() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing("PySpark is not installed; install it with `pip install tallystick[spark]`") from error
    return SparkSession


def _started(
    session_class: type[SparkSession], app: str, master: str | None, jars: Sequence[str], conf: Mapping[str, str]
) -> SparkSession:
    # Without this the workers would run whatever `python3` comes first on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Nothing of ours uses pandas; PySpark looks at its version wherever Arrow comes in.
    warnings.filterwarnings("ignore", PANDAS_WARNING, FutureWarning)
    settings = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": "false"}
    builder = session_class.Builder().appName(f"tallystick {app}")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started Java, with its own settings
        refuse_conf(conf)
        refuse_submit_arguments()
        os.environ["JAVA_HOME"] = str(find_java().home)
        where = master or DEFAULT_MASTER
        builder = builder.master(where)
        settings.update(_of_a_machine(where))
        settings.update(_with_drivers(jars, conf))
    for name, value in {**settings, **conf}.items():
        if name not in _OPTIONS_OF_JAVA:
            builder = builder.config(name, value)
    for name in _OPTIONS_OF_JAVA:
        options = " ".join(filter(None, (settings.get(name), conf.get(name))))
        if options:
            builder = builder.config(name, options)
    return builder.getOrCreate()


def _of_a_machine(master: str) -> dict[str, str]:
    """For a master on this machine: nothing listens to the outside, and a shuffle has no more parts than are of use."""
    if not master.startswith("local"):
        return {}
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    }


def _with_drivers(jars: Sequence[str], conf: Mapping[str, str]) -> dict[str, str]:
    found = [*filter(None, conf.get("spark.jars", "").split(",")), *jars]
    settings = {name: library_options() for name in _OPTIONS_OF_JAVA}
    return {**settings, "spark.jars": ",".join([*found, *driver_jars(found)])}


def _registered(spark: SparkSession) -> SparkSession:
    """Registered even where Spark finds the format by itself: one broken `pyspark_*` package of somebody else would
    make it lose all that it finds. It warns of that each time, which tells the user nothing."""
    from tallystick.spark import register, unreadable

    if trouble := unreadable(spark):
        raise InvalidRequest(trouble, field="conf")
    java = getattr(getattr(spark, "sparkContext", None), "_jvm", None)
    if java is not None:
        logging = java.org.apache.logging.log4j
        logging.core.config.Configurator.setLevel(_WARNS_OF_IT, logging.Level.ERROR)
    register(spark)
    return spark

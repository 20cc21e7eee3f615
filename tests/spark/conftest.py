"""One Spark session for all tests of a worker, one broker for those of a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.spark.session import PANDAS_WARNING, job_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Small enough for two cores that a whole test run shares.
CONF = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.python.daemon.module": "warm_workers",
}


def pytest_configure(config: pytest.Config) -> None:
    # pandas comes with an extra of PySpark and is not used here; PySpark looks at its version all the same.
    config.addinivalue_line("filterwarnings", f"ignore:{PANDAS_WARNING}:FutureWarning")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Functions that a test gives to Spark are found by the workers where this process found them.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with job_session("tests", master="local[2]", conf=CONF) as session:
        yield session


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker() as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as made:
        yield made

"""What a broker loads to start: nothing that it may never need. Half of its start was that once."""

from __future__ import annotations

from pathlib import Path

import pytest
from called_services import grpc_service
from web_sites import site

from brokers import BrokerProcess, running_broker
from tallystick import AsyncClient

LARGE = {
    "aiohttp",
    "cryptography",
    "grpc",
    "jwt",
    "pyarrow",
    "pydantic",
    "pyspark",
    "rich",
    "sqlalchemy",
    "typer",
    "yarl",
}
# At its end the broker tells what it has loaded.
TELL = """
import atexit, pathlib, sys
atexit.register(lambda: pathlib.Path("modules").write_text("\\n".join(sys.modules)))
"""


def loaded(broker: BrokerProcess) -> set[str]:
    assert broker.stop() == 0, broker.log_text()
    names = (broker.directory / "modules").read_text().splitlines()
    assert "tallystick.broker.broker" in names
    return {name.partition(".")[0] for name in names} & LARGE


async def call(broker: BrokerProcess, url: str) -> None:
    async with AsyncClient(broker.url) as client:
        await client.call(url, b"{}", wait=20)


async def test_a_broker_that_calls_over_http_loads_no_large_library(tmp_path: Path) -> None:
    with running_broker(tmp_path, prelude=TELL) as broker:
        async with site() as there:
            await call(broker, there.url)
        assert loaded(broker) == set()


async def test_grpc_is_loaded_with_the_first_call_that_needs_it(tmp_path: Path) -> None:
    with running_broker(tmp_path, prelude=TELL) as broker:
        async with grpc_service() as there:
            await call(broker, there.url())
        assert loaded(broker) == {"grpc"}


@pytest.mark.parametrize("grpc", [True, False])
def test_grpc_is_loaded_for_its_port(tmp_path: Path, grpc: bool) -> None:
    with running_broker(tmp_path, prelude=TELL, grpc=grpc) as broker:
        assert loaded(broker) == ({"grpc"} if grpc else set())

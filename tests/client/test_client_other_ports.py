"""An address that leads to another port of a broker is named at once, with the address to give instead."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from client_support import Bank

import tallystick
from brokers import BrokerProcess, running_broker
from tallystick import errors
from tallystick.credentials.spoken import other_protocol
from tallystick.link import Link

TIMEOUT = 60.0
AT_ONCE = 30.0
SAID = r"is not the HTTP port of a broker: it speaks HTTP/2, as the gRPC port of a broker does\. Give the broker's HTTP"


@pytest.fixture(scope="module")
def grpc() -> Iterator[str]:
    with running_broker(grpc=True) as process:
        yield f"http://{process.grpc}"


def test_a_grpc_port_is_named_to_a_client(grpc: str, bank: Bank) -> None:
    began = time.monotonic()
    with tallystick.Client(grpc, group="other", timeout=TIMEOUT) as client:
        with pytest.raises(errors.BrokerUnreachable, match=SAID):
            client.info()
        with pytest.raises(errors.BrokerUnreachable, match=SAID):
            client.send("t", "x")
        with (
            bank.connection() as connection,
            pytest.raises(errors.BrokerUnreachable, match=SAID),
            client.transaction(connection) as tx,
        ):
            tx.send("t", "x")
        client.close(timeout=1.0)
    assert time.monotonic() - began < AT_ONCE


async def test_a_grpc_port_is_named_to_an_async_client(grpc: str) -> None:
    began = time.monotonic()
    client = tallystick.AsyncClient(grpc, group="other", timeout=TIMEOUT)
    with pytest.raises(errors.BrokerUnreachable, match=SAID):
        await client.send("t", "x")
    with pytest.raises(errors.BrokerUnreachable, match=SAID):
        await client.topics()
    await client.close(timeout=1.0)
    assert time.monotonic() - began < AT_ONCE


def test_a_grpc_port_is_named_to_commands_and_to_spark(grpc: str) -> None:
    began = time.monotonic()
    with Link(grpc, patience=TIMEOUT) as link, pytest.raises(errors.BrokerUnreachable, match=SAID):
        link.get("topics")
    assert time.monotonic() - began < AT_ONCE


def test_a_port_of_tls_is_told_by_its_alert() -> None:
    found = other_protocol(b"\x15\x03\x03\x00\x02\x02\x46")
    assert found is not None
    assert "https://" in str(found)
    assert other_protocol(b"220 mail.example ESMTP") is None


def test_a_port_of_plain_http_is_named_to_a_client_that_speaks_tls(broker: BrokerProcess) -> None:
    url = broker.url.replace("http://", "https://")
    with (
        tallystick.Client(url, timeout=2.0) as client,
        pytest.raises(errors.BrokerUnreachable, match="is its address http://"),
    ):
        client.info()

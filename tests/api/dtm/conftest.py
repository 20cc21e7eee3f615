"""A broker and a branch service for the tests of a file, and dtm's protocols spoken by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dtm_faces import SHORT, Face, HttpFace, JsonRpcFace, Looker

from brokers import BrokerProcess, running_broker
from busi import Busi, running_busi
from raw_client import RawClient


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**SHORT) as running:
        yield running


@pytest.fixture(scope="module")
def busi() -> Iterator[Busi]:
    with running_busi() as running:
        yield running


@pytest.fixture
def look(client: RawClient) -> Looker:
    return Looker(client)


@pytest.fixture(params=["http", "json-rpc"])
def face(request: pytest.FixtureRequest, client: RawClient) -> Face:
    return HttpFace(client) if request.param == "http" else JsonRpcFace(client)


@pytest.fixture
def http(client: RawClient) -> HttpFace:
    return HttpFace(client)

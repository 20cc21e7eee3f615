"""A write under a token that is limited to groups: refused before a row is sent, in words that name the option."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sink_support import VALUES, as_task, values

from access_tokens import ADMIN, Token, token
from access_tokens import settings as known_tokens
from brokers import BrokerProcess, running_broker
from tallystick.core.errors import Forbidden
from tallystick.core.ids import new_gid
from tallystick.credentials.credentials import find_credentials
from tallystick.link import Link
from tallystick.spark.format import TallystickSource
from tallystick.spark.sink.writer import BatchWriter, StreamWriter

SHOP = token("shop", "producer", groups=["shop", "shop-*"])
ANY = token("any", "producer")


@pytest.fixture(scope="module")
def guarded() -> Iterator[BrokerProcess]:
    with running_broker(log_level="warning", **known_tokens(SHOP, ANY)) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    return f"t-{new_gid()}"


def options(broker: BrokerProcess, topic: str, shown: Token, tmp_path: Path, **more: str) -> dict[str, str]:
    file = tmp_path / shown.table["name"]
    file.write_text(shown.text)
    return {"url": broker.url, "topic": topic, "tokenFile": str(file), **more}


def made(options: dict[str, str]) -> BatchWriter:
    """As Spark makes the writer of a batch, on the driver."""
    writer = TallystickSource(options).writer(VALUES, False)
    assert isinstance(writer, BatchWriter)
    return writer


def ends_of(broker: BrokerProcess, topic: str, tmp_path: Path) -> list[int] | None:
    file = tmp_path / "admin"
    file.write_text(ADMIN.text)
    with Link(broker.url, credentials=find_credentials(token_file=file)) as link:
        found = {view["name"]: view["ends"] for view in link.get("topics")["topics"]}
    return found.get(topic)


def test_a_batch_write_without_an_application_is_refused_on_the_driver(
    guarded: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(Forbidden, match=r"option 'txnAppId': 'shop' .*\(its groups: shop, shop-\*\). Set txnAppId"):
        made(options(guarded, topic, SHOP, tmp_path))
    assert ends_of(guarded, topic, tmp_path) is None


def test_a_stream_without_an_application_is_refused_before_it_sends(
    guarded: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    writer = StreamWriter(VALUES, options(guarded, topic, SHOP, tmp_path), overwrite=False)
    with as_task(), pytest.raises(Forbidden, match=r"is the query's id\. Set option 'txnAppId'"):
        writer.write(iter([values("a")]))
    assert ends_of(guarded, topic, tmp_path) is None


def test_an_application_that_the_token_covers_is_written(guarded: BrokerProcess, topic: str, tmp_path: Path) -> None:
    writer = made(options(guarded, topic, SHOP, tmp_path, txnAppId=f"shop-{topic}", txnVersion="1"))
    writer.commit([writer.write(iter([values("a", "b")]))])
    assert sum(ends_of(guarded, topic, tmp_path) or []) == 2


def test_a_token_for_every_group_needs_no_application(guarded: BrokerProcess, topic: str, tmp_path: Path) -> None:
    writer = made(options(guarded, topic, ANY, tmp_path))
    writer.commit([writer.write(iter([values("a", "b")]))])
    assert sum(ends_of(guarded, topic, tmp_path) or []) == 2


def test_without_access_control_nothing_is_refused(broker: BrokerProcess, topic: str) -> None:
    made({"url": broker.url, "topic": topic})


def test_a_broker_that_is_away_is_waited_for_by_the_tasks(topic: str) -> None:
    made({"url": "http://127.0.0.1:1", "topic": topic})

"""What a report finds missing of its range: trimmed messages, unless they are older, or in the archive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from archive_support import run
from source_support import new_topic, produce, trim

from brokers import BrokerProcess
from raw_client import RawClient
from tallystick.core.wire import TopicView
from tallystick.link import Link
from tallystick.spark.jobs.report.missing import missing_messages
from tallystick.spark.jobs.report.settings import ReportSettings, Span, span_of

DAY_MS = 24 * 3_600_000


@pytest.fixture
def link(broker: BrokerProcess) -> Iterator[Link]:
    with Link(broker.url) as made:
        yield made


@pytest.fixture
def topic(client: RawClient) -> str:
    """600 messages in two queues, in order of the queues' turns."""
    made = new_topic(client)
    produce(client, made, 600)
    return made


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def of(since_ms: int, until_ms: int | None = None) -> Span:
    return span_of(ReportSettings(url="", since_ms=since_ms, until_ms=until_ms), now_ms() + 1)


def found(link: Link, topic: str, span: Span, archive: Path | str = "") -> list[tuple[int, int, int, int]]:
    view = msgspec.convert(link.get("topics", topic), TopicView)
    rows = missing_messages(link, [view], str(archive), span)
    assert all(row["topic"] == topic for row in rows)
    return [(row["queue"], row["first"], row["last"], row["messages"]) for row in rows]


def test_nothing_is_missing_of_a_topic_that_has_it_all(link: Link, topic: str) -> None:
    assert found(link, topic, of(now_ms() - DAY_MS)) == []


def test_what_was_trimmed_is_missing(link: Link, client: RawClient, topic: str) -> None:
    end = link.get("topics", topic)["ends"][1]
    trim(client, topic, q0=100, q1=end)
    assert found(link, topic, of(now_ms() - DAY_MS)) == [(0, 0, 99, 100), (1, 0, end - 1, end)]


def test_what_was_trimmed_before_the_range_is_not(link: Link, client: RawClient, topic: str) -> None:
    since = now_ms() + 1
    while now_ms() <= since:
        pass
    ends = link.get("topics", topic)["ends"]
    produce(client, topic, 40)
    trim(client, topic, q0=ends[0] - 1, q1=ends[1] - 1)
    assert found(link, topic, of(since)) == []


def test_nor_is_anything_of_a_range_before_the_topic(link: Link, client: RawClient, topic: str) -> None:
    trim(client, topic, q0=100)
    assert found(link, topic, of(now_ms() - 2 * DAY_MS, now_ms() - DAY_MS)) == []


def test_an_archive_has_what_was_trimmed(link: Link, client: RawClient, topic: str, tmp_path: Path) -> None:
    run(link.url, tmp_path / "archive", topic, to_offsets={topic: {0: 200, 1: 100}}, older_than_ms=None)
    assert link.get("topics", topic)["starts"] == [200, 100]
    span = of(now_ms() - DAY_MS)
    assert found(link, topic, span, tmp_path / "archive") == []
    assert found(link, topic, span) == [(0, 0, 199, 200), (1, 0, 99, 100)]
    trim(client, topic, q0=250)
    assert found(link, topic, span, tmp_path / "archive") == [(0, 200, 249, 50)]  # behind the archive's end

"""What clients of brokers never retry: a certificate that is not trusted, a port without TLS, 401 and 403.

The retry time of every client here is minutes. A client that retried would still be waiting when the test fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sink_support import VALUES, as_task, values
from source_support import new_topic, produce

from brokers import BrokerProcess
from client_certificates import TestAuthority, serving
from keeper import Keeper, doorkeeper
from raw_client import RawClient
from tallystick.cli.links import AnyLink
from tallystick.core.errors import BrokerUnavailable, BrokerUntrusted, Forbidden, Unauthenticated
from tallystick.credentials.credentials import find_credentials
from tallystick.link import Link
from tallystick.local import free_port
from tallystick.spark.brokers import BrokersLink, stores_behind
from tallystick.spark.jobs.archive.job import run_archive
from tallystick.spark.jobs.archive.settings import ArchiveSettings
from tallystick.spark.jobs.replay import ReplaySettings, run_replay
from tallystick.spark.jobs.report import ReportSettings, run_report
from tallystick.spark.schema import topic_schema
from tallystick.spark.sink.writer import BatchWriter, StreamWriter
from tallystick.spark.source.messages import read_range
from tallystick.spark.source.ranges import Range
from tallystick.spark.source.reader import BatchReader, StreamReader
from tallystick.spark.source.settings import parse_settings
from tallystick.spark.tables import TablePartition, TableReader, columns_of

PATIENCE = "10m"
SOON_SECONDS = 60.0


def batch_source(url: str, ca: str) -> None:
    BatchReader({"url": url, "topic": "t", "retryTimeout": PATIENCE, "caFile": ca}, topic_schema()).partitions()


def stream_source(url: str, ca: str) -> None:
    reader = StreamReader({"url": url, "topic": "t", "retryTimeout": PATIENCE, "caFile": ca}, topic_schema())
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())


def source_task(url: str, ca: str) -> None:
    options = {"url": url, "topic": "t", "retryTimeout": PATIENCE, "caFile": ca}
    reader = BatchReader(options, topic_schema())
    list(read_range(parse_settings(options, streaming=False), reader._shape, Range("t", 0, 0, 1)))


def sink_task(url: str, ca: str) -> None:
    options = {"url": url, "topic": "t", "retryTimeout": PATIENCE, "caFile": ca}
    with as_task():
        StreamWriter(VALUES, options, overwrite=False).write(iter([values("a")]))


def batch_sink(url: str, ca: str) -> None:
    options = {"url": url, "topic": "t", "retryTimeout": PATIENCE, "caFile": ca}
    BatchWriter(VALUES, options, overwrite=False).write(iter([values("a")]))


def table(url: str, ca: str) -> None:
    TableReader({"url": url, "table": "op", "retryTimeout": PATIENCE, "caFile": ca}, columns_of("op")).partitions()


def table_task(url: str, ca: str) -> None:
    reader = TableReader({"url": url, "table": "op", "retryTimeout": PATIENCE, "caFile": ca}, columns_of("op"))
    list(reader.read(TablePartition(None, None)))


def reconcile(url: str, ca: str) -> None:
    stores_behind(url, 600.0, credentials=find_credentials(ca=ca))


def archive(url: str, ca: str) -> None:
    place = str(Path(ca).with_name("archive"))
    settings = ArchiveSettings(
        url=url, path=place, topics=("t",), older_than_ms=0, credentials=find_credentials(ca=ca), patience_seconds=600
    )
    run_archive(_no_spark(), settings)


def replay(url: str, ca: str) -> None:
    ends = {"from_offsets": {0: 0}, "to_offsets": {0: 1}}
    run_replay(_no_spark(), ReplaySettings(url=url, topic="t", to="u", credentials=find_credentials(ca=ca), **ends))


def report(url: str, ca: str) -> None:
    run_report(_no_spark(), ReportSettings(url=url, credentials=find_credentials(ca=ca)))


def _no_spark() -> Any:
    """These jobs ask the broker before they use Spark."""
    return None


ASKERS = [
    *(batch_source, stream_source, source_task, batch_sink, sink_task, table, table_task),
    *(reconcile, archive, replay, report),
]
EVERY_ASKER = pytest.mark.parametrize("ask", ASKERS, ids=lambda ask: ask.__name__)


@contextmanager
def at_once() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON_SECONDS


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def of_others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TestAuthority(tmp_path_factory.mktemp("others"), "others").sign("of-others")


@pytest.fixture(scope="module")
def untrusted(of_others: Path) -> Iterator[Keeper]:
    with doorkeeper(tls=serving(of_others)) as made:
        yield made


@pytest.fixture(scope="module")
def refusing() -> Iterator[Keeper]:
    with doorkeeper() as made:
        yield made


@EVERY_ASKER
def test_an_untrusted_certificate_is_an_error_at_once(
    ask: Callable[[str, str], None], ours: TestAuthority, untrusted: Keeper
) -> None:
    with at_once(), pytest.raises(BrokerUntrusted, match=r"from a CA that is not known here.*option caFile"):
        ask(untrusted.url, str(ours.file))
    assert untrusted.seen == []


@pytest.mark.parametrize("wrong", ["name", "expired", "no TLS", "client certificate"])
def test_nor_is_any_other_failure_of_tls_that_stays(wrong: str, ours: TestAuthority, tmp_path: Path) -> None:
    served = {
        "name": lambda: serving(ours.sign("other-name", "elsewhere.example")),
        "expired": lambda: serving(ours.sign("old", expired=True)),
        "no TLS": lambda: None,
        "client certificate": lambda: serving(ours.sign("strict"), Path(ours.file)),
    }[wrong]()
    with doorkeeper(tls=served) as keeper, at_once(), pytest.raises(BrokerUntrusted, match="TLS: "):
        batch_source(keeper.url.replace("http:", "https:"), str(ours.file))


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("bare", [False, True], ids=["by the broker", "by a proxy"])
@EVERY_ASKER
def test_a_refusal_is_not_retried(
    ask: Callable[[str, str], None], status: int, bare: bool, ours: TestAuthority, refusing: Keeper
) -> None:
    refusing.judge, refusing.bare = (lambda path, body: status), bare
    refusing.refused.clear()
    with at_once(), pytest.raises(Unauthenticated if status == 401 else Forbidden):
        ask(refusing.url, str(ours.file))
    assert len(refusing.refused) == 1


def test_another_broker_of_the_cluster_answers_in_place_of_an_untrusted_one(
    ours: TestAuthority, untrusted: Keeper, broker: BrokerProcess, client: RawClient
) -> None:
    topic = new_topic(client)
    produce(client, topic, 3)
    with (
        doorkeeper(broker.url, tls=serving(ours.sign("good"))) as good,
        at_once(),
        BrokersLink(f"{untrusted.url},{good.url}", patience=600, credentials=find_credentials(ca=ours.file)) as link,
    ):
        link._require_same = lambda view: None  # type: ignore[method-assign]  # two doors of one broker
        assert sum(link.get("topics", topic)["ends"]) == 3
        assert untrusted.seen == []
        assert link.url == good.url


def test_the_error_names_the_untrusted_broker_when_the_others_are_away(ours: TestAuthority, untrusted: Keeper) -> None:
    away = f"https://127.0.0.1:{free_port()}"
    told = rf"no broker answers at {away}.*{untrusted.url} cannot be reached \(TLS"
    link = BrokersLink(f"{untrusted.url},{away}", patience=0.5, credentials=find_credentials(ca=ours.file))
    with link, pytest.raises(BrokerUnavailable, match=told):
        link.get("info")


def test_several_untrusted_brokers_are_asked_once_each(
    ours: TestAuthority, untrusted: Keeper, of_others: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_CA_FILE", str(ours.file))
    with doorkeeper(tls=serving(of_others)) as two, at_once():
        given = f"{untrusted.url},{two.url}"
        links: list[Link] = [BrokersLink(given, patience=600, credentials=find_credentials()), AnyLink(given)]
        for link in links:
            with link, pytest.raises(BrokerUntrusted):
                link.get("info")


def test_an_absence_is_still_retried(broker: BrokerProcess) -> None:
    """The control: what the rule leaves to be retried."""
    with doorkeeper(broker.url) as keeper:
        refusals = iter([500, 500])
        keeper.judge = lambda path, body: next(refusals, 0)
        keeper.bare = True
        with Link(keeper.url, patience=60) as link:
            assert link.get("info")["store"]
    assert len(keeper.refused) == 2

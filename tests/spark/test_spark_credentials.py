"""Spark with a token: it goes with every request, and Spark shows it nowhere."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from source_support import new_topic, produce

from brokers import BrokerProcess
from client_certificates import TestAuthority, serving
from keeper import Keeper, doorkeeper
from raw_client import RawClient
from tallystick.core.errors import InvalidRequest, Unauthenticated
from tallystick.core.wire import ClusterBroker, ClusterView
from tallystick.credentials.credentials import Credentials, find_credentials
from tallystick.credentials.tokens import SecretToken
from tallystick.spark.brokers import BrokersLink
from tallystick.spark.jobs.archive.job import run_archive
from tallystick.spark.jobs.archive.settings import ArchiveSettings
from tallystick.spark.options import credential_options
from tallystick.spark.schema import topic_schema
from tallystick.spark.sink import options as sink_options
from tallystick.spark.source.reader import BatchReader
from tallystick.spark.source.settings import parse_settings
from tallystick.spark.tables import parse_settings as parse_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = f"tally_abcdefghijkl_{uuid.uuid4().hex}"
PROGRAM = Path(__file__).with_name("shown_by_spark.py")


@pytest.fixture
def keeper(broker: BrokerProcess) -> Iterator[Keeper]:
    with doorkeeper(broker.url, TOKEN) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def topic(client: RawClient) -> str:
    made = new_topic(client)
    produce(client, made, 20)
    return made


def test_a_reader_travels_with_the_place_of_its_token(keeper: Keeper, topic: str, file: Path) -> None:
    reader = BatchReader({"url": keeper.url, "topic": topic, "tokenFile": str(file)}, topic_schema())
    parts = reader.partitions()
    pickled = pickle.dumps(reader)
    assert TOKEN.encode() not in pickled
    on_executor = pickle.loads(pickled)
    assert sum(len(batch) for part in parts for batch in on_executor.read(part)) == 20
    assert {authorization for _, authorization in keeper.seen} == {f"Bearer {TOKEN}"}


def test_the_environment_counts_where_no_option_names_a_file(
    keeper: Keeper, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_TOKEN", TOKEN)
    reader = BatchReader({"url": keeper.url, "topic": topic}, topic_schema())
    parts = reader.partitions()
    pickled = pickle.dumps(reader)
    assert TOKEN.encode() not in pickled
    monkeypatch.delenv("TALLYSTICK_TOKEN")
    with pytest.raises(InvalidRequest, match=r"spark\.executorEnv\.TALLYSTICK_TOKEN"):
        list(pickle.loads(pickled).read(parts[0]))


def test_without_a_token_there_is_an_error_that_says_what_to_do(keeper: Keeper, topic: str) -> None:
    reader = BatchReader({"url": keeper.url, "topic": topic}, topic_schema())
    with pytest.raises(Unauthenticated, match="option tokenFile"):
        reader.partitions()
    assert len(keeper.refused) == 1  # and nobody is asked for it again and again


@pytest.mark.parametrize("name", ["token", "TOKEN"])
def test_a_token_is_no_option(name: str) -> None:
    given = {"url": "http://127.0.0.1:1", "topic": "t", name: TOKEN}
    for parse in (
        lambda: parse_settings(given, streaming=False),
        lambda: sink_options.parse(given, streaming=True),
        lambda: parse_table({"url": "http://127.0.0.1:1", "table": "offsets", name: TOKEN}),
    ):
        with pytest.raises(InvalidRequest, match=r"option 'token': .*'tokenFile'.*TALLYSTICK_TOKEN") as refused:
            parse()
        assert TOKEN not in str(refused.value)


def test_files_are_looked_at_in_the_driver(tmp_path: Path) -> None:
    for name in ("tokenFile", "caFile", "certFile"):
        given = {"url": "http://127.0.0.1:1", "topic": "t", name: str(tmp_path / "nothing-there")}
        with pytest.raises(InvalidRequest, match=r"tokenFile.*nothing-there"):
            parse_settings(given, streaming=False)


def test_source_sink_and_tables_show_it(keeper: Keeper, topic: str, file: Path, spark: SparkSession) -> None:
    given = {"url": keeper.url, "tokenFile": str(file)}
    messages = spark.read.format("tallystick").options(**given, topic=topic).load()
    assert messages.count() == 20
    messages.select("value").write.format("tallystick").mode("append").options(**given, topic=topic).save()
    assert spark.read.format("tallystick").options(**given, topic=topic).load().count() == 40
    assert spark.read.format("tallystick").options(**given, table="transactions").load().count() >= 0
    assert {authorization for _, authorization in keeper.seen} == {f"Bearer {TOKEN}"}


def test_jobs_show_it(keeper: Keeper, topic: str, file: Path, tmp_path: Path, spark: SparkSession) -> None:
    settings = ArchiveSettings(
        url=keeper.url,
        path=str(tmp_path / "archive"),
        topics=(topic,),
        older_than_ms=0,
        credentials=find_credentials(token_file=file),
    )
    summary = run_archive(spark, settings)
    assert sum(one.rows for one in summary.topics) == 20
    assert {authorization for _, authorization in keeper.seen} == {f"Bearer {TOKEN}"}


@pytest.mark.full
def test_spark_shows_the_token_nowhere(keeper: Keeper, topic: str, file: Path, tmp_path: Path) -> None:
    """Not in plans, pages, answers of its UI, event logs, output or errors."""
    place = tmp_path / "shown"
    place.mkdir()
    properties = tmp_path / "token.conf"
    properties.write_text(f"spark.executorEnv.TALLYSTICK_TOKEN {TOKEN}\n")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYSPARK_SUBMIT_ARGS": f"--properties-file {properties} pyspark-shell",
        "TALLYSTICK_TOKEN": TOKEN,
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), keeper.url, topic, str(place), str(file)],
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"refused:" in done.stdout
    files = {path.name: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert len(files) > 6
    assert [name for name, content in files.items() if TOKEN.encode() in content] == []
    assert TOKEN.encode() not in done.stdout + done.stderr
    # The control: an option of a statement is in the event log, and so would a token be, if it were one.
    assert any(b"mark-of-the-control" in content for content in files.values())


def test_a_token_that_was_given_in_python_is_not_dropped_in_silence(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match=r"token_file=.*spark\.executorEnv") as refused:
        credential_options(find_credentials(SecretToken(TOKEN)))
    assert TOKEN not in str(refused.value)
    assert credential_options(find_credentials(token_file=file)) == {"tokenFile": str(file)}
    monkeypatch.setenv("TALLYSTICK_TOKEN", TOKEN)
    assert credential_options(find_credentials()) == {}


class _NamesPlainHttp(BaseHTTPRequestHandler):
    """A cluster whose brokers name each other without TLS."""

    def do_GET(self) -> None:
        view = ClusterView([], [ClusterBroker("b", "b", "http://two.example:7440")], "b")
        body = msgspec.json.encode(view)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_task_that_was_given_https_alone_does_not_go_on_without_it(tmp_path: Path) -> None:
    ours = TestAuthority(tmp_path, "ours")
    with ThreadingHTTPServer(("127.0.0.1", 0), _NamesPlainHttp) as plain:
        thread = threading.Thread(target=plain.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{plain.server_port}"
            with doorkeeper(url, tls=serving(ours.sign("broker"))) as keeper:
                known = {
                    given: _known(given, find_credentials(ca=ours.file))
                    for given in (keeper.url, f"{keeper.url},{url}")
                }
        finally:
            plain.shutdown()
            thread.join()
    secure, mixed = known.values()
    assert secure == [keeper.url]
    assert mixed == [keeper.url, url, "http://two.example:7440"]


def _known(given: str, credentials: Credentials) -> list[str]:
    with BrokersLink(given, credentials=credentials) as link:
        assert link.stores == []
        return link._known

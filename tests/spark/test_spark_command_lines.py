"""A token is on no command line: where the documents put it, `ps` does not show it, and other places are refused."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest
from source_support import new_topic, produce

from brokers import BrokerProcess
from eventually import eventually
from keeper import doorkeeper
from raw_client import RawClient
from tallystick.core.errors import InvalidRequest
from tallystick.credentials.credentials import NO_CREDENTIALS
from tallystick.spark.command_lines import check_command_lines
from tallystick.spark.session import job_session

TOKEN = f"tally_abcdefghijkl_{uuid.uuid4().hex}"
PROGRAM = Path(__file__).with_name("token_on_command_line.py")
SETTING = "spark.executorEnv.TALLYSTICK_TOKEN"

# What every process of Spark's driver does with the options of a source, a sink or a table.
_PARSES = """
from tallystick.spark.source.settings import parse_settings
from tallystick.core.errors import InvalidRequest
try:
    print(parse_settings({"url": "http://127.0.0.1:1", "topic": "t"}, streaming=False).credentials)
except InvalidRequest as refused:
    print(refused)
"""
# The same in a child of this process, as Spark's Python workers are children of the JVM.
_IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '''{_PARSES}'''], check=True)"


def _told(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "TALLYSTICK_TOKEN": TOKEN},
        capture_output=True,
        timeout=120,
        check=True,
        text=True,
    )
    return done.stdout


@pytest.mark.parametrize("program", [_PARSES, _IN_A_CHILD], ids=["this process", "the one above it"])
def test_a_token_on_a_command_line_is_refused(program: str) -> None:
    told = _told(program, "--conf", f"{SETTING}={TOKEN}")
    assert "the token is on the command line of process" in told
    assert "tokenFile" in told
    assert TOKEN not in told


@pytest.mark.parametrize("program", [_PARSES, _IN_A_CHILD], ids=["this process", "the one above it"])
def test_a_token_in_the_environment_alone_is_taken(program: str) -> None:
    assert "$TALLYSTICK_TOKEN" in _told(program, "--conf", f"{SETTING}=another-token")


@pytest.mark.parametrize("name", [SETTING, "spark.yarn.appMasterEnv.TALLYSTICK_TOKEN"])
def test_a_job_refuses_a_setting_that_would_show_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(InvalidRequest, match=f"{name}: this setting would show the token") as refused:
        job_session("refused", conf={name: TOKEN}).__enter__()
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("words", ["--conf {}", "-c {}", "--conf={}", "--name x --conf '{}' pyspark-shell"])
def test_a_job_refuses_submit_arguments_that_would_show_it(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", words.format(f"{SETTING}={TOKEN}"))
    with pytest.raises(InvalidRequest, match=f"{SETTING}: this setting would show the token") as refused:
        job_session("refused").__enter__()
    assert TOKEN not in str(refused.value)
    with pytest.raises(InvalidRequest, match="this setting would show the token"):  # a session that is active already
        check_command_lines(NO_CREDENTIALS)


def test_submit_arguments_without_a_token_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {SETTING}_FILE=/run/token --properties-file token.conf")
    check_command_lines(NO_CREDENTIALS)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf 'open quote")
    check_command_lines(NO_CREDENTIALS)


_RUNS = """
from tallystick.spark.jobs.archive import ArchiveSettings, run_archive
from tallystick.spark.jobs.checkback import CheckbackSettings, ProducerDatabase, run_checkback
from tallystick.spark.jobs.reconcile import ReconcileSettings, run_reconcile
from tallystick.spark.jobs.replay import ReplaySettings, run_replay
from tallystick.spark.jobs.report import ReportSettings, run_report
from tallystick.core.errors import InvalidRequest
url = "http://127.0.0.1:1"
for run, settings in (
    (run_archive, ArchiveSettings(url=url, path="never", topics=("t",), older_than_ms=0, dry_run=True)),
    (run_checkback, CheckbackSettings(url=url, databases=(ProducerDatabase.parse("sqlite:///never"),))),
    (run_reconcile, ReconcileSettings(brokers=(url,), producers=("sqlite:///never",))),
    (run_replay, ReplaySettings(url=url, topic="t", from_offsets={0: 0}, to_offsets={0: 1})),
    (run_report, ReportSettings(url=url)),
):
    try:
        run(None, settings)
    except InvalidRequest as refused:
        print(refused)
"""


def test_every_job_refuses_a_token_on_the_command_line_of_its_driver() -> None:
    told = _told(_RUNS, "--conf", f"{SETTING}={TOKEN}").splitlines()
    assert len(told) == 5
    assert all("the token is on the command line of process" in line for line in told)


@pytest.mark.full
@pytest.mark.parametrize("way", ["builder", "properties"])
def test_what_ps_shows_of_driver_executors_and_python_workers(
    way: str, broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    """In a properties file the token is on no command line. In the session builder it is, and is refused."""
    topic = new_topic(client)
    produce(client, topic, 20)
    properties = tmp_path / "token.conf"
    properties.touch(mode=0o600)
    if way == "properties":
        properties.write_text(f"{SETTING} {TOKEN}\n")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TALLYSTICK_TOKEN": TOKEN,
        "PYSPARK_SUBMIT_ARGS": f"--properties-file {properties} pyspark-shell",
    }
    log = tmp_path / "log"
    with doorkeeper(broker.url, TOKEN) as keeper, log.open("wb") as output:
        arguments = [sys.executable, str(PROGRAM), keeper.url, topic, "local-cluster[1,1,512]", way]
        with subprocess.Popen(arguments, env=environment, stdout=output, stderr=output) as program:
            seen: set[str] = set()
            try:
                eventually(lambda: _looked(program, seen), seconds=240)
            finally:
                program.kill()
    text = log.read_text()
    assert any("CoarseGrainedExecutorBackend" in line for line in seen), text
    assert any("pyspark.daemon" in line or "pyspark/daemon" in line for line in seen), text
    if way == "properties":
        assert "rows: 20" in text
        assert [line for line in seen if TOKEN in line] == []
    else:
        assert "the token is on the command line of process" in text
        assert any(TOKEN in line for line in seen)  # the control
    assert TOKEN not in text


def _looked(program: subprocess.Popen[bytes], seen: set[str]) -> bool:
    """Add the command lines of all its processes to those seen; whether it has ended."""
    for process in [psutil.Process(program.pid), *psutil.Process(program.pid).children(recursive=True)]:
        try:
            seen.add(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return program.poll() is not None

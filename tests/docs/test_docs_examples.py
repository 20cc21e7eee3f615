"""Every program under examples/ runs as it is, ends by itself and says what it should."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import ROOT

from brokers import BrokerProcess
from tallystick.local import LocalService, module

SECONDS = 240  # only so that one that hangs is told by name; how long it takes is up to the machine

# The last line that each prints.
SAYS = {
    "async_consumer.py": "10 of 10 events arrived",
    "celery_tasks.py": "10 deliveries of 5 tasks: 5 charges, messages for the orders [0, 1, 2, 3, 4]",
    "delayed_and_dead_letters.py": "dead after 2 attempts: ValueError: cannot cook a stone",
    "exactly_once_by_offset.py": "in order, each once: True; failures on the way: 1",
    "fastapi_service.py": "one that went no further than its prepare is rolled_back",
    "flask_service.py": "one that went no further than its prepare is rolled_back",
    "outbox.py": 'sent by another process: {"to":"bob","amount":30}; rows in the outbox: 0',
    "plain_script.py": "three runs, 2 messages",
    "transfer_postgresql.py": "the order is packed",
    "transfer_sqlite.py": "alice has 70, bob has 30",
}

# Examples of several programs, and the tests that run them: too long for here.
LARGE = {
    "cache_consistency": "tests/examples/test_examples_cache_consistency.py",
    "cross_bank_transfer": "tests/examples/test_examples_cross_bank_transfer.py",
    "flash_sale": "tests/examples/test_examples_flash_sale.py",
    "spark_pipeline": "tests/spark/test_spark_pipeline.py",
}

Started = dict[str, subprocess.Popen[str]]


@pytest.fixture(scope="module")
def started(broker: BrokerProcess, database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """All of them at once: they mostly wait, and each has names of its own."""
    environment = {**os.environ, "TALLYSTICK_URL": broker.url, "DATABASE_URL": database_url}
    running: Started = {}
    for path in _programs():
        running[path.name] = subprocess.Popen(
            [sys.executable, path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tmp_path_factory.mktemp(path.stem),
        )
    yield running
    for process in running.values():
        process.kill()
        process.communicate()


def _programs() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.postgresql
@pytest.mark.parametrize("name", SAYS)
def test_the_example_runs(name: str, started: Started) -> None:
    printed, errors = started[name].communicate(timeout=SECONDS)
    assert started[name].returncode == 0, errors
    assert printed.splitlines()[-1] == SAYS[name]


def test_the_flask_service_runs_under_gunicorn_as_it_says(broker: BrokerProcess, tmp_path: Path) -> None:
    """`main` prepares what a server must prepare, too."""
    text = (ROOT / "examples/flask_service.py").read_text()
    (factory,) = re.findall(r"gunicorn '(flask_service:\S+)'", text)
    options = ["--pythonpath", str(ROOT / "examples"), "--chdir", str(tmp_path), "--bind", "127.0.0.1:{port}"]
    command = module("gunicorn", *options, factory)
    with LocalService("gunicorn", command, tmp_path / "log", {"url": broker.url}) as service:
        request = urllib.request.Request(f"{service.url}/orders/tea", method="POST")
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            assert json.load(answer)["gid"], service.log_text()


def test_every_example_is_run_and_listed() -> None:
    names = {path.name for path in _programs()}
    assert names == set(SAYS)
    index = (ROOT / "examples/README.md").read_text()
    assert {name for name in names if f"[{name}]({name})" not in index} == set()


def test_every_large_example_is_run_by_its_own_tests_and_listed() -> None:
    names = {path.name for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert names == {*LARGE, "stage"}  # what they share
    index = (ROOT / "examples/README.md").read_text()
    for name, tests in LARGE.items():
        assert f"[{name}/]({name}/README.md)" in index
        assert f"examples/{name}/run.py" in (ROOT / tests).read_text()
        programs = {path.name for path in (ROOT / "examples" / name).glob("*.py")}
        own_index = (ROOT / "examples" / name / "README.md").read_text()
        assert {program for program in programs if f"[{program}]({program})" not in own_index} == set()


def test_every_example_says_what_it_shows() -> None:
    everything = [*_programs(), *(ROOT / "examples").glob("*/*.py")]
    unexplained = [path.name for path in everything if not path.read_text().startswith('"""')]
    assert unexplained == []

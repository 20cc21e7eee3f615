"""The ways to run Spark that docs/how-to/spark-run-it-anywhere.md shows, with its own programs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shipping_support import page_program

from brokers import BrokerProcess, running_broker
from environments import build_wheel
from tallystick.link import Link
from tallystick.spark.java import find_java

pytestmark = [pytest.mark.full, pytest.mark.spark]

PAGE = "docs/how-to/spark-run-it-anywhere.md"
BIN = Path(sys.executable).parent
SMALL = [
    *("--driver-memory", "512m", "--executor-memory", "512m", "--conf", "spark.ui.enabled=false"),
    *("--conf", "spark.sql.shuffle.partitions=1"),
]
TOTALS = {"a": "4", "b": "3", "c": "3"}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker() as started, Link(started.url) as link:
        for topic in ("orders", "totals", "copies"):
            link.put("topics", topic, queues=1)
        orders = [{"topic": "orders", "key": "abc"[number % 3], "value": str(number)} for number in range(10)]
        link.post("messages", messages=orders)
        yield started


def environment(python: str = sys.executable, **more: str) -> dict[str, str]:
    """What the page says has to be set, and Spark's programs on PATH."""
    ours = ("SPARK_", "PYSPARK_", "PYTHONPATH")  # which other tests may have set for their own sessions
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    known = {"PATH": path, "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**kept, **known, "SPARK_CONF_DIR": os.environ["SPARK_CONF_DIR"], **more}


def run(*command: str, directory: Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=directory, env=environment(**env), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def write_program(name: str, directory: Path) -> str:
    (directory / name).write_text(page_program(PAGE, name))
    return name


def sent(broker: BrokerProcess, topic: str, after: int = 0) -> list[tuple[str, str]]:
    with Link(broker.url) as link:
        (end,) = link.get("topics", topic)["ends"]
        found = link.get("topics", topic, "queues", "0", "messages", offset=after, max=100) if end > after else None
    return [(one["key"], one["value"]) for one in found["messages"]] if found else []


def test_spark_connect(broker: BrokerProcess, tmp_path: Path) -> None:
    before = len(sent(broker, "totals"))
    program = write_program("totals.py", tmp_path)
    run(sys.executable, program, broker.url, "1", directory=tmp_path, SPARK_REMOTE="local[1]")
    assert dict(sent(broker, "totals", before)) == TOTALS


def test_spark_submit_sends_the_package_to_executors_that_lack_it(broker: BrokerProcess, tmp_path: Path) -> None:
    before = len(sent(broker, "totals"))
    program = write_program("totals_registered.py", tmp_path)
    build_wheel(tmp_path).rename(tmp_path / "tallystick.zip")
    submit = ["spark-submit", "--master", "local-cluster[2,1,1024]", *SMALL, "--py-files", "tallystick.zip"]
    run(*submit, program, broker.url, "2", directory=tmp_path, python=bare_python(tmp_path))
    assert dict(sent(broker, "totals", before)) == TOTALS


def bare_python(directory: Path) -> str:
    """An interpreter with all packages but ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "bare"], check=True)
    (own,) = (directory / "bare").glob("lib/python*/site-packages")
    # A directory that is named in a .pth file is searched, but .pth files in it are not read: ours is one.
    (theirs,) = BIN.parent.glob("lib/python*/site-packages")
    (own / "rest.pth").write_text(f"{theirs}\n")
    python = str(directory / "bare" / "bin" / "python")
    asked = [python, "-c", "import pyspark, msgspec, tallystick"]
    missing = subprocess.run(asked, env=environment(python), capture_output=True, text=True, check=False)
    assert "No module named 'tallystick'" in missing.stderr
    return python


def test_a_declarative_pipeline(broker: BrokerProcess, tmp_path: Path) -> None:
    write_program("orders_flow.py", tmp_path)
    specification = page_program(PAGE, "spark-pipeline.yml").replace("/srv/pipelines/orders", str(tmp_path / "storage"))
    (tmp_path / "spark-pipeline.yml").write_text(specification.replace("http://127.0.0.1:7440", broker.url))
    printed = run("spark-pipelines", "run", "--spec", "spark-pipeline.yml", "--remote", "local[1]", directory=tmp_path)
    assert "Run is COMPLETED" in printed
    assert sent(broker, "copies") == sent(broker, "orders")


def test_a_standalone_cluster(broker: BrokerProcess, tmp_path: Path) -> None:
    before = len(sent(broker, "totals"))
    program = write_program("totals.py", tmp_path)
    with standalone(tmp_path) as master:
        run("spark-submit", "--master", master, *SMALL, program, broker.url, "3", directory=tmp_path)
    assert dict(sent(broker, "totals", before)) == TOTALS


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and one worker on this machine."""
    master = daemon(directory, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    try:
        address = said(directory / "master.Master.log", "Starting Spark master at ")
        options = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0")
        worker = daemon(directory, "worker.Worker", *options, "--work-dir", str(directory / "work"), address)
        try:
            said(directory / "worker.Worker.log", "Successfully registered with master ")
            yield address
        finally:
            end(worker)
    finally:
        end(master)


def daemon(directory: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            ["spark-class", f"org.apache.spark.deploy.{name}", *arguments],
            executable=shutil.which("spark-class", path=environment()["PATH"]),
            env=environment(SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS="-XX:TieredStopAtLevel=1"),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def said(log: Path, words: str, seconds: float = 120.0) -> str:
    """What stands behind some words in a log, once they are there."""
    deadline = time.monotonic() + seconds
    while words not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)
    return log.read_text().split(words)[1].split()[0]


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

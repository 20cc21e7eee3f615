"""What the examples stand on: traps, servers that are killed and come back, the verdict and its exit code."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from stage import OpenWork, Stage, nothing_wrong, parser, settle, survived
from stage.redis_server import LocalRedis
from stage.traps import Traps

from brokers import BrokerProcess
from tallystick import CheckBack, Client, outgoing_call
from tallystick.demo.processes import Crew
from tallystick.demo.verdict import Line
from tallystick.local import LocalService, Process

pytestmark = pytest.mark.fault

EXAMPLES = Path(__file__).parents[2] / "examples"

SPRINGS = """
import sys, time
from pathlib import Path
sys.path.append(sys.argv[2])
from stage.traps import Traps
while True:
    Traps(Path(sys.argv[1])).spring("here")
    time.sleep(0.01)
"""


@pytest.fixture
def process(tmp_path: Path) -> Any:
    one = Process("walker", [sys.executable, "-c", SPRINGS, str(tmp_path / "traps"), str(EXAMPLES)], tmp_path / "log")
    yield one
    one.kill()


def test_a_process_dies_of_a_trap_as_of_kill_9(process: Process, tmp_path: Path) -> None:
    process.start()
    traps = Traps(tmp_path / "traps")
    crew = Crew([process])
    first = process.pid
    assert traps.catch(crew, process, "here")
    assert process.process is not None
    assert process.pid != first
    assert (process.running, crew.kills["walker"]) == (True, 1)
    traps.set("here")
    assert process.process.wait(20) == -signal.SIGKILL


def test_a_trap_that_nobody_comes_to_is_taken_away(process: Process, tmp_path: Path) -> None:
    process.start()
    crew = Crew([process])
    assert not Traps(tmp_path / "traps").catch(crew, process, "elsewhere", seconds=0.3)
    assert (list((tmp_path / "traps").iterdir()), crew.kills.total()) == ([], 0)


def test_without_a_directory_there_are_no_traps() -> None:
    Traps(None).spring("here")
    with pytest.raises(ValueError, match="no directory"):
        Traps(None).set("here")


def test_what_redis_acknowledged_outlasts_its_kill(tmp_path: Path) -> None:
    with LocalRedis(tmp_path / "redis") as server, Redis(port=server.port) as client:
        for number in range(100):
            client.rpush("numbers", number)
        server.kill()
        server.start()
        assert client.llen("numbers") == 100


def test_a_service_that_does_not_start_says_why(tmp_path: Path) -> None:
    service = LocalService("shop", [sys.executable, "-c", "raise SystemExit('no stock')"], tmp_path / "log")
    with pytest.raises(Exception, match=r"the shop did not get ready \(exit code 1\):\nno stock"):
        service.start()


def test_work_that_a_broker_has_not_finished_is_counted(broker: BrokerProcess) -> None:
    nobody = "http://127.0.0.1:9/nobody"
    with Client(broker.url, group="unfinished") as ts:
        ts.prepare("open-1", [], calls=[outgoing_call(nobody, "x")], check=CheckBack(url=nobody, after=600))
        sent = ts.call(nobody, "x")
        left = settle(broker.url, 0.3)
        assert left == OpenWork(1, 1)
        assert [line.holds for line in left.lines()] == [False, False]
        ts.rollback("open-1")
        _stop(broker, sent.gid or "")
    assert settle(broker.url, 10) == OpenWork(0, 0)


def _stop(broker: BrokerProcess, gid: str) -> None:
    from tallystick.link import Link

    with Link(broker.url) as link:
        link.post("transactions", gid, "calls", "stop")


def test_what_is_wrong_is_named() -> None:
    assert nothing_wrong("none", []) == Line("none", True, "")
    assert nothing_wrong("none", ["d", "b", "a", "c"]) == Line("none", False, "4 wrong: a, b, c, ...")


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_is_the_proofs(
    holds: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stage = Stage("test", parser("a test", ["this"]).parse_args(["--json"]))
    assert stage.conclude("well", [Line("it holds", holds, "")], ["a fact"], more=1) == code
    said = capsys.readouterr()
    wanted = {"proven": holds, "claims": [{"claim": "it holds", "holds": holds, "detail": ""}], "more": 1}
    assert json.loads(said.out) == wanted
    assert ("THE PROOF FAILED" in said.err) is not holds
    assert stage.directory.exists() is not holds  # what is wrong is kept to be looked at


def test_kills_are_told_by_role() -> None:
    crew = Crew([])
    crew.kills.update(shop=2, broker=1)
    assert survived(crew) == "survived 3 kills (broker 1, shop 2)"

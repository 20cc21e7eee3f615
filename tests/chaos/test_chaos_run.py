"""The monkey at work: a short run holds, and each kind of damage that is then done to what it left is found."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventually import SECONDS, eventually
from tallystick.chaos.evidence import Inspector, Names
from tallystick.chaos.ground import RocksdbGround
from tallystick.chaos.modes import MODES, PROMISES
from tallystick.chaos.schedule import Sizes, plan
from tallystick.chaos.verdict import settled
from tallystick.demo.verdict import passed

pytestmark = pytest.mark.fault

SMALL = Sizes(2, 2, 2)
SEED = 5
SHORT = ["--producers", "2", "--consumers", "2", "--rounds", "2", "--seconds", "2", "--rate", "20"]


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "tallystick", "chaos", "--json", *options]


def chaos(*options: str) -> tuple[int, dict[str, Any]]:
    """Run it as a user does; exit code and what it says to programs."""
    done = subprocess.run(command(*options), capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def failed(mode: dict[str, Any]) -> set[str]:
    rounds = [line for look in mode["rounds"] for line in look["lines"]]
    return {line["claim"] for line in [*mode["claims"], *rounds] if not line["holds"]}


class Left(NamedTuple):
    """What a run has left behind, its brokers at work again."""

    directory: Path
    result: dict[str, Any]
    code: int
    urls: list[str]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    directory = tmp_path_factory.mktemp("chaos") / "kept"
    code, result = chaos(*SHORT, "--seed", str(SEED), "--directory", str(directory), "--keep")
    ground = RocksdbGround(directory / "check-back", SMALL.broker)
    ground.start()
    yield Left(directory / "check-back", result, code, [broker.url for broker in ground.brokers])
    ground.end()


def test_every_committed_message_is_consumed_exactly_once_whoever_is_struck(left: Left) -> None:
    (mode,) = left.result["modes"]
    assert (left.code, left.result["passed"], failed(mode)) == (0, True, set())
    assert mode["mode"] == "check-back"
    assert mode["committed"] == mode["consumed"] > 0
    assert (len(mode["rounds"]), left.result["seed"]) == (2, SEED)
    assert sum(times for blows in mode["struck"].values() for times in blows.values()) == 3 + 6
    assert mode["longest_unavailable"] > 0


def test_what_is_struck_is_what_the_seed_says(left: Left) -> None:
    (mode,) = left.result["modes"]
    expected = plan(f"{SEED}/check-back", 2, 2.0, SMALL)
    assert mode["schedule"] == [[strike._asdict() for strike in strikes] for strikes in expected]
    struck = sorted((strike.role, strike.blow) for strikes in expected for strike in strikes)
    told = [
        (role, blow) for role, blows in mode["struck"].items() for blow, times in blows.items() for _ in range(times)
    ]
    assert sorted(told) == struck


def judged(left: Left, directory: Path) -> set[str]:
    inspector = Inspector("check-back", Names(directory), SMALL.producer, SMALL.consumer, left.urls)
    lines = settled(inspector.settled(), PROMISES["check-back"])
    assert passed(lines) == all(line.holds for line in lines)
    return {line.claim for line in lines if not line.holds}


Damage = Callable[[sqlite3.Connection], object]


def sql(*statements: str) -> Damage:
    return lambda connection: [connection.execute(statement) for statement in statements]


GHOST = (
    "insert into effect select 'p9.0-1/0', 'x/0', 'x/0', store, topic, queue, at from effect limit 1",
    "insert into tallystick_inbox select consumer_group, 'x/0', created_at from tallystick_inbox limit 1",
)
DAMAGES: dict[str, tuple[str, Damage, set[str]]] = {
    "lost": ("consumer-0", sql("delete from effect where rowid = 1"), {"what is committed has been consumed"}),
    "duplicated": (
        "consumer-1",
        sql("insert into effect select * from effect limit 1"),
        {"none has been consumed twice", "no message of a log has had its effect twice"},
    ),
    "ghost": ("consumer-0", sql(*GHOST), {"nothing else has been consumed"}),
    "contradictory outcome": (
        "producer-0",
        sql("update tallystick_barrier set reason = 'rollback' where id = (select min(id) from tallystick_barrier "
            "where op = 'msg' and reason = 'msg')"),
        {"every transaction has one outcome"},
    ),
    "effect without inbox row": (
        "consumer-0",
        sql("delete from tallystick_inbox where message_id in (select identity from effect limit 1)"),
        {"every effect has its mark beside it"},
    ),
    "effect before the offset": (
        "consumer-1",
        sql("update tallystick_offset set next_offset = 0"),
        {"every effect has its mark beside it"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_each_kind_of_damage_to_the_databases_is_found(left: Left, tmp_path: Path, kind: str) -> None:
    database, damage, claims = DAMAGES[kind]
    for path in left.directory.glob("*.*"):
        if path.is_file():
            shutil.copy(path, tmp_path)
    with closing(sqlite3.connect(tmp_path / f"{database}.db", isolation_level=None)) as connection:
        damage(connection)
    assert judged(left, tmp_path) == claims


def test_without_damage_nothing_is_found(left: Left) -> None:
    assert judged(left, left.directory) == set()


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = subprocess.run(command("--directory", str(tmp_path)), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# --- longer ------------------------------------------------------------------------------------------------------

LONGER = ["--rounds", "3", "--seconds", "5", "--rate", "25"]


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_keeps_its_promise(tmp_path: Path, mode: str) -> None:
    directory = tmp_path / "work"
    code, result = chaos(*LONGER, "--mode", mode, "--seed", "1", "--directory", str(directory))
    (told,) = result["modes"]
    assert (code, told["mode"], failed(told)) == (0, mode, set())
    assert told["consumed"] > 0
    assert not directory.exists()  # it cleans up after itself


@pytest.mark.full
def test_without_the_inbox_the_proof_fails(tmp_path: Path) -> None:
    options = [*LONGER, "--seed", "2", "--directory", str(tmp_path / "work")]
    code, result = chaos(*options, "--sabotage", "inbox")
    (told,) = result["modes"]
    assert (code, result["passed"], result["kept"]) == (1, False, str(tmp_path / "work"))
    assert "every effect has its mark beside it" in failed(told)


@pytest.mark.full
def test_without_the_barrier_the_proof_fails(tmp_path: Path) -> None:
    code, result = chaos(*LONGER, "--seed", "2", "--directory", str(tmp_path / "work"), "--sabotage", "barrier")
    (told,) = result["modes"]
    assert (code, result["passed"]) == (1, False)
    assert {"nothing else has been consumed", "nothing of what was rolled back"} <= failed(told)


def living(directory: Path) -> list[str]:
    """Processes that work in a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in told and process.name != str(os.getpid()):
            found.append(told.decode(errors="replace"))
    return found


@pytest.mark.full
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_the_rounds_with_a_verdict_and_twice_without(tmp_path: Path, times: int) -> None:
    directory, said = tmp_path / "work", tmp_path / "said"
    with said.open("w") as errors:
        running = subprocess.Popen(
            command("--rounds", "100", "--seed", "3", "--directory", str(directory)),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    journals = [directory / "check-back" / f"producer-{number}.journal" for number in range(4)]
    eventually(lambda: all(path.exists() and " ok " in path.read_text() for path in journals))
    running.send_signal(signal.SIGINT)
    eventually(lambda: "Ctrl-C again" in said.read_text())
    if times == 2:
        running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=SECONDS)
    err = said.read_text()
    assert "Traceback" not in err
    if times == 1:
        assert (running.returncode, json.loads(out)["modes"][0]["interrupted"]) == (0, True)
    else:
        assert (running.returncode, out) == (1, "")
        assert "check-back was not judged" in err
    eventually(lambda: not living(directory))

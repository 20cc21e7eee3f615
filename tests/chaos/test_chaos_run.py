"""The monkey at work: a short run holds, and each kind of damage that is then done to what it left is found."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_support import DAMAGES, SMALL, Left, chaos, command, failed, judged, judged_after, living

from eventually import SECONDS, eventually
from tallystick.chaos.ground import RocksdbGround
from tallystick.chaos.modes import MODES
from tallystick.chaos.schedule import plan

pytestmark = pytest.mark.fault

SEED = 5
SHORT = ["--producers", "2", "--consumers", "2", "--rounds", "2", "--seconds", "2", "--rate", "20"]


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


@pytest.mark.parametrize("kind", DAMAGES)
def test_each_kind_of_damage_to_the_databases_is_found(left: Left, tmp_path: Path, kind: str) -> None:
    assert judged_after(left, tmp_path, kind) == DAMAGES[kind][2]


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

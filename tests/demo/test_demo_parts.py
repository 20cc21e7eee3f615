"""The demo's parts by themselves: the banks' rules, the monkey's plan, and its hold on processes."""

from __future__ import annotations

import io
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from tallystick.demo import banks
from tallystick.demo.banks import DemoRefused, Transfer
from tallystick.demo.display import Display
from tallystick.demo.monkey import JITTER_SECONDS, Monkey
from tallystick.demo.processes import Crew
from tallystick.demo.spark_judge import AtWork, reconcile
from tallystick.demo.verdict import Judgement
from tallystick.local import Process
from tallystick.spark.java import JavaMissing

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_wishes_are_the_same_for_a_seed_and_more_than_the_bank_holds() -> None:
    assert banks.wishes(500, 7) == banks.wishes(500, 7)
    assert banks.wishes(500, 7) != banks.wishes(500, 8)
    assert sum(one.amount for one in banks.wishes(500, 7)) > banks.ACCOUNTS * banks.BALANCE


def test_a_debit_takes_money_once_and_refuses_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    transfers = [Transfer(0, 1, 2, 1_500), Transfer(1, 1, 2, 501)]
    assert banks.found_bank_a(path, transfers) == banks.money(path)
    with closing(banks.connect(path)) as connection:
        banks.debit(connection, transfers[0], "g")
        with pytest.raises(DemoRefused):
            banks.debit(connection, transfers[1], "h")
        banks.refuse(connection, transfers[1])
        assert banks.open_wishes(connection, 0, 1) == []
    assert banks.money(path) == banks.ACCOUNTS * banks.BALANCE - 1_500
    assert (banks.amounts(path, "debit"), banks.ids(path, "refusal")) == ([(0, 1_500)], {1})


def test_shares_of_producers_make_up_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    transfers = banks.wishes(20, 1)
    banks.found_bank_a(path, transfers)
    with closing(banks.connect(path)) as connection:
        shares = [banks.open_wishes(connection, share, 3) for share in range(3)]
    assert sorted(one for share in shares for one in share) == transfers


def test_nothing_at_bank_b_keeps_a_transfer_from_being_credited_twice(tmp_path: Path) -> None:
    """Otherwise the demo would pass without the inbox."""
    path = tmp_path / "b.db"
    banks.found_bank_b(path)
    with closing(banks.connect(path)) as connection:
        for _ in range(2):
            banks.credit(connection, Transfer(5, 1, 2, 30), "gid/0")
    assert (banks.amounts(path, "credit"), banks.money(path)) == ([(5, 30), (5, 30)], 60)


class Target(Process):
    """A place in the crew that only counts."""

    killed = 0

    def kill(self) -> None:
        self.killed += 1

    def start(self) -> None:
        return


def crew() -> Crew:
    return Crew(Target(role, [], Path()) for role in ("producer", "producer", "consumer", "broker"))


def kill_all_that_are_planned(kills: int, seed: int) -> Crew:
    victims = crew()
    monkey = Monkey(victims, kills, seed)
    deadline = time.monotonic() + 60
    while monkey.left and time.monotonic() < deadline:
        monkey.look(1.0)
        time.sleep(0.001)
    return victims


def test_every_role_gets_its_part_of_the_kills() -> None:
    assert kill_all_that_are_planned(12, 3).kills == Counter(producer=6, consumer=4, broker=2)


def test_kills_are_spread_over_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.demo.monkey.JITTER_SECONDS", 0.0)
    victims = crew()
    monkey = Monkey(victims, 30, 1)
    at: list[float] = []
    for step in range(1_000):
        before = victims.kills.total()
        monkey.look(step / 1_000)
        at += [step / 1_000] * (victims.kills.total() - before)
    assert len(at) == 30
    assert at[0] >= 0.02
    assert all(any(low <= one < low + 0.25 for one in at) for low in (0.0, 0.25, 0.5, 0.75))


def test_a_kill_waits_a_random_moment() -> None:
    victims = crew()
    monkey = Monkey(victims, 1, 5)
    monkey.look(1.0)
    assert victims.kills.total() == 0 or JITTER_SECONDS == 0
    time.sleep(JITTER_SECONDS)
    monkey.look(1.0)
    assert victims.kills.total() == 1


def test_a_killed_process_is_replaced_and_one_that_failed_is_counted(tmp_path: Path) -> None:
    process = Process("producer", SLEEP, tmp_path / "log")
    group = Crew([process])
    group.start("producer")
    group.kill(process)
    assert (process.running, group.kills["producer"], group.failures.total()) == (True, 1, 0)
    process.kill()
    group.revive()
    assert (process.running, group.failures["producer"]) == (True, 1)
    group.stop("producer")
    assert not process.running


def judged(directory: Path, at_work: AtWork = lambda seconds, step: None) -> Judgement:
    return reconcile("http://127.0.0.1:9", directory / "a.db", directory / "b.db", directory / "log", at_work)


def test_without_java_the_judge_is_skipped_and_how_to_get_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def none_found() -> None:
        raise JavaMissing("no usable Java runtime was found. Install one")

    monkeypatch.setattr("tallystick.spark.java.find_java", none_found)
    judgement = judged(tmp_path)
    assert (judgement.found, judgement.failed) == (None, False)
    assert "was skipped" in judgement.remark
    assert "Install one" in judgement.remark


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts another program in the place of the judge."""

    def put(text: str) -> None:
        monkeypatch.setattr("tallystick.demo.spark_judge._missing", lambda: "")
        monkeypatch.setattr(
            "tallystick.demo.spark_judge.module", lambda *_: [sys.executable, "-c", f"import sys, time\n{text}"]
        )

    return put


def test_a_judge_that_breaks_is_told_with_its_last_words(program: Callable[[str], None], tmp_path: Path) -> None:
    program("sys.exit('no room for the heap')")
    judgement = judged(tmp_path)
    assert (judgement.found, judgement.failed) == (None, True)
    assert "exit code 1" in judgement.remark
    assert "no room for the heap" in judgement.remark


def test_a_judge_whose_words_make_no_sense_has_failed(program: Callable[[str], None], tmp_path: Path) -> None:
    program("print('{}')")
    judgement = judged(tmp_path)
    assert (judgement.found, judgement.failed) == (None, True)


def test_a_judge_at_work_tells_its_steps(program: Callable[[str], None], tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    program(
        "import os\n"
        "print('26/11/16 WARN of the JVM', 'tallystick: reading inboxes', 'WARN again', sep=chr(10), file=sys.stderr)\n"
        f"while not os.path.exists({str(seen)!r}): time.sleep(0.01)\n"
        "sys.exit(1)"
    )
    said: list[tuple[float, str]] = []

    def look(seconds: float, step: str) -> None:
        said.append((seconds, step))
        if step == "reading inboxes":
            seen.touch()

    judged(tmp_path, look)
    assert said == sorted(said, key=lambda one: one[0])
    assert {step for _, step in said} <= {"starting Spark", "reading inboxes"}


def test_whoever_does_not_want_to_wait_stops_the_judge(program: Callable[[str], None], tmp_path: Path) -> None:
    program("import os; print(os.getpid(), flush=True); time.sleep(600)")
    answer = tmp_path / "log.json"

    def interrupt(_: float, __: str) -> None:
        if answer.read_text():
            raise KeyboardInterrupt

    judgement = judged(tmp_path, interrupt)
    assert (judgement.found, judgement.failed) == (None, False)
    assert "stopped by hand" in judgement.remark
    assert not Path(f"/proc/{answer.read_text().strip()}").exists()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_step_shows_that_it_is_at_work(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, _environ={})
    with Display(console).step("comparing") as at_work:
        for seconds in range(0, 40, 5):
            at_work(seconds, "reading [inboxes]")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "comparing" in shown
    if not terminal:
        assert [line for line in shown.splitlines() if "inboxes" in line] == [
            f"{seconds:4.0f} s  reading [inboxes]" for seconds in (0, 15, 30)
        ]

"""The judge of the demo: `tallystick spark reconcile`, run as a user would run it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tallystick.demo.banks import CONSUMERS, TOPIC
from tallystick.demo.verdict import Judgement
from tallystick.local import module

CLEAN, DAMAGED, UNFINISHED = 0, 6, 7
LOOK_SECONDS = 0.1
HAND = "a smaller one took its place"
NOT_WANTED = Judgement(None, f"the judge on Spark was not wanted, {HAND}")
STOPPED = Judgement(None, f"the judge on Spark was stopped by hand, {HAND}")
NOTE = "tallystick: "  # how a remark of a command begins
NAMED = 5  # findings of each kind that are named; all are counted

AtWork = Callable[[float, str], None]  # is called with the seconds that have passed and the step it is at


def reconcile(url: str, bank_a: Path, bank_b: Path, log: Path, at_work: AtWork) -> Judgement:
    """Compare bank A, the broker and bank B. Nothing runs any more, so there is no grace for anything.

    It takes the time that it takes: how long is up to the machine, and says nothing about the transfers. Whoever does
    not want to wait interrupts it.
    """
    missing = _missing()
    if missing:
        return Judgement(None, f"the judge on Spark was skipped, {HAND}: {missing}")
    command = module(
        "tallystick",
        *("spark", "reconcile", "--url", url, "--master", "local[2]", "--json", "--grace", "0s"),
        *("--producer", f"sqlite:///{bank_a}", "--transactional", TOPIC),
        *("--consumer", f"{CONSUMERS}=sqlite:///{bank_b}", "--reads", f"{CONSUMERS}={TOPIC}"),
        *("--effects", f"{CONSUMERS}=credit.message_id", "--examples", str(NAMED)),
    )
    answer = log.with_suffix(".json")
    try:
        code = _watched(command, answer, log, at_work)
    except KeyboardInterrupt:
        return STOPPED
    if code not in (CLEAN, DAMAGED, UNFINISHED):
        return _failed(f"exit code {code}", log)
    try:
        return _judgement(json.loads(answer.read_bytes()))
    except (ValueError, KeyError) as error:
        return _failed(f"what it said cannot be read: {error!r}", log)


def _watched(command: list[str], answer: Path, log: Path, at_work: AtWork) -> int:
    """Run it to its end and tell how far it is."""
    began = time.monotonic()
    with answer.open("wb") as told, log.open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=told, stderr=errors)
    try:
        while (code := process.poll()) is None:
            at_work(time.monotonic() - began, _last_line(log))
            time.sleep(LOOK_SECONDS)
        return code
    finally:
        process.kill()
        process.wait()


def _last_line(log: Path) -> str:
    """The step that it told last; Spark's own lines in between are none."""
    told = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(NOTE)]
    return told[-1].removeprefix(NOTE) if told else "starting Spark"


def _failed(reason: str, log: Path) -> Judgement:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = f"; its last words: {lines[-1][:300]}" if lines else ""
    return Judgement(None, f"the judge on Spark failed ({reason}), {HAND}{last}", failed=True)


def _missing() -> str:
    """What Spark lacks here, and how to get it; empty if it lacks nothing."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "PySpark is not installed; get it with `pip install tallystick[spark]`"
    from tallystick.spark.java import JavaMissing, find_java

    try:
        find_java()
    except JavaMissing as error:
        return error.detail
    return ""


def _judgement(told: dict[str, Any]) -> Judgement:
    ids: dict[str, list[str]] = {kind: [] for kind in told["found"]}
    for one in told["examples"]:
        ids[one["kind"]].append(one["message_id"] or one["gid"])
    compared = told["counts"]
    remark = (
        f"compared as sets on Spark in {told['seconds']:.0f} s: {compared['producer committed']:,} committed at A, "
        f"{compared['messages in log']:,} in the log, {compared[f'effects of {CONSUMERS}']:,} credited at B"
    )
    return Judgement({kind: (number, ids[kind]) for kind, number in told["found"].items()}, remark)

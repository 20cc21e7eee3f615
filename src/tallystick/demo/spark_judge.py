"""The judge of the demo: `tallystick spark reconcile`, run as a user would run it."""

from __future__ import annotations

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tallystick.core.errors import TallystickError
from tallystick.demo.banks import CONSUMERS, TOPIC
from tallystick.demo.verdict import Judgement
from tallystick.local import module

CLEAN, DAMAGED, UNFINISHED = 0, 6, 7
SECONDS = 300.0
NOT_WANTED = Judgement(None, "the judge on Spark was not wanted, a smaller one took its place")
NAMED = 5  # findings of each kind that are named; all are counted


def reconcile(url: str, bank_a: Path, bank_b: Path, log: Path) -> Judgement:
    """Compare bank A, the broker and bank B. Nothing runs any more, so there is no grace for anything."""
    missing = _missing()
    if missing:
        return Judgement(None, f"the judge on Spark was skipped, a smaller one took its place: {missing}")
    command = module(
        "tallystick",
        *("spark", "reconcile", "--url", url, "--master", "local[2]", "--json", "--grace", "0s"),
        *("--producer", f"sqlite:///{bank_a}", "--transactional", TOPIC),
        *("--consumer", f"{CONSUMERS}=sqlite:///{bank_b}", "--reads", f"{CONSUMERS}={TOPIC}"),
        *("--effects", f"{CONSUMERS}=credit.message_id", "--examples", str(NAMED)),
    )
    with log.open("wb") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, timeout=SECONDS)
    if done.returncode not in (CLEAN, DAMAGED, UNFINISHED):
        told = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise TallystickError(f"the demo's judge failed (exit code {done.returncode}):\n{told}")
    return _judgement(json.loads(done.stdout))


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

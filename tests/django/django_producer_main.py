"""A process of the shop that makes one order and is killed at one of the moments it passes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from storefront import settings as of_the_shop

from tallystick.client.transactions.script import InDatabase, Local, watch_scripts


class Moments:
    """Before and after every step of every script of the client; at the `at`-th one the process is killed."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.passed: list[str] = []

    def reach(self, name: str) -> None:
        self.passed.append(name)
        while len(self.passed) == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1)

    def watch(self, script: Any, adapter: Any) -> Generator[Any, Any, Any]:
        try:
            step = next(script)
            while True:
                name = _name(step)
                self.reach(f"before {name}")
                try:
                    result = yield step
                except BaseException as failure:
                    self.reach(f"failed {name}")
                    step = script.throw(failure)
                else:
                    self.reach(f"after {name}")
                    step = script.send(result)
        except StopIteration as end:
            return end.value


def _name(step: Any) -> str:
    if isinstance(step, Local):
        return step.value
    return step.operation.name if isinstance(step, InDatabase) else type(step).__name__


def main(case: dict[str, Any]) -> None:
    chosen = {name: getattr(of_the_shop, name) for name in dir(of_the_shop) if name.isupper()}
    settings.configure(**{**chosen, "DATABASES": case["databases"], "TALLYSTICK": case["tallystick"]})
    django.setup()
    from django.db import transaction
    from storefront.models import Order

    from tallystick.django import ts

    ts.client._call(ts.client._core.look)  # what the brokers are: no moment of the transaction
    moments = Moments(case["at"])
    watch_scripts(moments.watch)
    with transaction.atomic() if case["around"] else nullcontext():
        with ts.transaction(mode=case["mode"]) as tx:
            Order.objects.create(note=case["note"])
            moments.reach("changed")
            tx.send(case["topic"], "made")
        moments.reach("left")
    moments.reach("end")
    ts.close()
    Path(case["report"]).write_text(json.dumps({"moments": moments.passed}) + "\n")

"""A consumer process, with a moment at which it is killed or stopped.

The effect is a row in its database. `by` is `inbox` or `offset`, the two ways to have it once; or `none`, the mistake
that they are there for: an effect that is committed apart from the word that it happened.
"""

from __future__ import annotations

import functools
import signal
import threading
import time
from typing import Any

from child_report import Report, report_log
from moments import Moments, install
from places import Place, opened

import tallystick
from tallystick.barrier import first_time
from tallystick.client.connection import questions
from tallystick.client.consumers import leases
from tallystick.client.consumers.effects import Handling
from tallystick.client.transactions.script import InDatabase, Local, Script, UserCode

INSERT = "insert into effect values (%s, %s)"
QUIET_SECONDS = 0.3
TIMES = 2
"""How often the message that `fails` does so: in its batch, and alone."""


def main(case: dict[str, Any]) -> None:
    """Consume until SIGTERM; or with `rest`, which moments are to come how often, until then and no more come."""
    report = Report(case["report"])
    report_log(report)
    moments = Moments(case["at"], case.get("signal", signal.SIGKILL))
    install(moments)
    _report_received(report)
    if "mistake" in case:
        leases.handle_once = MISTAKES[case["mistake"]]
    client = tallystick.Client(case["url"])
    _subscribe(client, case)
    if case.get("rest"):
        threading.Thread(target=_stop_when_quiet, args=(moments, case["rest"]), daemon=True).start()
    client.run()
    client.close()
    report.write(moments=moments.passed)


def _subscribe(client: tallystick.Client, case: dict[str, Any]) -> None:
    place, by = Place(*case["place"]), case["by"]
    options: dict[str, Any] = {
        "group": case["group"],
        "invisible": case["invisible"],
        # One message at a time, unless told otherwise, so that the moments of two do not mix.
        "concurrency": case.get("concurrency", 1),
        "prefetch": case.get("prefetch", 0),
        "batch": case.get("batch", 1),
    }
    failures = [case["fails"]] * TIMES if "fails" in case else []

    def apply(message: tallystick.Message, connection: Any) -> None:
        place.run(connection, INSERT, message.text, case["name"])
        if failures and message.text.endswith(failures[0]):
            raise RuntimeError(failures.pop())

    def apply_apart(message: tallystick.Message) -> None:
        with opened(place) as connection:
            apply(message, connection)
            connection.commit()

    if by == "none":
        client.subscribe(case["topic"], **options)(apply_apart)
    else:
        client.subscribe(case["topic"], exactly_once=place.connect, by=by, **options)(apply)


def _rows_apart(subscription: Any, messages: Any, desk: Any, *_: Any) -> Script[list[Handling]]:
    """The mistake: the rows of a batch are committed before its effects."""
    yield Local.BEGIN
    for message in messages:
        yield InDatabase(first_time(subscription.group, message.id))
    yield Local.COMMIT
    yield Local.BEGIN
    for message in messages:
        yield UserCode(functools.partial(subscription.handler, message, desk.connection))
    yield Local.COMMIT
    return [Handling.HANDLED] * len(messages)


def _effects_apart(subscription: Any, messages: Any, desk: Any, *_: Any) -> Script[list[Handling]]:
    """The mistake: each effect of a batch is committed by itself, and their rows at the end."""
    for message in messages:
        yield Local.BEGIN
        yield UserCode(functools.partial(subscription.handler, message, desk.connection))
        yield Local.COMMIT
    yield Local.BEGIN
    for message in messages:
        yield InDatabase(first_time(subscription.group, message.id))
    yield Local.COMMIT
    return [Handling.HANDLED] * len(messages)


MISTAKES = {"rows apart": _rows_apart, "effects apart": _effects_apart}


def _report_received(report: Report) -> None:
    receive = questions.receive

    async def reported(broker: Any, group: str, request: Any) -> list[Any]:
        messages = await receive(broker, group, request)
        if messages:
            report.write(received=[message.text for message in messages])
        return messages

    questions.receive = reported


def _stop_when_quiet(moments: Moments, awaited: dict[str, int]) -> None:
    passed = -1
    while passed < len(moments.passed) or any(moments.passed.count(name) < often for name, often in awaited.items()):
        passed = len(moments.passed)
        time.sleep(QUIET_SECONDS)
    # To this thread and not to the main one: `run` has to notice that too.
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

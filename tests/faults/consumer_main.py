"""A consumer process, with a moment at which it is killed or stopped.

The effect is a row in its database. `by` is `inbox` or `offset`, the two ways to have it once; or `none`, the mistake
that they are there for: an effect that is committed apart from the word that it happened.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

from child_report import Report, report_log
from moments import Moments, install
from places import Place, opened

import tallystick
from tallystick.client.connection import questions

INSERT = "insert into effect values (%s, %s)"
QUIET_SECONDS = 0.3


def main(case: dict[str, Any]) -> None:
    """Consume until SIGTERM, or with `rest` until nothing has come for a moment."""
    report = Report(case["report"])
    report_log(report)
    moments = Moments(case["at"], case.get("signal", signal.SIGKILL))
    install(moments)
    _report_received(report)
    client = tallystick.Client(case["url"])
    _subscribe(client, case)
    if case.get("rest"):
        threading.Thread(target=_stop_when_quiet, args=(moments,), daemon=True).start()
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
    }

    def apply(message: tallystick.Message, connection: Any) -> None:
        place.run(connection, INSERT, message.text, case["name"])

    def apply_apart(message: tallystick.Message) -> None:
        with opened(place) as connection:
            apply(message, connection)
            connection.commit()

    if by == "none":
        client.subscribe(case["topic"], **options)(apply_apart)
    else:
        client.subscribe(case["topic"], exactly_once=place.connect, by=by, **options)(apply)


def _report_received(report: Report) -> None:
    receive = questions.receive

    async def reported(broker: Any, group: str, request: Any) -> list[Any]:
        messages = await receive(broker, group, request)
        if messages:
            report.write(received=[message.text for message in messages])
        return messages

    questions.receive = reported


def _stop_when_quiet(moments: Moments) -> None:
    passed = -1
    while not moments.passed or passed < len(moments.passed):
        passed = len(moments.passed)
        time.sleep(QUIET_SECONDS)
    # To this thread and not to the main one: `run` has to notice that too.
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

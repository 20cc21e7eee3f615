"""`tallystick tail`: the messages of a topic, as they are and as they come."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tallystick.cli.links import AnyLink
from tallystick.cli.options import Json, Url
from tallystick.cli.output import console, note, print_json_line, when
from tallystick.core.errors import BrokerUnavailable, InvalidRequest, NotFound, OffsetOutOfRange
from tallystick.core.names import check_name
from tallystick.link import Link

PAGE = 500
IDLE_SECONDS = 0.2
AWAY_SECONDS = 1.0

Message = dict[str, Any]


def add(app: typer.Typer) -> None:
    app.command("tail", help="Print the messages of a topic; with --follow (the default) also those to come.")(tail)


def tail(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="earliest|latest|N", help="Where to begin: N is an offset. Default: latest if following."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more.")] = True,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue.")] = None,
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, help="End after this many messages.")] = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    begin = _checked_start(start or ("latest" if follow else "earliest"))
    with AnyLink(url) as broker:
        reader = TailReader(broker, check_name(topic, "topic"), queue, begin)
        try:
            _copy(reader, _printer(as_json), follow, most)
        except KeyboardInterrupt:
            return  # how one ends following; nothing went wrong


def _copy(reader: TailReader, show: Callable[[Message], None], follow: bool, most: int | None) -> None:
    left = most
    while left is None or left > 0:
        messages = _next_round(reader, follow)[:left]
        for message in messages:
            show(message)
        sys.stdout.flush()
        if left is not None:
            left -= len(messages)
        if not messages:
            if not follow:
                return
            time.sleep(IDLE_SECONDS)


def _next_round(reader: TailReader, patient: bool) -> list[Message]:
    """What is new. When following, a broker that is away for a while is waited for."""
    told = False
    while True:
        try:
            return reader.read()
        except BrokerUnavailable as error:
            if not (patient and reader.began and error.retryable):
                raise
            if not told:
                note(f"{error.detail}; waiting for it")
                told = True
            time.sleep(AWAY_SECONDS)


class TailReader:
    """Reads all queues of a topic, each in order.

    A round asks for the topic's ends first and then only for queues that have news: an idle topic costs one small
    request a round, however many queues it has.
    """

    def __init__(self, broker: Link, topic: str, queue: int | None, begin: str) -> None:
        self._broker, self._topic, self._queue, self._begin = broker, topic, queue, begin
        self._places: dict[int, int] = {}
        self.began = False

    def read(self) -> list[Message]:
        view = self._broker.get("topics", self._topic)
        ranges = dict(enumerate(zip(view["starts"], view["ends"], strict=True)))
        if self._queue is not None:
            if self._queue not in ranges:
                raise NotFound(f"topic {self._topic} has no queue {self._queue}; it has queues 0 to {len(ranges) - 1}")
            ranges = {self._queue: ranges[self._queue]}
        for queue, (start, end) in ranges.items():
            if queue not in self._places:
                # A queue that was added while we follow is new from its first message on.
                self._places[queue] = start if self.began else self._first(start, end)
        self.began = True
        news = [queue for queue, (_, end) in ranges.items() if self._places[queue] < end]
        found = [message for queue in news for message in self._fetch(queue)]
        return sorted(found, key=lambda message: (message["stored_at"], message["queue"], message["offset"]))

    def _first(self, start: int, end: int) -> int:
        if self._begin == "earliest":
            return start
        return end if self._begin == "latest" else min(max(int(self._begin), start), end)

    def _fetch(self, queue: int) -> list[Message]:
        path = ("topics", self._topic, "queues", str(queue), "messages")
        try:
            answer = self._broker.get(*path, offset=self._places[queue], max=PAGE)
        except OffsetOutOfRange:
            # Retention has passed us by, or the topic was made again: go on with the oldest message there is.
            view = self._broker.get("topics", self._topic)
            start = view["starts"][queue]
            why = "the topic was deleted and made again" if self._places[queue] < view["begins"][queue] else "retention"
            note(f"queue {queue}: messages {self._places[queue]} to {start - 1} are gone ({why})")
            self._places[queue] = start
            return []
        self._places[queue] = answer["next"]
        messages: list[Message] = answer["messages"]
        return messages


def _checked_start(text: str) -> str:
    if text in ("earliest", "latest") or (text.isascii() and text.isdigit()):
        return text
    raise InvalidRequest(f"--from: {text!r} is none of earliest, latest and an offset", field="from")


def _printer(as_json: bool) -> Callable[[Message], None]:
    if as_json:
        return print_json_line
    screen = console()
    from rich.text import Text

    def show(message: Message) -> None:
        place = f"{message['queue']}:{message['offset']}"
        line = Text.assemble((when(message["stored_at"]), "dim"), " ", (place, "cyan"), " ")
        for part, style in ((message.get("key"), "magenta"), (_labels(message), "yellow")):
            if part:
                line.append(f"{part} ", style)
        screen.print(line.append(_value(message)), soft_wrap=True)

    return show


def _labels(message: Message) -> str:
    tag = [f"#{message['tag']}"] if message.get("tag") else []
    return " ".join([*tag, *(f"{name}={value}" for name, value in (message.get("headers") or {}).items())])


def _value(message: Message) -> str:
    if "value" not in message:
        return f"base64:{message['value_base64']}"
    value = message["value"]
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value, ensure_ascii=False)

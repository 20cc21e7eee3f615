"""Where reading begins or ends, as a user writes it: a word, offsets or times of queues, or one time for all."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec
from msgspec import Struct

from tallystick.spark.options import Given, refused
from tallystick.spark.source.marks import CREATED

EARLIEST, LATEST = -2, -1  # as Kafka's users write them in JSON
Kind = Literal["earliest", "latest", "offsets", "times", "time"]
ByQueue = dict[str, dict[int, int]]


class Place(Struct, frozen=True):
    """`option` is what the user calls it; of the others, `kind` tells which one counts."""

    option: str
    kind: Kind
    by_queue: ByQueue = {}
    time: int = 0


def parse_place(given: Given, side: Literal["starting", "ending"], default: Kind) -> Place:
    """From the option that counts most of those that were given, as in Kafka: a time, times of queues, offsets."""
    if (name := f"{side}Timestamp") in given:
        return Place(name, "time", time=_time(name, given.text(name)))
    if (name := f"{side}OffsetsByTimestamp") in given:
        return Place(name, "times", _by_queue(name, given.text(name), least=0))
    name = f"{side}Offsets"
    text = given.text(name) or default
    if text.startswith("{"):
        return Place(name, "offsets", _by_queue(name, text, least=EARLIEST))
    return Place(name, "latest" if given.word(name, ("earliest", "latest"), default) == "latest" else "earliest")


def refuse(place: Place, word: Literal["earliest", "latest"], why: str) -> None:
    """A place that makes no sense on its side, whichever way it is written."""
    number = EARLIEST if word == "earliest" else LATEST
    written = any(number in queues.values() for queues in place.by_queue.values())
    if place.kind == word or (place.kind == "offsets" and written):
        raise refused(place.option, f"{word!r}{f' ({number})' if written else ''} {why}")


def _by_queue(name: str, text: str, least: int) -> ByQueue:
    form = 'is not of the form {"orders": {"0": 12, "1": -2}}, from topics to queues to numbers'
    try:
        # The offsets in a query's progress may be given back as they are: they carry one entry more.
        found = {topic: queues for topic, queues in _decode(text).items() if topic != CREATED}
    except msgspec.MsgspecError as error:
        raise refused(name, f"{text[:200]!r} {form} ({error})") from error
    for topic, queues in found.items():
        for queue, number in queues.items():
            if not (queue.isascii() and queue.isdigit()) or number < least:
                raise refused(name, f"{topic}: queue {queue!r} with {number} {form}; the least number is {least}")
    return {topic: {int(queue): number for queue, number in queues.items()} for topic, queues in found.items()}


def _decode(text: str) -> dict[str, dict[str, int]]:
    return msgspec.json.decode(text, type=dict[str, dict[str, int]])


def _time(name: str, text: str) -> int:
    """Milliseconds since 1970, as Kafka has them; or a date and time with its zone."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment.timestamp() < 0:
        raise refused(
            name, f"{text[:60]!r} is neither milliseconds since 1970 nor a time with its zone: 2026-11-02T10:00:00Z"
        )
    return int(moment.timestamp() * 1000)

"""The source's options, checked once, in the driver, before anything is asked of the broker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec
from msgspec import Struct

from tallystick.core.names import check_name
from tallystick.credentials.credentials import Credentials
from tallystick.spark.options import Given, refused

OPTIONS = (
    "url",
    "topic",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "archive",
    "table",
    "pollWait",
    "retryTimeout",
)
ROLE = "the source"
LONGEST_POLL_SECONDS = 10  # well below the time after which a connection counts as dead
_TOPICS = ("topic", "subscribe", "subscribePattern")
_ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
# In a written mark, beside the topics: when each was created, and where batch 0 begins. No topic can have these names,
# which begin with a letter or digit.
CREATED, BEGIN = "__created__", "__begin__"
RESERVED = (CREATED, BEGIN)
EARLIEST, LATEST = -2, -1  # as Kafka's users write them in JSON
Kind = Literal["earliest", "latest", "offsets", "times", "time"]
ByQueue = dict[str, dict[int, int]]


class SourceSettings(Struct, frozen=True, kw_only=True):
    """What the user wants to read. It travels to the executors with the reader."""

    url: str
    topics: tuple[str, ...]
    pattern: str
    start: GivenPlace
    end: GivenPlace
    late_start_fails: bool
    max_per_trigger: int | None
    min_per_trigger: int | None
    max_delay: float
    min_partitions: int | None
    max_per_partition: int | None
    fail_on_loss: bool
    archive: str
    poll_wait: float
    retry: float
    credentials: Credentials


def includes_headers(options: Mapping[str, str]) -> bool:
    """Of options that may be those of a sink as well: Spark asks for columns before it says what for."""
    named = {name: value for name, value in options.items() if name.lower() == "includeheaders"}
    return Given(named, OPTIONS, ROLE).flag("includeHeaders", False)


def parse_settings(options: Mapping[str, str], streaming: bool) -> SourceSettings:
    given = Given(options, OPTIONS, ROLE)
    topics, pattern = _chosen(given)
    start = parse_place(given, "starting", "latest" if streaming else "earliest")
    end = parse_place(given, "ending", "latest")
    _check_places(given, start, end, topics, streaming)
    return SourceSettings(
        url=given.url(),
        topics=topics,
        pattern=pattern,
        start=start,
        end=end,
        late_start_fails=given.word("startingOffsetsByTimestampStrategy", ("latest", "error"), "latest") == "error",
        max_per_trigger=given.number("maxOffsetsPerTrigger"),
        min_per_trigger=given.number("minOffsetsPerTrigger"),
        max_delay=given.seconds("maxTriggerDelay", "15m"),
        min_partitions=given.number("minPartitions"),
        max_per_partition=given.number("maxRecordsPerPartition"),
        fail_on_loss=given.flag("failOnDataLoss", True),
        archive=given.text("archive"),
        poll_wait=_poll_wait(given),
        retry=given.seconds("retryTimeout", "2m"),
        credentials=given.credentials(),
    )


def _chosen(given: Given) -> tuple[tuple[str, ...], str]:
    """The topics' names, or the pattern for them."""
    named = [name for name in _TOPICS if given.text(name)]
    if not named and (topics := given.topics_of_path()):
        return topics, ""
    if len(named) != 1:
        raise refused("subscribe", f"give one of {', '.join(_TOPICS)}, not {' and '.join(named) or 'none'}")
    (option,) = named
    topics, pattern = _chosen_by(given, option)
    given.check_path(option, topics)
    return topics, pattern


def _chosen_by(given: Given, option: str) -> tuple[tuple[str, ...], str]:
    text = given.text(option)
    if option == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise refused(option, f"{text!r} is no regular expression of Python: {error}") from error
        return (), text
    names = [text] if option == "topic" else [name.strip() for name in text.split(",")]
    return tuple(dict.fromkeys(check_name(name, option) for name in names)), ""


def _check_places(given: Given, start: GivenPlace, end: GivenPlace, topics: tuple[str, ...], streaming: bool) -> None:
    if streaming:
        for name in _ENDING:
            if name in given:
                raise refused(name, "a stream has no end; stop it, or read with spark.read")
    else:
        refuse(start, "latest", "is where a batch ends, not where it begins: nothing would be read")
        refuse(end, "earliest", "is where a batch begins, not where it ends: nothing would be read")
    for place in (start, end):
        for topic in place.by_queue:
            if topics and topic not in topics:
                raise refused(place.option, f"names topic {topic!r}, which is not read; read are: {', '.join(topics)}")


def _poll_wait(given: Given) -> float:
    wait = given.seconds("pollWait", "500ms")
    if wait > LONGEST_POLL_SECONDS:
        raise refused("pollWait", f"{given.text('pollWait')!r} is more than {LONGEST_POLL_SECONDS}s")
    return wait


# --- where reading begins or ends: a word, offsets or times of queues, or one time for all ----------------------


class GivenPlace(Struct, frozen=True):
    """`option` is what the user calls it; of the others, `kind` tells which one counts."""

    option: str
    kind: Kind
    by_queue: ByQueue = {}
    time: int = 0


def parse_place(given: Given, side: Literal["starting", "ending"], default: Kind) -> GivenPlace:
    """From the option that counts most of those that were given, as in Kafka: a time, times of queues, offsets."""
    if (name := f"{side}Timestamp") in given:
        return GivenPlace(name, "time", time=_time(name, given.text(name)))
    if (name := f"{side}OffsetsByTimestamp") in given:
        return GivenPlace(name, "times", _by_queue(name, given.text(name), least=0))
    name = f"{side}Offsets"
    text = given.text(name) or default
    if text.startswith("{"):
        return GivenPlace(name, "offsets", _by_queue(name, text, least=EARLIEST))
    return GivenPlace(name, "latest" if given.word(name, ("earliest", "latest"), default) == "latest" else "earliest")


def refuse(place: GivenPlace, word: Literal["earliest", "latest"], why: str) -> None:
    """A place that makes no sense on its side, whichever way it is written."""
    number = EARLIEST if word == "earliest" else LATEST
    written = any(number in queues.values() for queues in place.by_queue.values())
    if place.kind == word or (place.kind == "offsets" and written):
        raise refused(place.option, f"{word!r}{f' ({number})' if written else ''} {why}")


def _by_queue(name: str, text: str, least: int) -> ByQueue:
    form = 'is not of the form {"orders": {"0": 12, "1": -2}}, from topics to queues to numbers'
    try:
        found = _decode(text)
    except msgspec.MsgspecError as error:
        raise refused(name, f"{text[:200]!r} {form} ({error})") from error
    for topic, queues in found.items():
        for queue, number in queues.items():
            if not (queue.isascii() and queue.isdigit()) or number < least:
                raise refused(name, f"{topic}: queue {queue!r} with {number} {form}; the least number is {least}")
    return {topic: {int(queue): number for queue, number in queues.items()} for topic, queues in found.items()}


def _decode(text: str) -> dict[str, dict[str, int]]:
    """The offsets in a query's progress may be given back as they are: they carry more than topics."""
    written = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return {
        topic: msgspec.json.decode(queues, type=dict[str, int])
        for topic, queues in written.items()
        if topic not in RESERVED
    }


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

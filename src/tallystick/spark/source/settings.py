"""The source's options, checked once, in the driver, before anything is asked of the broker."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from tallystick.core.names import check_name
from tallystick.spark.options import Given, refused
from tallystick.spark.source.places import Place, parse_place, refuse

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
    "pollWait",
    "retryTimeout",
)
ROLE = "the source"
LONGEST_POLL_SECONDS = 10  # well below the time after which a connection counts as dead
_TOPICS = ("topic", "subscribe", "subscribePattern")
_ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


class SourceSettings(Struct, frozen=True, kw_only=True):
    """What the user wants to read. It travels to the executors with the reader."""

    url: str
    topics: tuple[str, ...]
    pattern: str
    start: Place
    end: Place
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
    )


def _chosen(given: Given) -> tuple[tuple[str, ...], str]:
    """The topics' names, or the pattern for them."""
    named = [name for name in _TOPICS if given.text(name)]
    if len(named) != 1:
        raise refused("subscribe", f"give one of {', '.join(_TOPICS)}, not {' and '.join(named) or 'none'}")
    (option,) = named
    text = given.text(option)
    if option == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise refused(option, f"{text!r} is no regular expression of Python: {error}") from error
        return (), text
    names = [text] if option == "topic" else [name.strip() for name in text.split(",")]
    return tuple(dict.fromkeys(check_name(name, option) for name in names)), ""


def _check_places(given: Given, start: Place, end: Place, topics: tuple[str, ...], streaming: bool) -> None:
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

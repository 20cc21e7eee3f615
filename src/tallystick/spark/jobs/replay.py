"""The replay job: messages of the archive, or of a range of a live topic, go into a topic once more, exactly once.

A replay is a closed range, cut into steps by offset: step k holds the offsets [k * S, (k + 1) * S) of every queue. Each
step is one write of the sink under (application, k), so a step that was committed is never committed again, whatever
was killed; and since the cut depends on nothing but the arguments, a replay that is run again goes on where it was.
The application's id is made from the arguments: the same replay run twice changes nothing.

Order: each queue is read and written by one task, in order, and steps follow one another. So messages of one key, which
are in one queue, keep their order. (Unless queues were added to the source topic in between: then a key may have moved,
and what it had in its old queue and in its new one come in no order. Replay up to that time first, then the rest.)
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from tallystick.core.errors import InvalidRequest, NotFound, OffsetOutOfRange, TallystickError
from tallystick.core.names import MOST_HEADERS, check_app, check_name
from tallystick.credentials.credentials import Credentials, find_credentials
from tallystick.link import Link
from tallystick.spark.archive.layout import SCHEMA, Archive
from tallystick.spark.brokers import BrokersLink
from tallystick.spark.command_lines import check_command_lines
from tallystick.spark.jobs.archive.plan import TopicIdentity
from tallystick.spark.options import credential_options
from tallystick.spark.source.messages import read_log
from tallystick.spark.source.ranges import Range
from tallystick.spark.source.topics import topic_view
from tallystick.spark.tasks import Report, quiet, raised_there

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_ID = 60
SINK_SCHEMA = "key string, value binary, headers map<string,string>, tag string"
SINK_COLUMNS = pa.schema([SCHEMA.field(name) for name in ("key", "value", "headers", "tag")])
ID, FROM = "replayed-id", "replayed-from"


class ReplaySettings(Struct, frozen=True, kw_only=True):
    """What to replay, and where to. From an archive: up to a time or to offsets. From a live topic: offsets only."""

    url: str
    topic: str
    to: str = ""  # the same topic, if empty
    archive: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    from_offsets: Mapping[int, int] = {}
    to_offsets: Mapping[int, int] = {}
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    marked: bool = True  # with headers that tell where a message came from
    id: str = ""  # tells replays with the same arguments apart
    step_offsets: int = 250_000
    patience_seconds: float = 120.0
    credentials: Credentials = field(default_factory=find_credentials)

    def check(self) -> None:
        """Refuse what is no closed range, before anything is asked."""
        check_name(self.topic, "topic")
        check_name(self.to or self.topic, "to")
        if self.id:
            check_app(self.id, "id")
        if len(self.id) > LONGEST_ID:
            raise InvalidRequest(f"id: {len(self.id)} characters; at most {LONGEST_ID}", field="id")
        if self.step_offsets < 1:
            raise InvalidRequest("step_offsets: must be at least 1", field="step_offsets")
        if bool(self.to_offsets) == (self.until_ms is not None):
            raise InvalidRequest(
                "say where the replay ends, by a time (until) or by offsets (to_offsets), and not both: only a closed "
                "range can be run again without sending anything twice",
                field="until",
            )
        if self.from_offsets and self.since_ms is not None:
            raise InvalidRequest("say where the replay begins by a time or by offsets, not both", field="since")
        if self.archive:
            return
        if self.since_ms is not None or self.until_ms is not None or not self.from_offsets:
            raise InvalidRequest(
                "a replay of a live topic takes from_offsets and to_offsets; times are for the archive",
                field="from_offsets",
            )


class ReplaySummary(Struct):
    app: str
    topic: str
    to: str
    ranges: dict[int, tuple[int, int]]
    steps: int
    steps_before: int  # of them, those that an earlier run had committed
    messages: int  # sent by this run
    seconds: float


class ReplayFailed(TallystickError):
    """Spark could not carry a step of the replay out."""

    code = "replay_failed"


def run_replay(spark: SparkSession, settings: ReplaySettings, report: Report = quiet) -> ReplaySummary:
    began = time.monotonic()
    settings.check()
    check_command_lines(settings.credentials)
    to = settings.to or settings.topic
    with BrokersLink(settings.url, patience=settings.patience_seconds, credentials=settings.credentials) as link:
        ranges, identity = _resolved(link, settings)
        app = application(settings, identity)
        origin = Origin(identity.store, settings.archive, settings.url, settings.patience_seconds, settings.credentials)
        steps = list(steps_of(settings.topic, ranges, settings.step_offsets, identity.created_at))
        last = _last(link, app)
        left = [(version, pieces) for version, pieces in steps if version > last]
        sent = 0
        for version, pieces in left:
            report(f"{settings.topic}: step {version}: {sum(map(len, pieces)):,} messages to {to}")
            _write(spark, settings, app, version, _rows(settings, origin, pieces))
            sent += _messages(link, app, version)
            report(f"{settings.topic}: committed: step {version}")
    return ReplaySummary(
        app=app,
        topic=settings.topic,
        to=to,
        ranges=ranges,
        steps=len(steps),
        steps_before=len(steps) - len(left),
        messages=sent,
        seconds=time.monotonic() - began,
    )


# --- what is replayed ------------------------------------------------------------------------------------------------


def application(settings: ReplaySettings, identity: TopicIdentity) -> str:
    """The id in the broker's ledger: the same for the same arguments, whatever became of topic and archive since."""
    arguments = {
        "identity": identity,
        "topic": settings.topic,
        "to": settings.to or settings.topic,
        "times": [settings.since_ms, settings.until_ms],
        "offsets": [sorted(settings.from_offsets.items()), sorted(settings.to_offsets.items())],
        "keys": sorted(settings.keys),
        "tags": sorted(settings.tags),
        "marked": settings.marked,
        "step": settings.step_offsets,
    }
    digest = hashlib.sha256(msgspec.json.encode(arguments)).hexdigest()[:24]
    return f"replay:{settings.id}:{digest}" if settings.id else f"replay:{digest}"


def _resolved(link: BrokersLink, settings: ReplaySettings) -> tuple[dict[int, tuple[int, int]], TopicIdentity]:
    """By queue, the offsets to replay; and whose they are."""
    return _from_archive(settings) if settings.archive else _from_log(link, settings)


def _from_archive(settings: ReplaySettings) -> tuple[dict[int, tuple[int, int]], TopicIdentity]:
    archive, topic = Archive(settings.archive), settings.topic
    known, manifests = archive.ranges(topic), archive.manifests(topic)
    if not manifests:
        raise NotFound(f"the archive at {settings.archive} has nothing of topic {topic!r}", field="topic")
    ends = dict(settings.to_offsets) or _ends_at(archive, settings)
    since = {} if settings.since_ms is None else archive.offsets_at(topic, settings.since_ms)
    starts = {**since, **settings.from_offsets}
    ranges = {queue: (starts.get(queue, _first(known, queue, end)), end) for queue, end in sorted(ends.items())}
    for queue, (start, end) in ranges.items():
        if start < end and not any(first <= start and end <= last for first, last in known.get(queue, [])):
            raise OffsetOutOfRange(
                f"offsets {start:,} to {end:,} of topic {topic!r}, queue {queue} are not all archived at "
                f"{settings.archive}: it has {known.get(queue) or 'nothing'} of that queue"
            )
    return ranges, TopicIdentity(manifests[-1].store, manifests[-1].created_at)


def _first(known: Mapping[int, list[tuple[int, int]]], queue: int, end: int) -> int:
    """The begin of the archived range that an end lies in, which stays the same however the archive grows; for an end
    that lies in none, the begin of all: so it is refused, and a gap is not passed over in silence."""
    ranges = known.get(queue, [(0, 0)])
    return next((first for first, last in ranges if first < end <= last), ranges[0][0])


def _ends_at(archive: Archive, settings: ReplaySettings) -> dict[int, int]:
    """Where a time is, if the archive will not get anything from before that time any more."""
    complete = max((one.complete_to or 0 for one in archive.manifests(settings.topic)), default=0)
    if settings.until_ms is None or settings.until_ms > complete:
        raise InvalidRequest(
            f"until: {_shown(settings.until_ms)} is later than {_shown(complete)}, up to where the archive of "
            f"{settings.topic!r} is complete; archive more first, or say where to end by offsets",
            field="until",
        )
    return archive.offsets_at(settings.topic, settings.until_ms)


def _shown(milliseconds: int | None) -> str:
    return datetime.fromtimestamp((milliseconds or 0) / 1000, UTC).isoformat(timespec="milliseconds")


def _from_log(link: BrokersLink, settings: ReplaySettings) -> tuple[dict[int, tuple[int, int]], TopicIdentity]:
    view = topic_view(link, settings.topic)
    ranges = {queue: (settings.from_offsets.get(queue, end), end) for queue, end in sorted(settings.to_offsets.items())}
    for queue, (start, end) in ranges.items():
        known = (view.starts[queue], view.ends[queue]) if 0 <= queue < view.queues else (0, 0)
        if start < end and not known[0] <= start < end <= known[1]:
            raise OffsetOutOfRange(
                f"offsets {start:,} to {end:,} of topic {settings.topic!r}, queue {queue}: the broker has "
                f"{known[0]:,} to {known[1]:,}; what it has trimmed may be in an archive"
            )
    return ranges, TopicIdentity(link.identity, view.created_at)


def steps_of(
    topic: str, ranges: Mapping[int, tuple[int, int]], size: int, created: int = 0
) -> Iterator[tuple[int, list[Range]]]:
    """The steps that are not empty: their numbers in the ledger, and a range for each queue."""
    whole = [Range(topic, queue, start, end, created=created) for queue, (start, end) in ranges.items() if start < end]
    numbers = {number for one in whole for number in range(one.start // size, (one.end - 1) // size + 1)}
    for number in sorted(numbers):
        cut = [one.part(max(one.start, number * size), min(one.end, (number + 1) * size)) for one in whole]
        yield number, [piece for piece in cut if len(piece)]


# --- how -------------------------------------------------------------------------------------------------------------


def _rows(
    settings: ReplaySettings, origin: Origin, pieces: list[Range]
) -> tuple[int, Callable[[Iterable[Any]], Iterator[Any]]]:
    """How many tasks, and what each does: one queue's range, in order."""
    choice = Choice(settings.keys, settings.tags, settings.marked)

    def rows(numbers: Iterable[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from choice.rows(origin, pieces[number])

    return len(pieces), rows


def _write(
    spark: SparkSession,
    settings: ReplaySettings,
    app: str,
    version: int,
    work: tuple[int, Callable[[Iterable[Any]], Iterator[Any]]],
) -> None:
    from pyspark.errors import PySparkException

    tasks, rows = work
    frame = spark.range(0, tasks, 1, tasks).mapInArrow(rows, SINK_SCHEMA)
    options = {"url": settings.url, "topic": settings.to or settings.topic, "txnAppId": app, "txnVersion": str(version)}
    options |= credential_options(settings.credentials)
    try:
        frame.write.format("tallystick").mode("append").options(**options).save()
    except PySparkException as error:
        why = raised_there(str(error)) or error
        raise ReplayFailed(
            f"step {version} of {app} failed: {why}; what was committed before stands, run it again to go on"
        ) from error


def _last(link: Link, app: str) -> int:
    try:
        return int(link.get("ledger", app)["version"])
    except NotFound:
        return -1


def _messages(link: Link, app: str, version: int) -> int:
    known = link.get("ledger", app)
    return int(known["messages"]) if known["version"] == version else 0


# --- a task's work: messages of one queue become rows for the sink, in the order of their offsets ---------------


class Origin(Struct, frozen=True):
    """Where messages come from: an archive, or the log of a broker; `store` is the one that first had them."""

    store: str
    archive: str
    url: str
    patience_seconds: float
    credentials: Credentials

    def read(self, piece: Range) -> Iterator[pa.RecordBatch]:
        if self.archive:
            return Archive(self.archive).read(piece.topic, piece.queue, piece.start, piece.end)
        return read_log(self.url, piece, self.patience_seconds, self.credentials)


class Choice(Struct, frozen=True):
    """Which messages, and whether they are told where they came from. Without keys or tags: all."""

    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    marked: bool = True

    def rows(self, origin: Origin, piece: Range) -> Iterator[pa.RecordBatch]:
        for batch in origin.read(piece):
            chosen = self._filtered(batch)
            if chosen.num_rows:
                yield _for_sink(_marked(chosen, origin.store) if self.marked else chosen)

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for column, wanted in (("key", self.keys), ("tag", self.tags)):
            if wanted:
                batch = batch.filter(pc.is_in(batch.column(column), pa.array(wanted, pa.string())))
        return batch


def _for_sink(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column(name) for name in SINK_COLUMNS.names], schema=SINK_COLUMNS)


def _marked(batch: pa.RecordBatch, store: str) -> pa.RecordBatch:
    """The batch with two headers more: the id that consumers knew a message by, and its topic, queue and offset."""
    places = _joined("/", batch.column("topic"), batch.column("queue"), batch.column("offset"))
    in_transaction = _joined("/", batch.column("gid"), batch.column("sequence"))
    ids = pc.coalesce(in_transaction, _joined("/", pa.repeat(store, batch.num_rows), places))
    headers = batch.column("headers")
    if headers.null_count == batch.num_rows:
        marked = _only(ids, places, headers.type)
    else:
        added = zip(headers.to_pylist(), ids.to_pylist(), places.to_pylist(), strict=True)
        marked = pa.array([_with(known, one, place) for known, one, place in added], headers.type)
    return batch.set_column(batch.schema.get_field_index("headers"), SCHEMA.field("headers"), marked)


def _joined(separator: str, *columns: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*(column.cast(pa.string()) for column in columns), separator)


def _only(ids: pa.Array, places: pa.Array, kind: Any) -> pa.Array:
    """Maps of these two headers alone, made column by column."""
    rows = len(ids)
    pairs = pa.Table.from_arrays([ids, places], names=["id", "place"])
    items = pa.concat_arrays([pairs.column("id").combine_chunks(), pairs.column("place").combine_chunks()])
    order = [place for row in range(rows) for place in (row, rows + row)]
    names = pa.array([ID, FROM] * rows, pa.string())
    return pa.MapArray.from_arrays(
        pa.array(range(0, 2 * rows + 1, 2), pa.int32()), names, items.take(pa.array(order))
    ).cast(kind)


def _with(headers: list[tuple[str, str]] | None, message_id: str, place: str) -> list[tuple[str, str]]:
    known = dict(headers or [])
    marked = {**known, ID: message_id, FROM: place}
    # A message that has as many as there may be already stays as it is.
    return list((marked if len(marked) <= MOST_HEADERS else known).items())

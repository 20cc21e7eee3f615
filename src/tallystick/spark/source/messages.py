"""Reading a range of offsets, in a task: all of it, each offset once, whatever becomes of the broker meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from http.client import HTTPResponse
from typing import Any

from tallystick.core.backoff import Backoff
from tallystick.core.errors import BrokerUnavailable, Incomplete, NotFound, OffsetOutOfRange, TallystickError
from tallystick.credentials.credentials import NO_CREDENTIALS, Credentials
from tallystick.spark.brokers import BrokersLink
from tallystick.spark.options import credential_options
from tallystick.spark.schema import Shape
from tallystick.spark.source.ahead import read_ahead
from tallystick.spark.source.ranges import Planner, Range
from tallystick.spark.source.settings import SourceSettings, parse_settings
from tallystick.spark.source.topics import open_link, topic_view

CREATED = "Tallystick-Created"  # the broker's word on which topic of a name it read from
AHEAD_BYTES = 8 * 1024 * 1024  # of each task's memory, for batches that Spark has not asked for yet
_STEPS, _NO_STEPS = {"min": 1, "max": 1}, {"min": None, "max": None}
_BACKOFF = Backoff(first_ms=50, cap_ms=2_000)


def read_range(settings: SourceSettings, shape: Shape, wanted: Range) -> Iterator[Any]:
    """Record batches in Spark's schema with exactly the offsets in [start, end), read ahead of whoever takes them."""
    with open_link(settings) as link:
        reading = _Reading(settings, wanted, shape.needed, link)
        yield from read_ahead(map(shape.fit, reading.batches()), link.abandon, AHEAD_BYTES)


def read_messages(settings: SourceSettings, wanted: Range, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """The same in the schema of the broker's Arrow endpoint: all columns, or those named, with `offset` among them."""
    with open_link(settings) as link:
        yield from _Reading(settings, wanted, columns, link).batches()


def read_log(
    url: str, wanted: Range, patience_seconds: float, credentials: Credentials = NO_CREDENTIALS
) -> Iterator[Any]:
    """All columns of a range, for a job: it has an address and its patience instead of options."""
    options = {"url": url, "topic": wanted.topic, "retryTimeout": f"{patience_seconds:g}s"}
    options |= credential_options(credentials)
    return read_messages(parse_settings(options, streaming=False), wanted)


class _Reading:
    def __init__(
        self, settings: SourceSettings, wanted: Range, columns: Sequence[str] | None, link: BrokersLink
    ) -> None:
        self._settings, self._wanted, self._columns, self._link = settings, wanted, columns, link
        self._planner = Planner(settings)
        self._next = wanted.start  # of all below, each was handed on once
        self._tries = 0
        self._deadline = 0.0

    def batches(self) -> Iterator[Any]:
        todo = [self._wanted]
        self._progress(self._wanted.start)
        while todo:
            piece = todo.pop(0)
            self._next = piece.start
            source = self._from_archive(piece) if piece.archived else self._from_broker(piece)
            yield from source
            if self._next < piece.end:
                # The broker no longer has it all: the rest may be in the archive by now, or gone.
                todo = self._rest(piece) + todo

    def _from_archive(self, piece: Range) -> Iterator[Any]:
        for batch in self._planner.archived.read(piece.topic, piece.queue, piece.start, piece.end, self._columns):
            yield self._taken(batch, piece)
        if self._next < piece.end:
            raise Incomplete(
                f"the archive at {self._settings.archive} ends at {piece.topic}/{piece.queue} offset {self._next}, "
                f"although it should reach {piece.end}; verify the archive"
            )

    def _from_broker(self, piece: Range) -> Iterator[Any]:
        """Goes on at the next offset after each lost connection; ends early where the broker has no more to give."""
        while self._next < piece.end:
            before = self._next
            try:
                yield from self._stream(piece)
            except (OffsetOutOfRange, NotFound):
                return
            except BrokerUnavailable as error:
                if not error.retryable:
                    raise
                self._pause(error)
            else:
                if self._next == before:
                    return

    def _stream(self, piece: Range) -> Iterator[Any]:
        import pyarrow as pa

        path = ("topics", piece.topic, "queues", str(piece.queue), "messages")
        columns = None if self._columns is None else ",".join(self._columns)
        with self._link.arrow(*path, offset=self._next, end=piece.end, columns=columns) as answer:
            # Of another topic of this name nothing is taken: offsets may be the same where another broker has them.
            if self._of_another(piece, answer.headers.get(CREATED)):
                return
            try:
                # The broker's stream ends with a mark; where that is missing the connection was cut between batches.
                with pa.ipc.open_stream(_Body(answer)) as batches:
                    for batch in batches:
                        yield self._taken(batch, piece)
            except pa.ArrowInvalid as error:
                raise BrokerUnavailable(f"the answer of {self._link.url} broke off ({error})") from error

    def _of_another(self, piece: Range, created: str | None) -> bool:
        """Whether an answer is of another topic than the one that was planned for. The stores of a cluster have made
        theirs at different moments; but there, no other store can have come in the place of one."""
        return bool(piece.created and created and created != str(piece.created) and not self._link.divided)

    def _taken(self, batch: Any, piece: Range) -> Any:
        """A batch that begins where the last one ended. Its count is not trusted: a row too few or twice would be
        silent, and for ever."""
        if not batch.num_rows:
            return batch
        offsets, end = batch.column("offset"), self._next + batch.num_rows
        if offsets[0].as_py() != self._next or end > piece.end or not _dense(offsets):
            raise Incomplete(
                f"{piece.topic}/{piece.queue}: asked for offsets {self._next} to {piece.end - 1}, "
                f"got {offsets[0]} to {offsets[-1]} in {batch.num_rows} rows"
            )
        self._progress(end)
        return batch

    def _rest(self, piece: Range) -> list[Range]:
        """What can still be read of a piece; everything else has been reported when this returns."""
        rest = piece.part(self._next, piece.end)
        self._planner.archived.refresh()  # what the broker has trimmed since the range was planned is there by now
        try:
            view = topic_view(self._link, piece.topic)
        except NotFound:
            self._planner.loss.deleted(piece.topic, anew=False)
            return []
        pieces = self._planner.available(rest, view)
        if pieces == [rest]:
            self._pause(Incomplete(f"{piece.topic}/{piece.queue}: the broker gives nothing from {self._next} on"))
        return pieces

    def _progress(self, offset: int) -> None:
        self._next, self._tries = offset, 0
        self._deadline = time.monotonic() + self._settings.retry

    def _pause(self, error: TallystickError) -> None:
        """Before another try; unless none has got any further for as long as the user is patient."""
        self._tries += 1
        wait = _BACKOFF.wait_ms(self._tries) / 1000
        if time.monotonic() + wait > self._deadline or not self._link.rest(wait):
            raise error


class _Body:
    """An answer as pyarrow reads it: straight into memory of Arrow's own, which it uses again. From the answer itself
    it would get pieces put together first."""

    closed = False

    def __init__(self, answer: HTTPResponse) -> None:
        self._answer = answer

    def read(self, size: int) -> Any:
        import pyarrow as pa

        found = pa.allocate_buffer(size)
        return found.slice(0, self._answer.readinto(memoryview(found)))

    def close(self) -> None:
        """The answer is closed by whoever opened it."""


def _dense(offsets: Any) -> bool:
    """Whether each offset is the one before and one. Nothing of Python's is compared in Arrow: for the first such value
    pyarrow loads pandas, if that is installed."""
    import pyarrow.compute as pc

    steps = pc.min_max(pc.subtract(offsets.slice(1), offsets.slice(0, len(offsets) - 1))).as_py()
    return not offsets.null_count and steps in (_STEPS, _NO_STEPS)

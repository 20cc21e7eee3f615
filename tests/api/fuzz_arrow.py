"""Damaged Arrow streams against the code that takes them, in a process of its own: Arrow is C++, and a crash must be
seen, and memory that is bounded. Run with the number of streams to try; the outcome is in the exit status, and in two
numbers on the last line. With 0, requests of full size are taken, which must do with the same memory."""

from __future__ import annotations

import io
import resource
import struct
import sys
from collections import Counter
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tallystick.api.http import arrow_in, arrow_parts
from tallystick.columnar.body import Encoded
from tallystick.core.errors import InvalidRequest, TooLarge
from tallystick.core.limits import Limits
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import PrepareColumns

ROOM = 512 * 1024 * 1024  # that trying may take, on top of what the process has to begin with
MAP = pa.map_(pa.string(), pa.string())
TALES = (0, 1, 2, 3, 7, 8, 64, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1)
LIMITS = Limits(message_bytes=1_000, part_messages=500)
_outgoing = msgspec.msgpack.Decoder(OutgoingMessage)


def stream(table: pa.Table, rows_at_once: int) -> bytes:
    made = io.BytesIO()
    with pa.ipc.new_stream(made, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_at_once)
    return made.getvalue()


def rows(count: int, topics: int = 1) -> pa.Table:
    return pa.table(
        {
            "topic": pa.array([f"t{one % topics}" for one in range(count)]),
            "value": pa.array([b"v" * (one % 5) for one in range(count)], pa.binary()),
            "key": pa.array([None if one % 3 == 2 else f"k{one % 4}" for one in range(count)], pa.string()),
            "headers": pa.array([[("a", "1"), ("b", "")] if one % 2 else None for one in range(count)], MAP),
            "tag": pa.array([None if one % 2 else "red" for one in range(count)], pa.string()),
            "deliver_at": pa.array([None if one % 4 else one for one in range(count)], pa.timestamp("us", "UTC")),
        }
    )


STREAMS = (
    stream(rows(3), 3),
    stream(rows(3).select(["topic", "value"]), 3),
    stream(rows(8, 2), 3),
    stream(rows(2).select(["topic", "value", "headers"]), 2),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    content = bytearray(draw(st.sampled_from(STREAMS)))
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        how = draw(st.sampled_from(("byte", "number", "short", "bit", "cut", "repeat", "copy", "remove")))
        length = draw(st.sampled_from((1, 4, 8, 16, 64)))
        if how == "byte":
            content[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif how == "bit":
            content[at : at + 1] = bytes([(content[at] if content else 0) ^ 1 << draw(st.integers(0, 7))])
        elif how == "number":
            content[at & ~7 : (at & ~7) + 8] = struct.pack("<Q", draw(st.sampled_from(TALES)))
        elif how == "short":
            content[at & ~3 : (at & ~3) + 4] = struct.pack("<I", draw(st.sampled_from(TALES)) & 0xFFFFFFFF)
        elif how == "cut":
            del content[at:]
        elif how == "remove":
            del content[at : at + length]
        elif how == "repeat":
            content[at:at] = content[at : at + length]
        else:
            source = draw(st.integers(0, max(0, len(content) - 1)))
            content[at : at + length] = content[source : source + length]
    return bytes(content)


def decoded(part: PrepareColumns) -> dict[int, OutgoingMessage]:
    """What a part holds, each message by its sequence, whichever form it has."""
    found = dict(part.messages)
    for piece in part.pieces:
        head, values = Encoded(piece.columns, "head"), Encoded(piece.values, "values")
        columns = {**head.columns, **values.columns}
        for column in columns.values():
            column.validate(full=True)
        assert head.rows == values.rows == piece.count == len(columns["value"])
        sequences = head.sequences(columns).to_pylist()
        names = [name for name in columns if name != "sequence"]
        for sequence, *row in zip(sequences, *(columns[name].to_pylist() for name in names), strict=True):
            message = OutgoingMessage(piece.topic, **dict(zip(names, row, strict=True)))
            message.headers = None if message.headers is None else dict(message.headers)
            assert sequence not in found
            found[sequence] = message
    return found


def taken(body: bytes) -> int:
    """The number of rows that were accepted, all of them right."""
    known = arrow_in.rows_of_stream(body, LIMITS)
    queues = dict.fromkeys(arrow_parts.topics_of(known), 3)
    part = arrow_parts.part_of(known, "p", 0, None, 1, queues)
    found = decoded(part)
    assert sorted(found) == list(range(part.count)) == list(range(known.num_rows))
    names = [name for name in known.schema.names if name != "deliver_at"]  # its zone may be none that Python knows
    sent: list[dict[str, Any]] = known.select(names).to_pylist()
    for sequence, message in found.items():
        assert _outgoing.decode(msgspec.msgpack.encode(message)) == message
        row = sent[sequence]
        headers = row.get("headers")
        assert (message.topic, message.value, message.key, message.tag) == (
            row["topic"], row["value"], row.get("key"), row.get("tag"),
        )  # fmt: skip
        assert message.headers == (None if headers is None else dict(headers))
        assert len(headers or ()) == len(message.headers or ())
    return part.count


def large() -> None:
    """Requests of 16 MiB, as they may come: of short rows, of long values, of many headers, of very many topics."""
    headers = pa.array([[(f"h{one}", "x" * 200) for one in range(64)]] * 1_000, MAP)
    thousand = pa.array(["t"] * 1_000), pa.array([b""] * 1_000, pa.binary())
    requests = [
        rows(100_000).set_column(1, "value", pa.array([b"v" * 120] * 100_000, pa.binary())),
        pa.table({"topic": ["t"] * 4, "value": pa.array([b"v" * 4_190_000] * 4, pa.binary())}),
        pa.table({"topic": thousand[0], "value": thousand[1], "headers": headers}),
        rows(100_000, 10_000).select(["topic", "value"]),
    ]
    for request in requests:
        body = stream(request, 100_000)
        assert len(body) < Limits().request_bytes
        known = arrow_in.rows_of_stream(body, Limits())
        queues = dict.fromkeys(arrow_parts.topics_of(known), 4)
        part = arrow_parts.part_of(known, "p", 0, None, 1, queues)
        assert part.count == request.num_rows


def bound_memory() -> None:
    with open("/proc/self/statm") as sizes:
        used = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))


def damage(examples: int) -> None:
    arrow_parts.LEAST_BYTES = 0  # so that a few rows are laid down
    arrow_parts.BODY_ROWS = 2
    assert [taken(one) for one in STREAMS] == [3, 3, 8, 2]
    bound_memory()
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged())
    def attempt(body: bytes) -> None:
        try:
            outcomes["taken" if taken(body) else "empty"] += 1
        except (InvalidRequest, TooLarge):
            outcomes["refused"] += 1

    attempt()
    print(outcomes["taken"], outcomes["refused"])


if __name__ == "__main__":
    if int(sys.argv[1]):
        damage(int(sys.argv[1]))
    else:
        bound_memory()
        large()

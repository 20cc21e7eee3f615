"""Arrow that lies: each lie is refused before anything is stored, or is harmless and then stored right."""

from __future__ import annotations

import io
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lies
import pyarrow as pa
import pytest
from lies import BYTES, MAP, TEXT, Lie, garbled, many_copies, said, stream, table

from brokers import BrokerProcess
from raw_client import Answer, RawClient
from tallystick.core.message import StoredMessage
from tallystick.core.wire import ARROW
from tallystick.link import Link

HUGE = 2**62
VALID = stream(table())
FEWER = stream(table().drop_columns(["tag", "deliver_at"]))


def of_type(name: str, kind: Any) -> bytes:
    return stream(table(**{name: pa.nulls(3, kind)}))


def offsets(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


def nulls_in(name: str, said: int) -> bytes:
    lie = Lie()
    lie.put("<q", lie.node(name) + 8, said)
    return lie.appended(f"{name} valid", b"\x05")


def spliced(schema: bytes, batch: bytes) -> bytes:
    """The schema of one stream, and what follows that of another."""
    return schema[: Lie(schema).second] + batch[Lie(batch).second :]


def big_endian(lie: Lie) -> bytes:
    lie.schema_message.table(lies.HEADER).share(lies.ENDIANNESS, lies.FIELDS)
    return bytes(lie.bytes)


def batches(count: int, *rows: int) -> bytes:
    """`count` record batches without rows before those with some."""
    made, content = io.BytesIO(), table()
    with pa.ipc.new_stream(made, content.schema) as writer:
        for _ in range(count):
            writer.write_batch(pa.RecordBatch.from_pylist([], schema=content.schema))
        for row in rows:
            writer.write_batch(content.to_batches()[0].slice(row, 1))
    return made.getvalue()


def message_field(field: int) -> Callable[[Lie], int]:
    return lambda lie: lie.message.place(field)


def rows_said(lie: Lie) -> int:
    return lie.batch.place(lies.ROWS)


REFUSED: dict[str, bytes] = {
    "two streams": VALID + VALID,
    "bytes behind the end": VALID + b"\0",
    "ended before its batch by a length of 0": said(lambda lie: lie.second + 4, 0, "<I"),
    # What is said of rows and columns.
    "a batch of more rows than it has": said(rows_said, 4),
    "a batch of fewer rows than it has": said(rows_said, 2),
    "a batch of very many rows": said(rows_said, HUGE),
    "a batch of a negative number of rows": said(rows_said, -1),
    "a column that is longer": said(lambda lie: lie.node("value"), 4),
    "a column that is shorter": said(lambda lie: lie.node("key"), 2),
    "a column of very many rows": said(lambda lie: lie.node("topic"), HUGE),
    "a column of a negative length": said(lambda lie: lie.node("topic"), -1),
    "names of headers of a negative length": said(lambda lie: lie.node("name"), -3),
    "names of headers of a huge length": said(lambda lie: lie.node("name"), HUGE),
    "fewer headers than rows refer to": said(lambda lie: lie.node("entries"), 2),
    "nulls without a bitmap": said(lambda lie: lie.node("value") + 8, 1),
    "more nulls than rows": said(lambda lie: lie.node("key") + 8, 4),
    "other nulls than the bitmap has": said(lambda lie: lie.node("key") + 8, 2),
    "a negative number of nulls": said(lambda lie: lie.node("key") + 8, -7),
    "more columns than the schema has": spliced(FEWER, VALID),
    "fewer columns than the schema has": spliced(VALID, FEWER),
    # Where buffers lie.
    **{
        f"a buffer {how} ({name})": said(lambda lie, n=name, p=plus: lie.buffer(n) + p, number)  # type: ignore[misc]
        for name in ("topic offsets", "value data", "key valid", "headers offsets", "deliver_at data")
        for how, plus, number in (
            ("behind the end", 0, 100_000),
            ("far behind the end", 0, HUGE),
            ("before the beginning", 0, -8),
            ("that is too long", 8, 100_000),
            ("of a huge length", 8, HUGE),
            ("of a negative length", 8, -8),
        )
    },
    "buffers that are one and the same": said(lambda lie: lie.buffer("topic data") + 8, 200),
    "offsets that are too few": said(lambda lie: lie.buffer("value offsets") + 8, 8),
    "no offsets": said(lambda lie: lie.buffer("value offsets") + 8, 0),
    "a bitmap that is too short": said(lambda lie: lie.buffer("key valid") + 8, 0),
    "times that are too few": said(lambda lie: lie.buffer("deliver_at data") + 8, 8),
    # What is in them.
    **{
        f"offsets that {how} ({name})": garbled(f"{name} offsets", offsets(*numbers))
        for name in ("topic", "value", "key", "headers", "name", "text")
        for how, numbers in (("decrease", (0, 3, 1, 3)), ("exceed", (0, 0, 0, 900)), ("are negative", (-4, 0, 0, 0)))
    },
    **{
        f"no UTF-8 ({name}, {wrong!r})": garbled(f"{name} data", wrong)
        for name in ("topic", "key", "name", "text", "tag")
        for wrong in (b"\xff", b"\xc0", b"\x80")
    },
    "half of a surrogate": garbled("key data", b"\xed\xa0\x80"),
    "a text that is longer in UTF-8 than need be": garbled("key data", b"\xc1\x81"),
    **{
        f"{name} of headers that are null (and {said})": nulls_in(name, said)
        for name in ("name", "text", "entries")
        for said in (1, -1)
    },
    "two headers of one name": stream(table(headers=pa.array([[("a", "1"), ("a", "2")], None, []], MAP))),
    "65 headers": stream(table(headers=pa.array([[(str(one), "") for one in range(65)], None, []], MAP))),
    "seconds that are no milliseconds": stream(table(deliver_at=pa.array([2**62, 0, 0], pa.timestamp("s")))),
    "seconds that turn into other milliseconds": stream(
        table(deliver_at=pa.array([18_446_744_073_709_552, 0, 0], pa.timestamp("s")))
    ),
    "a microsecond before 1970": stream(table(deliver_at=pa.array([-1, 0, 0], pa.timestamp("us")))),
    # The frame.
    "metadata of a negative length": said(lambda lie: lie.second + 4, 2**32 - 8, "<I"),
    "metadata of a huge length": said(lambda lie: lie.second + 4, 2**31 - 8, "<I"),
    "metadata that is too short": said(lambda lie: lie.second + 4, 16, "<I"),
    "a schema that is too short": said(lambda _: 4, 8, "<I"),
    "a body of a negative length": said(message_field(lies.BODY_LENGTH), -8),
    "a body of a huge length": said(message_field(lies.BODY_LENGTH), HUGE),
    "a body that is too short": said(message_field(lies.BODY_LENGTH), 64),
    "a body behind a schema": said(lambda lie: lie.schema_message.place(lies.BODY_LENGTH), 64),
    "no body": VALID[: Lie().body],
    "a dictionary batch": said(message_field(lies.KIND), 2, "<B"),
    "a tensor": said(message_field(lies.KIND), 4, "<B"),
    "a message of no kind": said(message_field(lies.KIND), 0, "<B"),
    "a batch that calls itself a schema": said(message_field(lies.KIND), 1, "<B"),
    "a schema that calls itself a batch": said(lambda lie: lie.schema_message.place(lies.KIND), 3, "<B"),
    "no schema": VALID[Lie().second :],
    "two schemas": VALID[: Lie().second] * 2,
    "a schema in the middle": VALID[:-8] + VALID,
    "a foreign byte order": big_endian(Lie()),
    "the metadata of long ago": said(message_field(lies.VERSION), 1, "<h"),
    "the metadata of days to come": said(lambda lie: lie.schema_message.place(lies.VERSION), 90, "<h"),
    "compressed": stream(table(value=pa.array([b"x" * 5_000] * 3)), compression="zstd"),
    "one text, very often, beside the columns": many_copies(20_000, 60_000, of_message=False),
    "one text, very often, beside a batch": many_copies(20_000, 60_000, of_message=True),
    "one text, often": many_copies(65, 1_000, of_message=True),
    "very many batches": batches(10_001),
    "a million columns": b"\xff\xff\xff\xff" + (2**24).to_bytes(4, "little") + bytes(2**24),
    "too many columns": stream(table(**{f"c{one}": pa.array([1, 2, 3]) for one in range(33)})),
    # Types.
    **{
        f"{name} of type {kind}": of_type(name, kind)
        for name, kind in (
            ("key", pa.large_string()),
            ("key", pa.string_view()),
            ("key", pa.dictionary(pa.int32(), TEXT)),
            ("key", pa.run_end_encoded(pa.int32(), TEXT)),
            ("key", pa.json_(TEXT)),
            ("key", pa.list_(TEXT)),
            ("key", pa.null()),
            ("tag", pa.binary(5)),
            ("tag", pa.struct([("a", TEXT)])),
            ("tag", pa.dense_union([pa.field("a", TEXT)])),
            ("headers", pa.map_(TEXT, BYTES)),
            ("headers", pa.map_(TEXT, pa.dictionary(pa.int8(), TEXT))),
            ("headers", pa.map_(TEXT, TEXT, keys_sorted=True)),
            ("headers", pa.map_(TEXT, MAP)),
            ("headers", pa.list_(pa.struct([("key", TEXT), ("value", TEXT)]))),
            ("deliver_at", pa.int64()),
            ("deliver_at", pa.date64()),
            ("deliver_at", pa.duration("ms")),
        )
    },
    "values as views": stream(table(value=pa.array([b"x" * 40] * 3, pa.binary_view()))),
}  # fmt: skip


def put(client: RawClient, part: str, body: bytes) -> Answer:
    return client.request("POST", f"/v1/parts/{part}", body, {"Content-Type": ARROW})


# Of lies that are told of several columns alike, one column will do for a short run.
IN_FULL = [what for what in REFUSED if "(" in what and "key" not in what]


@pytest.mark.parametrize("what", [pytest.param(what, marks=[pytest.mark.full] * (what in IN_FULL)) for what in REFUSED])
def test_a_lie_is_refused_and_nothing_of_it_is_stored(client: RawClient, what: str) -> None:
    name = f"lie-{uuid.uuid4().hex}"
    client.request("DELETE", f"/v1/topics/{lies.TOPIC}")  # if one that was believed has left it behind
    answer = put(client, name, REFUSED[what])
    assert answer.status in (400, 413), answer.body
    assert answer.problem().detail
    assert client.request("GET", f"/v1/topics/{lies.TOPIC}").status == 404
    claim = client.json("POST", "/v1/ledger/lies/0", {"parts": [{"part": name, "count": 1}]})
    assert (claim.status, claim.problem().code) == (409, "part_unavailable")
    assert "holds 0 messages" in claim.problem().detail
    assert client.request("GET", "/healthz").status == 200


def with_a_bitmap_of_a_megabyte(lie: Lie) -> bytes:
    return lie.appended("key valid", b"\x05" + b"\xff" * 2**20)


def with_offsets_that_begin_later(lie: Lie) -> bytes:
    """The values lie behind some bytes that nobody refers to, and before others."""
    lie.appended("value data", b"....onetwothree" + b"." * 5_000)
    lie.appended("value offsets", offsets(4, 7, 10, 15))
    return bytes(lie.bytes)


def hidden(lie: Lie) -> bytes:
    """The row without headers has offsets that span some, with a name that another row has too."""
    entries = pa.StructArray.from_arrays([pa.array(list("abxxc")), pa.array(list("xy..z"))], ["key", "value"])
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(offsets(0, 2, 4, 5))]
    return stream(table(headers=pa.Array.from_buffers(MAP, 3, buffers, children=[entries])))


HARMLESS: dict[str, bytes] = {
    "as it should be": VALID,
    "without an end mark": VALID[:-8],
    "in the old frame": stream(table(), use_legacy_format=True),
    "of the version before": stream(table(), metadata_version=pa.ipc.MetadataVersion.V4),
    "in batches of one row": batches(0, 0, 1, 2),
    "with many empty batches": batches(500, 0, 1, 2),
    "with a bitmap of a megabyte": with_a_bitmap_of_a_megabyte(Lie()),
    "with offsets that begin later": with_offsets_that_begin_later(Lie()),
    "with headers that nobody has": hidden(Lie()),
    "with a few remarks": many_copies(10, 100, of_message=True),
    "with remarks of pandas": stream(table().replace_schema_metadata({"pandas": "{}" * 5_000})),
    "with headers of other names": stream(
        table(headers=table()["headers"].cast(pa.map_(pa.field("k", TEXT, False), pa.field("v", TEXT))))
    ),
    "with unknown nulls": said(lambda lie: lie.node("key") + 8, -1),
    "with times of another zone": stream(table(deliver_at=pa.array([0, None, 0], pa.timestamp("ns", "Europe/Berlin")))),
    "of a table that was cut": stream(pa.concat_tables([table()] * 3).combine_chunks().slice(3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("how", HARMLESS)
def test_what_is_harmless_is_stored_right(client: RawClient, broker: BrokerProcess, how: str) -> None:
    name = f"harmless-{uuid.uuid4().hex}"
    body = HARMLESS[how]
    assert put(client, name, body).json() == {"part": name, "messages": 3, "duplicate": False}
    with Link(broker.url) as link:
        assert link.post("ledger", name, "0", parts=[{"part": name, "count": 3}])["messages"] == 3
        found = [one for one in client.messages(lies.TOPIC) if one.gid == link.get("ledger", name)["gid"]]
        link.delete("topics", lies.TOPIC)  # the lies are told of a topic that does not exist
    assert [row(one) for one in sorted(found, key=lambda one: one.sequence)] == [
        (b"one", "abc", {"a": "x", "b": "y"}, "red"),
        (b"two", None, None, "blue"),
        (b"three", "def", {"c": "z"}, None),
    ]


def row(message: StoredMessage) -> tuple[Any, ...]:
    return message.value, message.key, message.headers, message.tag


@pytest.mark.parametrize("empty", ["no batch", "an empty batch"])
def test_a_stream_without_rows_is_a_part_without_messages(client: RawClient, empty: str) -> None:
    body = {"no batch": batches(0), "an empty batch": batches(1)}[empty]
    name = f"empty-{uuid.uuid4().hex}"
    assert put(client, name, body).json() == {"part": name, "messages": 0, "duplicate": False}
    assert client.request("GET", f"/v1/topics/{lies.TOPIC}").status == 404


# --- at random ------------------------------------------------------------------------------------------------------


def fuzzed(streams: int) -> str:
    """In a process of its own, whose memory is bounded: see fuzz_arrow.py."""
    script = Path(__file__).with_name("fuzz_arrow.py")
    ran = subprocess.run([sys.executable, str(script), str(streams)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout[-2_000:] + ran.stderr[-4_000:]
    return ran.stdout


@pytest.mark.parametrize("streams", [1_000, pytest.param(12_000, marks=pytest.mark.full)])
def test_damaged_streams_crash_nothing_and_take_little_memory(streams: int) -> None:
    taken, refused = map(int, fuzzed(streams).split())
    assert taken > streams / 100  # not all of them are refused before they are looked at
    assert refused > streams / 2


@pytest.mark.full
def test_requests_of_full_size_take_a_bounded_amount_of_memory() -> None:
    fuzzed(0)

"""Messages: what a chunk's columns say is what its messages say."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.message import Chunk, OutgoingMessage, StoredMessage, messages_of

text = st.text(max_size=8).filter(lambda value: value.isprintable())
headers = st.none() | st.dictionaries(text, text, max_size=3)
rows = st.lists(
    st.tuples(
        text, st.integers(0, 99), st.none() | text, st.binary(max_size=20), headers, st.none() | text, st.integers(0)
    ),
    max_size=12,
)


def chunk_of(
    base: int, found: list[tuple[str, int, str | None, bytes, dict[str, str] | None, str | None, int]]
) -> Chunk:
    columns = [[row[index] for row in found] for index in range(7)]
    gids, sequences, keys, values, header_maps, tags, born = columns
    return Chunk(base, 77, gids, sequences, keys, values, header_maps, tags, born)  # type: ignore[arg-type]


@given(base=st.integers(0, 2**40), found=rows, skip=st.integers(-5, 15))
def test_the_messages_of_a_chunk_are_its_rows_from_the_start_on(
    base: int,
    found: list[tuple[str, int, str | None, bytes, dict[str, str] | None, str | None, int]],
    skip: int,
) -> None:
    chunk = chunk_of(base, found)
    expected = [
        StoredMessage("orders", 3, base + index, value, key, header_map, tag, gid, sequence, born, 77)
        for index, (gid, sequence, key, value, header_map, tag, born) in enumerate(found)
        if index >= skip
    ]
    assert messages_of(chunk, "orders", 3, base + skip) == expected
    assert len(chunk) == len(found)


@given(found=rows)
def test_a_chunk_survives_its_encoding(
    found: list[tuple[str, int, str | None, bytes, dict[str, str] | None, str | None, int]],
) -> None:
    chunk = chunk_of(0, [(*row[:6], row[6] % 2**63) for row in found])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(chunk), type=Chunk) == chunk


def test_a_message_of_a_transaction_is_known_by_gid_and_place_wherever_it_is_delivered() -> None:
    here = StoredMessage("orders", 0, 5, b"", gid="store-1", sequence=2)
    moved = StoredMessage("dlq.shop", 1, 0, b"", gid="store-1", sequence=2)
    assert here.id("store") == moved.id("other") == "store-1/2"


def test_a_message_without_a_gid_is_known_by_its_place_in_the_store() -> None:
    message = StoredMessage("orders", 1, 5, b"")
    assert message.id("store") == "store/orders/1/5"
    assert message.id("store") != message.id("other")


@pytest.mark.parametrize("field", ["deliver_at", "born_at"])
@pytest.mark.parametrize("moment", [-1, 253_402_300_800_000, 2**63])
def test_times_lie_between_the_epoch_and_the_last_year_that_dates_can_hold(field: str, moment: int) -> None:
    body = {"topic": "orders", "value": b"", field: moment}
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=OutgoingMessage)


def test_a_misspelt_field_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="keys"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"topic": "a", "value": b"", "keys": "k"}), type=OutgoingMessage)

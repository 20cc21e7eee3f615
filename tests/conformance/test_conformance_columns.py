"""Messages that came in columns and are kept in columns: read like any other, and beside any other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import engines
import pytest
from columns import in_columns, laying_down_little, read_as_arrow
from engines import MakePlace, Place, message

from tallystick.api.http import arrow_parts
from tallystick.core.message import OutgoingMessage, StoredMessage
from tallystick.core.ops import Commit, DropParts, PartRef, PrepareColumns, PreparePart, Send
from tallystick.store.kv import parts
from tallystick.store.kv.bodies import queue_of
from tallystick.store.protocol import DeleteTopic, ExpireParts, PromoteDelayed, PutTopic, TrimTo, TrimTopics

make_place = engines.make_place
place = engines.place
Row = tuple[str, bytes, str | None, dict[str, str] | None, str | None]


@pytest.fixture(autouse=True)
def little_is_laid_down(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(parts, "SMALL_BYTES", 0)
    with laying_down_little(rows=16):
        yield


def varied(count: int, name: str = "v", topics: tuple[str, ...] = ("orders",)) -> list[OutgoingMessage]:
    """Messages with and without each of what a message may have."""
    return [
        message(
            f"{name}-{one}",
            topics[one % len(topics)],
            key=None if one % 4 == 3 else f"k{one % 7}é",
            headers=(None, {}, {"h": "x"}, {"h": "", "ü": "y" * 50})[one % 5 % 4],
            tag=None if one % 3 else "red",
        )
        for one in range(count)
    ]


def row_of(one: OutgoingMessage | StoredMessage) -> Row:
    return one.topic, one.value, one.key, one.headers, one.tag


def in_order(found: list[StoredMessage]) -> list[StoredMessage]:
    return sorted(found, key=lambda one: one.sequence)


def commit(place: Place, *ops: PrepareColumns | PreparePart, gid: str = "t1") -> None:
    counts: Counter[str] = Counter()
    for op in ops:
        place.do(op)
        counts[op.part] += op.count if isinstance(op, PrepareColumns) else len(op.messages)
    place.do(Commit(gid, [PartRef(part, count) for part, count in counts.items()]))


def bodies_left(place: Place) -> int:
    return sum(1 for _ in place.store._engine.scan("body", b"", b"\xff" * 20))


def as_arrow(one: StoredMessage) -> dict[str, Any]:
    """A message as a row that an Arrow reader should get; times apart, which the other tests look at."""
    headers = None if one.headers is None else list(one.headers.items())
    same = {"offset": one.offset, "key": one.key, "value": one.value, "headers": headers, "tag": one.tag}
    return same | {"topic": one.topic, "queue": one.queue, "gid": one.gid or None, "sequence": one.sequence}


def seen_as_arrow(place: Place, topic: str, queue: int, *between: int) -> list[dict[str, Any]]:
    rows = read_as_arrow(place, topic, queue, *between)
    return [{name: value for name, value in row.items() if name not in ("timestamp", "born_at")} for row in rows]


# --- reading ---------------------------------------------------------------------------------------------------------


def test_what_was_sent_is_what_every_reader_gets(place: Place) -> None:
    sent = varied(300)
    part = in_columns(place, "p1", sent)
    assert len(part.pieces) > 4
    commit(place, part)
    for _ in range(2):
        found = place.messages()
        assert [row_of(one) for one in in_order(found)] == [row_of(one) for one in sent]
        assert [one.sequence for one in in_order(found)] == list(range(300))
        assert {(one.gid, one.stored_at, one.born_at) for one in found} == {("t1", place.now, place.now)}
        for queue in range(4):
            of_queue = [one for one in found if one.queue == queue]
            assert [one.offset for one in of_queue] == list(range(len(of_queue)))
            assert [one.sequence for one in of_queue] == sorted(one.sequence for one in of_queue)
            assert seen_as_arrow(place, "orders", queue) == [as_arrow(one) for one in of_queue]
        place.reopen()
    received: list[StoredMessage] = []
    while got := place.receive(max=70):
        received += [one.message for one in got]
    assert in_order(received) == in_order(found)


def test_both_layouts_are_the_same_to_readers(make_place: MakePlace) -> None:
    """Message by message: rows with keys are even in the same places."""
    sent = [one for one in varied(400) if one.key is not None]
    columns, chunks = make_place(), make_place()
    commit(columns, in_columns(columns, "p1", sent))
    commit(chunks, PreparePart("p1", sent))
    assert bodies_left(columns)
    assert not bodies_left(chunks)
    assert columns.messages() == chunks.messages()
    for queue in range(4):
        assert read_as_arrow(columns, "orders", queue) == read_as_arrow(chunks, "orders", queue)
        assert seen_as_arrow(columns, "orders", queue, 7, 33) == seen_as_arrow(columns, "orders", queue)[7:33]


def test_a_store_that_holds_both(place: Place) -> None:
    """Layouts that take turns in one queue, and in one commit."""
    place.do(Send(varied(10, "sent")))
    commit(place, in_columns(place, "a", varied(60, "a")), PreparePart("b", varied(60, "b")), gid="t1")
    place.do(Send(varied(10, "between")))
    both = in_columns(place, "c", varied(40, "c")), PreparePart("c", varied(40, "c2"), 1)
    commit(place, *both, in_columns(place, "c", varied(40, "c3"), index=2), gid="t2")
    place.do(Send(varied(10, "after")))
    found = place.messages()
    assert len(found) == 270
    second = in_order([one for one in found if one.gid == "t2"])
    sent = [*varied(40, "c"), *varied(40, "c2"), *varied(40, "c3")]
    assert [row_of(one) for one in second] == [row_of(one) for one in sent]
    assert [one.sequence for one in second] == list(range(120))
    of_key: defaultdict[str, list[str]] = defaultdict(list)
    for one in found:
        assert one.key is None or one.queue == queue_of(one.key, 0, 4)
        of_key[one.key or ""].append(one.value.decode().split("-")[0])
    for key in set(of_key) - {""}:
        order = list(dict.fromkeys(of_key[key]))
        assert order == [name for name in ("sent", "a", "b", "between", "c", "c2", "c3", "after") if name in order]
    for queue in range(4):
        of_queue = [one for one in found if one.queue == queue]
        assert seen_as_arrow(place, "orders", queue) == [as_arrow(one) for one in of_queue]
        for first in range(0, len(of_queue), 5):
            expected = [as_arrow(one) for one in of_queue[first : first + 9]]
            assert seen_as_arrow(place, "orders", queue, first, first + 9) == expected


def test_from_the_middle_of_a_body_to_its_middle(place: Place) -> None:
    commit(place, in_columns(place, "p1", [message(str(one), key="k") for one in range(16)]))
    queue = queue_of("k", 0, 4)
    assert len(place.store.read("orders", queue, 5, 1, 1, "all").columns) == 1
    assert [row["offset"] for row in read_as_arrow(place, "orders", queue, 5, 9)] == [5, 6, 7, 8]
    assert [row["value"] for row in read_as_arrow(place, "orders", queue, 15)] == [b"15"]
    assert read_as_arrow(place, "orders", queue, 16) == []


def test_who_does_not_want_the_values_does_not_read_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(place, in_columns(place, "p1", [message("x" * 1_000, key=f"k{one}") for one in range(100)]))
    engine, read = place.store._engine, Counter[str]()
    get = engine.get

    def counting(area: Any, key: bytes) -> bytes | None:
        found = get(area, key)
        read[area] += len(found or b"")
        return found

    monkeypatch.setattr(engine, "get", counting)
    keys = [row["key"] for queue in range(4) for row in read_as_arrow(place, "orders", queue, names=("key",))]
    assert sorted(keys) == sorted(f"k{one}" for one in range(100))
    assert 0 < read["body"] < 10_000
    for queue in range(4):
        read_as_arrow(place, "orders", queue, names=("value",))
    assert read["body"] > 100_000


def test_no_body_is_large_whatever_its_bytes_are_spent_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_parts, "BODY_ROWS", 8_192)
    sent = [message("", key=f"k{one % 5}", headers={"h": "x" * 8_000}) for one in range(600)]
    part = in_columns(place, "p1", sent)
    assert max(len(piece.columns) + len(piece.values) for piece in part.pieces) < arrow_parts.BODY_BYTES + 4_096
    commit(place, part)
    assert [row_of(one) for one in in_order(place.messages())] == [row_of(one) for one in sent]


# --- which queue -----------------------------------------------------------------------------------------------------


def test_a_key_has_the_queue_that_it_has_in_messages(place: Place) -> None:
    keys = [f"kéy-{one}" for one in range(40)]
    commit(place, in_columns(place, "p1", [message("c", key=key) for key in keys]))
    place.do(Send([message("m", key=key) for key in keys]))
    homes = {one.key: one.queue for one in place.messages() if one.value == b"c"}
    assert homes == {one.key: one.queue for one in place.messages() if one.value == b"m"}
    assert homes == {key: queue_of(key, 0, 4) for key in keys}
    assert set(homes.values()) == {0, 1, 2, 3}


@pytest.mark.parametrize("every", [1, 4, 5])
def test_rows_without_keys_take_turns(place: Place, every: int) -> None:
    """Also if every fourth of them has none, of a topic with four queues."""
    sent = [message(str(one), key=f"k{one}" if one % every else None) for one in range(200)]
    commit(place, in_columns(place, "p1", sent))
    counts = Counter(one.queue for one in place.messages() if one.key is None)
    assert len(counts) == 4
    assert max(counts.values()) - min(counts.values()) <= 1


def test_the_requests_of_a_part_begin_at_different_queues(place: Place) -> None:
    requests = [in_columns(place, "p1", [message("x")], index) for index in range(8)]
    commit(place, *requests)
    assert Counter(one.queue for one in place.messages()) == dict.fromkeys(range(4), 2)


@pytest.mark.parametrize("queues", [1, 3, 8])
def test_a_topic_that_has_other_queues_meanwhile(place: Place, queues: int) -> None:
    place.do(PutTopic("orders", 4))
    late = in_columns(place, "p1", [message("x", key="k")])
    if queues < 4:
        place.do(DeleteTopic("orders"))
    place.do(PutTopic("orders", queues))
    refused = place.refused(late)
    assert (refused.error, refused.field) == ("conflict", "topic")
    assert bodies_left(place) == 0
    assert place.store.counts().parts == 0
    commit(place, in_columns(place, "p1", [message("x", key="k")]))
    (found,) = place.messages()
    assert found.queue == queue_of("k", 0, queues)


def test_several_topics_in_one_request(place: Place) -> None:
    sent = varied(120, topics=("orders", "others", "orders"))
    sent[50].deliver_at = sent[51].deliver_at = place.now + 1_000
    commit(place, in_columns(place, "p1", sent))
    found = [*place.messages("orders"), *place.messages("others")]
    assert {one.sequence for one in found} == set(range(120)) - {50, 51}
    place.wait(1_000)
    place.do(PromoteDelayed(10))
    found = [*place.messages("orders"), *place.messages("others")]
    assert [row_of(one) for one in in_order(found)] == [row_of(one) for one in sent]


def test_rows_wait_for_their_time(place: Place) -> None:
    sent = varied(60)
    for one in range(0, 60, 7):
        sent[one].deliver_at = place.now + 1_000
    sent[1].deliver_at = place.now - 1_000
    part = in_columns(place, "p1", sent)
    assert len(part.messages) == 10
    commit(place, part)
    assert {one.sequence for one in place.messages()} == {one for one in range(60) if one % 7}
    place.wait(1_000)
    place.do(PromoteDelayed(100))
    assert [row_of(one) for one in in_order(place.messages())] == [row_of(one) for one in sent]


# --- parts -----------------------------------------------------------------------------------------------------------


def test_a_request_that_comes_again_is_known(place: Place) -> None:
    place.do(in_columns(place, "p1", varied(50)))
    left = bodies_left(place)
    place.wait(10)
    assert place.do(in_columns(place, "p1", varied(50))).duplicate
    assert place.refused(in_columns(place, "p1", varied(50, "w"))).error == "different_content"
    assert place.refused(in_columns(place, "p1", varied(49))).error == "different_content"
    assert place.refused(PreparePart("p1", varied(50))).error == "different_content"
    assert bodies_left(place) == left
    place.do(Commit("t1", [PartRef("p1", 50)]))
    assert len(place.messages()) == 50


@pytest.mark.parametrize("how", ["dropped", "expired"])
def test_the_columns_of_an_unclaimed_part_go_with_it(place: Place, how: str) -> None:
    place.do(in_columns(place, "p1", varied(50), ttl_ms=1_000))
    place.do(in_columns(place, "p2", varied(50)))
    left = bodies_left(place)
    if how == "dropped":
        place.do(DropParts(["p1", "unknown"]))
    else:
        place.wait(1_000)
        place.sweep(ExpireParts(100))
    assert bodies_left(place) == left / 2
    assert place.refused(Commit("t1", [PartRef("p1", 50)])).error == "part_unavailable"
    place.do(Commit("t2", [PartRef("p2", 50)]))
    place.do(DropParts(["p2"]))
    assert [row_of(one) for one in in_order(place.messages())] == [row_of(one) for one in varied(50)]


@pytest.mark.parametrize("end", ["expires", "is dropped", "is prepared only"])
def test_a_part_that_comes_again_leaves_what_was_committed_alone(place: Place, end: str) -> None:
    commit(place, in_columns(place, "p1", varied(50)))
    before = place.messages()
    place.do(in_columns(place, "p1", varied(50), ttl_ms=1_000))
    if end == "expires":
        place.wait(1_000)
        assert place.sweep(ExpireParts(10)).done == 1
    elif end == "is dropped":
        place.do(DropParts(["p1"]))
    place.reopen()
    assert place.messages() == before


# --- the end of it ------------------------------------------------------------------------------------------------


def test_columns_are_trimmed_with_age(make_place: MakePlace) -> None:
    place = make_place(retention_ms=1_000)
    for number in range(3):
        commit(place, in_columns(place, f"p{number}", varied(50)), gid=f"t{number}")
        place.wait(600)
    while place.sweep(TrimTopics(1)).more:
        pass
    assert {one.gid for one in place.messages()} == {"t2"}
    of_each = bodies_left(place)
    place.wait(1_000)
    while place.sweep(TrimTopics(100)).more:
        pass
    assert place.messages() == []
    assert (of_each > 0, bodies_left(place)) == (True, 0)


def test_trimming_to_the_middle_of_a_body(place: Place) -> None:
    commit(place, in_columns(place, "p1", varied(200)), PreparePart("p2", varied(50)))
    before = {(one.queue, one.offset): one for one in place.messages()}
    view = place.store.topic("orders")
    assert view is not None
    targets = {queue: view.ends[queue] // 2 for queue in range(4)}
    while place.sweep(TrimTo("orders", targets, 1)).more:
        pass
    expected = {where: one for where, one in before.items() if where[1] >= targets[where[0]]}
    place.reopen()
    assert {(one.queue, one.offset): one for one in place.messages()} == expected
    for queue in range(4):
        kept = [as_arrow(one) for where, one in sorted(expected.items()) if where[0] == queue]
        assert seen_as_arrow(place, "orders", queue, targets[queue]) == kept
    while place.sweep(TrimTo("orders", dict(enumerate(view.ends)), 2)).more:
        pass
    assert place.messages() == []
    assert bodies_left(place) == 0


def test_a_deleted_topic_takes_its_columns_with_it(place: Place) -> None:
    for part, topic in (("p1", "orders"), ("p2", "orders"), ("p3", "others")):
        place.do(in_columns(place, part, varied(50, topics=(topic,))))
    place.do(Commit("t1", [PartRef("p1", 50)]))
    place.do(DeleteTopic("orders"))
    refused = place.refused(Commit("t2", [PartRef("p2", 50)]))
    assert refused.error == "part_unavailable"
    assert "deleted" in refused.detail
    place.do(Commit("t3", [PartRef("p3", 50)]))
    assert len(place.messages("others")) == 50
    place.do(DeleteTopic("others"))
    assert bodies_left(place) == 0
    place.do(Send([message("new")]))
    assert place.values() == ["new"]

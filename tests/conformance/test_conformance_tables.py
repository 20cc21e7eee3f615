"""The store's own state as tables, page by page and range by range."""

from __future__ import annotations

import random
from typing import Any

import engines
import pytest
from engines import Place, message, prepare

from tallystick.core.errors import InvalidRequest
from tallystick.core.ops import Check, Commit, CommitOffsets, Prepare, Rollback, Send
from tallystick.core.wire import TableName
from tallystick.store.kv import origins
from tallystick.store.protocol import ClaimChecks, ExpireTombstones, FailChecks, PromoteDelayed, TableQuery

make_place = engines.make_place
place = engines.place


def rows(place: Place, table: TableName, limit: int = 3, **rest: Any) -> list[dict[str, Any]]:
    """All rows of a range, read in small pages."""
    found: list[dict[str, Any]] = []
    after = rest.pop("after", None)
    while True:
        page = place.store.page(TableQuery(table, limit, after, **rest))
        names = list(page.columns)
        found += [dict(zip(names, row, strict=True)) for row in zip(*page.columns.values(), strict=True)]
        after = page.next
        if after is None:
            return found


def gids(found: list[dict[str, Any]]) -> list[str]:
    return [row["gid"] for row in found]


def test_every_transaction_once_in_order_of_gid(place: Place) -> None:
    names = [f"t{number:03}" for number in range(40)]
    for name in random.Random(1).sample(names, len(names)):
        place.do(prepare(name))
    for name in names[::3]:
        place.do(Commit(name))
    for name in names[1::3]:
        place.do(Rollback(name))
    found = rows(place, "transactions")
    assert gids(found) == names
    assert [row["state"] for row in found[:3]] == ["committed", "rolled_back", "prepared"]
    assert found[0]["resolved_at"] == place.now
    assert found[2]["next_check_at"] == place.now + 10_000
    assert gids(rows(place, "transactions", state="committed")) == names[::3]
    assert sorted(gids(rows(place, "transactions", state="pending"))) == names[2::3]


def test_filters(place: Place) -> None:
    place.do(prepare("old", group="shop"))
    place.wait(1_000)
    place.do(prepare("new", group="bank"))
    assert gids(rows(place, "transactions", group="bank")) == ["new"]
    assert gids(rows(place, "transactions", state="pending", created_before=place.now)) == ["old"]
    assert gids(rows(place, "half", group="shop")) == ["old"]


def test_parked_and_checked_ones_show_what_checking_came_to(place: Place) -> None:
    for name in ("a", "b"):
        place.do(Prepare(name, "shop", [message()], Check(max_checks=1, source="db1")))
    place.wait(10_000)
    place.do(ClaimChecks([place.channel()], 10, 1_000))
    place.do(FailChecks({"a": "nobody there"}))
    parked, prepared = sorted(rows(place, "transactions", state="pending"), key=lambda row: row["gid"])
    assert (parked["state"], parked["checks"], parked["last_error"]) == ("parked", 1, "nobody there")
    assert parked["next_check_at"] is None
    assert (prepared["state"], prepared["next_check_at"], prepared["source"]) == ("prepared", place.now + 1_000, "db1")
    assert gids(rows(place, "transactions", state="parked")) == ["a"]
    assert gids(rows(place, "half", state="prepared")) == ["b"]


def test_half_messages_with_all_they_carry(place: Place) -> None:
    sent = message("v", key="k", headers={"h": "x"}, tag="red", deliver_at=place.now + 5)
    place.do(Prepare("t1", "shop", [sent, message("second")]))
    place.do(prepare("t2"))
    place.do(Commit("t2"))
    first, second = rows(place, "half", limit=1)
    assert (first["topic"], first["key"], first["value"], first["headers"], first["tag"]) == (
        *("orders", "k", b"v"),
        *({"h": "x"}, "red"),
    )
    assert (first["sequence"], first["deliver_at"]) == (0, place.now + 5)
    assert (second["sequence"], second["value"], second["deliver_at"]) == (1, b"second", None)
    place.do(Prepare("late", "shop", [message(delay_ms=7)]))
    (late,) = [row for row in rows(place, "half") if row["gid"] == "late"]
    assert late["deliver_at"] == place.now + 7


def test_the_outcome_log(place: Place) -> None:
    place.write(prepare("a"), prepare("b"))
    place.write(Commit("a"), Rollback("b"))
    place.wait(5)
    place.do(Send([message()], "c"))
    found = rows(place, "op", limit=1)
    assert [(row["gid"], row["outcome"], row["by"], row["at"]) for row in found] == [
        ("a", "committed", "producer", place.now - 5),
        ("b", "rolled_back", "producer", place.now - 5),
        ("c", "committed", "sender", place.now),
    ]
    assert [(row["sequence"], row["index"]) for row in found] == [(1, 0), (1, 1), (2, 0)]


def test_the_outcome_log_may_expire_while_it_is_read(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.do(Send([message()], name))
        place.wait(1_000)
    first = place.store.page(TableQuery("op", 1))
    place.wait(place.store.settings.dedup_retention_ms - 1_500)
    place.sweep(ExpireTombstones(100))
    assert gids(rows(place, "op", after=first.next)) == ["c"]


def test_offsets_of_groups(place: Place) -> None:
    place.do(Send([message(str(number), key="k") for number in range(5)]))
    (queue,) = {one.queue for one in place.messages()}
    place.do(CommitOffsets("readers", "orders", {queue: 3}))
    found = {row["queue"]: row for row in rows(place, "offsets")}
    assert len(found) == 4
    assert list(found[queue].values()) == ["readers", "orders", queue, 3, 0, 5, 2, 0]


@pytest.mark.parametrize("table", ["transactions", "half", "op"])
@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_splits_are_disjoint_and_together_everything(place: Place, table: TableName, most: int) -> None:
    drawn = random.Random(2)
    for number in range(200):
        name = f"{drawn.randrange(16**6):06x}-{number}"
        place.do(prepare(name))
        place.wait(drawn.randrange(50))
        if table == "op":
            place.do(Commit(name))
    splits = place.store.splits(table, None, most)
    assert 1 <= len(splits) <= most
    pieces = [gids(rows(place, table, 20, after=one.after, before=one.before)) for one in splits]
    assert sorted(gid for piece in pieces for gid in piece) == sorted(gids(rows(place, table, 1_000)))
    if most == 7:
        assert sum(1 for piece in pieces if piece) >= 3  # they do share the work


def test_pending_ones_are_listed_alike_with_and_without_an_outline(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of further origins than are kept, and of those asked at a URL, the transactions themselves are read."""
    monkeypatch.setattr(origins, "MOST_ORIGINS", 2)
    ways = [Check(source="db"), Check("database", "shop", "db"), Check("url", "http://h/check"), Check()]
    expected = []
    for number, group in enumerate(["a", "b", "c", "a"] * 4):
        check = ways[number % len(ways)]
        sent = [message(str(one)) for one in range(number % 3)]
        place.do(Prepare(f"t{number:02}", group, sent, check))
        at = place.now
        row = {"gid": f"t{number:02}", "state": "prepared", "group": group, "messages": len(sent), "created_at": at}
        about = {"check_via": check.via, "check_target": check.target or None, "source": check.source or None}
        expected.append({**row, "checks": 0, "next_check_at": at + 10_000, **about})
        place.wait(7)
    for _ in range(2):
        found = sorted(rows(place, "transactions", 3, state="pending"), key=lambda row: row["gid"])
        assert [{name: row[name] for name in expected[0]} for row in found] == expected
        assert gids(rows(place, "transactions", state="prepared", group="b")) == ["t01", "t05", "t09", "t13"]
        assert len(rows(place, "transactions", state="pending", created_before=expected[5]["created_at"])) == 5
        assert rows(place, "transactions", state="parked") == []
        place.reopen()


@pytest.mark.parametrize("most", [1, 3, 8, 50])
@pytest.mark.parametrize("groups", [2, 20])
def test_every_group_s_line_is_shared_out(place: Place, groups: int, most: int) -> None:
    for number in range(240):
        place.do(prepare(f"t{number}", group=f"g{number % groups}", check=Check(max_checks=1)))
        place.wait(10)
    place.do(FailChecks({f"t{number}": "nobody" for number in range(0, 240, 3)}))
    assert len(rows(place, "transactions", state="parked")) == 80
    splits = place.store.splits("transactions", "pending", most)
    assert 1 <= len(splits) <= most
    ranges = [{"state": "pending", "after": one.after, "before": one.before} for one in splits]
    pieces = [gids(rows(place, "transactions", 20, **one)) for one in ranges]
    assert sorted(gid for piece in pieces for gid in piece) == sorted(f"t{number}" for number in range(240))
    assert max(map(len, pieces)) <= max(2 * 240 / most, 100)  # the 80 parked ones make one line


def test_delayed_messages_until_they_are_in_their_queue(place: Place) -> None:
    later = place.now + 5_000
    place.do(Send([message(), message(deliver_at=later)], "d1"))
    place.do(Send([message(deliver_at=later + 1)]))
    place.do(Prepare("half", "shop", [message(deliver_at=later)]))  # not visible by right, so it is none of these
    topic = message().topic
    assert rows(place, "delayed", 1) == [
        {"gid": "d1", "sequence": 1, "topic": topic, "deliver_at": later},
        {"gid": "", "sequence": 0, "topic": topic, "deliver_at": later + 1},
    ]
    place.wait(5_000)
    place.do(PromoteDelayed(10))
    assert gids(rows(place, "delayed")) == [""]


def test_splits_of_nothing(place: Place) -> None:
    for table in ("transactions", "half", "op", "offsets", "delayed"):
        (only,) = place.store.splits(table, None, 8)  # type: ignore[arg-type]
        assert (only.after, only.before) == (None, None)
        assert rows(place, table) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["x", "0", "0.", "0.zz", "7.74", "-1.74", "0.54", "1.74", "0.73", "0.75", "0.ff"])
def test_a_token_leads_nowhere_else(place: Place, token: str) -> None:
    place.do(prepare("t1"))
    for field in ("after", "before"):
        with pytest.raises(InvalidRequest, match=field):
            place.store.page(TableQuery("transactions", 10, **{field: token}))

"""Metrics: the numbers are those of what happened, and their labels cannot be made to grow."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from inner_broker import Inside, inside
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from stores import FailingEngine
from web_sites import answering, site

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.broker.metrics import MAX_LAG_SERIES
from tallystick.core.errors import OutcomeConflict, TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, Commit, CommitOffsets, Nack, Prepare, PreparePart, Rollback, Send
from tallystick.core.wire import ReceiveRequest
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import PutTopic, Resume, StoreSettings

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]


def parsed(text: str) -> Samples:
    """Every sample, by name (without our prefix) and labels."""
    return {
        (sample.name.removeprefix("tallystick_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


async def scraped(broker: Inside) -> Samples:
    broker.clock.advance(1_000)  # the numbers that cost a look are at most a second old
    await broker.broker.count()
    return parsed(generate_latest(broker.broker.metrics.registry).decode())


def plain(samples: Samples) -> dict[str, float]:
    """Those without labels, and without the parts of histograms."""
    return {name: value for (name, labels), value in samples.items() if not labels and "seconds" not in name}


def send(topic: str, count: int = 1) -> Send:
    return Send([OutgoingMessage(topic, b"v") for _ in range(count)])


# --- the right numbers ---------------------------------------------------------------------------------------------


async def test_a_new_broker_shows_every_total_as_nothing() -> None:
    async with inside() as broker:
        shown = plain(await scraped(broker))
        assert set(shown.values()) == {0.0}
        totals = {name for name in shown if name.endswith("_total")}
        assert totals == {
            f"{name}_total"
            for name in (
                "prepared",
                "committed",
                "rolled_back",
                "conflict",
                "parked",
                "exhausted",
                "dead_letter",
                "call_parked",
                "alerts_failed",
            )
        }
        assert set(shown) - totals == {
            "calls_in_flight",
            "call_hosts_open",
            "calls_waiting",
            "calls_parked",
            "store_failed",
            "pending",
            "parked_now",
            "parts",
            "leases",
            "check_pollers",
        }


async def test_transactions_are_counted_once_each() -> None:
    async with inside() as broker:
        await broker.prepare("a", "b", "c", "d", after_ms=60_000)
        await broker.prepare("a", after_ms=60_000)  # a repetition
        for _ in range(2):
            await broker.do(Commit("a"))
        await broker.do(Rollback("b"))
        await broker.do(Rollback("never-seen"))
        with pytest.raises(OutcomeConflict):
            await broker.do(Commit("b"))
        with pytest.raises(TallystickError):
            await broker.do(Commit("unknown"))
        for _ in range(2):
            await broker.do(Send([OutgoingMessage("orders", b"v")], "once"))
        await broker.do(send("orders"))
        await broker.do(PreparePart("p", [OutgoingMessage("orders", b"v")]))
        shown = plain(await scraped(broker))
        expected = {
            "prepared_total": 4,
            "committed_total": 2,
            "rolled_back_total": 2,
            "conflict_total": 1,
            "pending": 2,
            "parts": 1,
        }
        assert {name: shown[name] for name in expected} == expected
        assert (await scraped(broker))[("pending_oldest_seconds", ())] == pytest.approx(2.0, abs=0.1)


async def test_parked_and_exhausted_ones_are_counted_and_the_parked_are_shown_while_they_are() -> None:
    async with inside() as broker:
        for gid, wish in (("stuck", "park"), ("given-up", "rollback")):
            await broker.prepare(gid, max_checks=1, on_exhausted=wish)
            await broker.poll()
            await broker.answer(**{gid: "unknown"})
        shown = plain(await scraped(broker))
        assert [shown[name] for name in ("parked_total", "parked_now", "exhausted_total", "rolled_back_total")] == [
            1
        ] * 4
        await broker.one(Resume("stuck"))
        shown = plain(await scraped(broker))
        assert (shown["parked_total"], shown["parked_now"], shown["pending"]) == (1, 0, 1)


async def test_checks_are_counted_by_way_and_answer() -> None:
    async with inside() as broker, site(answering(425)) as there:
        await broker.prepare("a", "b", "c")
        member = broker.polling("m")
        await member
        await broker.answer(a="committed", b="rolled_back", c="unknown")
        await broker.prepare("u", via="url", target=there.url)
        await broker.becomes("u", checks=1)
        found = await scraped(broker)
        checks = {key: value for key, value in found.items() if key[0].startswith("checks_")}
        assert checks == {
            ("checks_sent_total", (("via", "group"),)): 3,
            ("checks_sent_total", (("via", "url"),)): 1,
            ("checks_answered_total", (("answer", "committed"), ("via", "group"))): 1,
            ("checks_answered_total", (("answer", "rolled_back"), ("via", "group"))): 1,
            ("checks_answered_total", (("answer", "unknown"), ("via", "group"))): 1,
            ("checks_answered_total", (("answer", "unknown"), ("via", "url"))): 1,
        }
        assert found[("check_seconds_count", (("via", "group"),))] == 3
        assert found[("check_seconds_count", (("via", "url"),))] == 1


async def test_members_that_wait_are_shown() -> None:
    async with inside() as broker:
        polls = [broker.polling(f"m{number}", ms=1_000) for number in range(3)]
        for _ in range(20):
            shown = plain(await scraped(broker))
            if shown["check_pollers"] == 3:
                break
        broker.broker.checkback.members.close()
        for poll in polls:
            await poll
        assert shown["check_pollers"] == 3


async def test_leases_dead_letters_and_lag_follow_the_consumers() -> None:
    async with inside() as broker:
        await broker.one(PutTopic("orders", 1))
        await broker.do(send("orders", 10))
        first, second, third, *_ = await broker.door.receive("g", ReceiveRequest("orders", max=5))
        await broker.do(Ack("g", [first.receipt]))
        await broker.do(Nack("g", [second.receipt], dead=True))
        found = await scraped(broker)
        assert plain(found)["leases"] == 3
        assert plain(found)["dead_letter_total"] == 1
        # Ten, less the one that is done and the one that is dead.
        assert found[("lag", (("group", "g"), ("topic", "orders")))] == 8
        await broker.do(Ack("g", [third.receipt]))
        await broker.do(CommitOffsets("reader", "orders", {0: 4}))
        found = await scraped(broker)
        assert found[("lag", (("group", "g"), ("topic", "orders")))] == 7
        assert found[("lag", (("group", "reader"), ("topic", "orders")))] == 6


async def test_a_store_that_has_stopped_is_shown_and_the_rest_still_is() -> None:
    engine = FailingEngine(may_pass=False)
    async with inside(KvStore("s", lambda: engine, StoreSettings())) as broker:
        await broker.do(send("orders"))
        assert plain(await scraped(broker))["store_failed"] == 0
        engine.fail()
        with pytest.raises(TallystickError):
            await broker.do(send("orders"))
        shown = plain(await scraped(broker))
        assert shown["store_failed"] == 1
        assert "prepared_total" in shown


async def test_group_commits_are_timed() -> None:
    async with inside() as broker:
        before = (await scraped(broker)).get(("group_commit_seconds_count", ()), 0)
        for _ in range(5):
            await broker.do(send("orders"))
        after = await scraped(broker)
        assert after[("group_commit_seconds_count", ())] >= before + 5
        assert after[("group_commit_seconds_sum", ())] > 0


# --- bounded labels, over HTTP -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(store="memory", default_queues=1) as process:
        yield process


def fetched(client: RawClient) -> Samples:
    answer = client.request("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return parsed(answer.body.decode())


def test_requests_are_counted_by_route_whatever_their_path(broker: BrokerProcess) -> None:
    with RawClient(broker.url) as client:
        for number in range(40):
            client.json("PUT", f"/v1/topics/t{number}", {})
            client.request("GET", f"/v1/topics/t{number}/queues/0/messages?offset={number}")
            client.request("GET", f"/v1/transactions/missing-{number}")
            client.request("GET", f"/nowhere/{number}")
            client.request(f"ODD{number}", "/v1/info")
        client.do(send("orders"))
        found = fetched(client)
    requests = {labels: value for (name, labels), value in found.items() if name == "http_requests_total"}
    assert requests[(("route", "/v1/topics/{topic}"), ("status", "200"))] == 40
    assert requests[(("route", "/v1/transactions/{gid}"), ("status", "404"))] == 40
    assert requests[(("route", "/v1/batch"), ("status", "200"))] == 1
    assert len(requests) < 15
    assert not any("t7" in dict(labels)["route"] or "nowhere" in dict(labels)["route"] for labels in requests)


def test_the_lag_of_many_groups_is_cut_off_at_a_bound(broker: BrokerProcess) -> None:
    with RawClient(broker.url) as client:
        client.do(send("many"))
        for start in range(0, MAX_LAG_SERIES + 100, 100):
            client.batch(*(CommitOffsets(f"group{number}", "many", {0: 0}) for number in range(start, start + 100)))
        found: Samples = {}
        for _ in range(40):
            found = fetched(client)
            if sum(name == "lag" for name, _ in found) == MAX_LAG_SERIES:
                break
            client.poll_checks("nobody", wait_ms=100)
        assert sum(name == "lag" for name, _ in found) == MAX_LAG_SERIES


def test_names_from_outside_do_not_become_series(broker: BrokerProcess) -> None:
    with RawClient(broker.url) as client:
        before = fetched(client)
        for number in range(50):
            client.do(Prepare(f"gid{number}", f"producers{number}", [OutgoingMessage(f"topic{number}", b"v")]))
            client.poll_checks(f"producers{number}", f"member{number}", wait_ms=0)
        after = fetched(client)
    new = {key for key in after if key not in before}
    assert all(key[0].startswith(("http_requests", "lag")) for key in new), new
    assert len(new) < 10
    assert all(math.isfinite(value) for value in after.values())

"""A node runs a broker for each store that is its own: it opens what it wins, drops what it loses, hands over."""

from __future__ import annotations

import asyncio
import threading

import pytest
from cluster_support import LEASE_MS, TICK_MS, Cluster, Site, cluster_of

from eventually import eventually_async
from tallystick.broker.cluster import peer_key
from tallystick.core.errors import Moved
from tallystick.core.ids import new_gid
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, Check, Commit, Prepare, Send
from tallystick.core.wire import CheckPoll, Delivery, ReceiveRequest
from tallystick.store.shared.memory import MemoryCluster


def sending(value: str, topic: str = "orders") -> Send:
    return Send([OutgoingMessage(topic, value.encode())])


def owner_of(cluster: Cluster, store_id: str) -> Site:
    (owner,) = [site for site in cluster.sites.values() if store_id in site.stores()]
    return owner


async def receive(site: Site, store_id: str, most: int = 100, invisible_ms: int = 60_000) -> list[Delivery]:
    door = site.broker(store_id).door()
    return await door.receive("readers", ReceiveRequest("orders", max=most, invisible_ms=invisible_ms, wait_ms=0))


async def test_stores_are_spread_over_all_who_are_there() -> None:
    async with cluster_of(8, "a", "b", "c") as cluster:
        assert sorted(len(site.stores()) for site in cluster.sites.values()) == [2, 3, 3]


async def test_a_store_is_called_the_same_in_the_registry_and_by_its_broker() -> None:
    async with cluster_of(2, "a") as cluster:
        for store_id in cluster.ids:
            assert cluster.sites["a"].broker(store_id).door().store_id == store_id


async def test_all_know_the_clusters_key_from_their_first_look_on() -> None:
    async with cluster_of(2, "a", "b") as cluster:
        assert {site.node.peer_key for site in cluster.sites.values()} == {cluster.registry.peer_key()}


async def test_a_key_that_has_become_another_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a failover of an engine that has taken the first one back."""
    monkeypatch.setattr(peer_key, "FRESH_MS", TICK_MS)
    async with cluster_of(2, "a", "b") as cluster:
        monkeypatch.setattr(cluster.registry, "_peer_key", b"another")

        async def learnt() -> bool:
            return {site.node.peer_key for site in cluster.sites.values()} == {b"another"}

        await eventually_async(learnt, "the new key at both nodes")


@pytest.mark.parametrize("made_anew", [0, 3])
async def test_an_engine_that_was_emptied_is_told_of_and_nobody_joins_what_was_made_since(made_anew: int) -> None:
    async with cluster_of(2, "a") as cluster:
        site, known = cluster.sites["a"], set(cluster.ids)
        site.way.registry = MemoryCluster(made_anew)

        async def told() -> bool:
            return site.node.away

        await eventually_async(told, "the node says that its stores are gone")
        assert "not there any more" in site.node.trouble
        assert site.node.seen is not None
        assert {holding.id for holding in site.node.seen.holdings} == known


async def test_what_was_acknowledged_is_there_after_a_death() -> None:
    async with cluster_of(2, "a", "b") as cluster:
        (store_id,) = cluster.sites["a"].stores()
        door = cluster.sites["a"].broker(store_id).door()
        gid = new_gid(store_id)
        await door.do(Prepare(gid, "shop", [OutgoingMessage("orders", b"half")], Check(after_ms=60_000)))
        await door.do(sending("sent"))
        cluster.sites["a"].die()
        await cluster.until_spread("b")
        taken = cluster.sites["b"].broker(store_id).door()
        assert (await taken.transaction(gid)).state == "prepared"
        await taken.do(Commit(gid))
        assert {d.message.value for d in await receive(cluster.sites["b"], store_id)} == {b"half", b"sent"}


async def test_an_owner_that_does_not_know_of_its_death_can_do_nothing() -> None:
    async with cluster_of(1, "a", "b") as cluster:
        (store_id,) = cluster.ids
        owner = owner_of(cluster, store_id)
        other = cluster.sites["b" if owner.name == "a" else "a"]
        broker = owner.broker(store_id)
        await broker.door().do(sending("before"))
        lent = await receive(owner, store_id)
        owner.die()
        await cluster.until_spread(other.name)
        with pytest.raises(Moved):
            await broker.door().do(sending("ghost"))
        with pytest.raises(Moved):
            await broker.door().do(Ack("readers", [lent[0].receipt]))
        with pytest.raises(Moved):
            await broker.door().transaction("any")
        # The lease that the old owner gave is honoured by the new one, which has lent the message to nobody else.
        assert await receive(other, store_id) == []
        await other.broker(store_id).door().do(Ack("readers", [lent[0].receipt]))


async def test_one_who_wakes_up_drops_what_it_lost_and_gets_its_share_again() -> None:
    async with cluster_of(4, "a", "b") as cluster:
        sleeper = cluster.sites["a"]
        sleeper.way.cut = True
        await cluster.until_spread("b")
        brokers = [tenure.broker for tenure in sleeper.node.tenures.values()]
        polls = [
            asyncio.create_task(broker.door().receive("g", ReceiveRequest("orders", wait_ms=60_000)))
            for broker in brokers
            if broker is not None
        ]
        sleeper.way.cut = False
        for poll in polls:
            with pytest.raises(Moved):
                await poll
        await cluster.until_spread("a", "b")
        assert all(broker.door().not_ready() == "moved" for broker in brokers if broker is not None)


async def test_those_who_wait_are_told_to_ask_elsewhere_when_a_store_is_handed_over() -> None:
    async with cluster_of(1, "a") as cluster:
        (store_id,) = cluster.ids
        door = cluster.sites["a"].broker(store_id).door()
        await door.do(sending("one"))
        waiting = [
            asyncio.create_task(door.receive("g", ReceiveRequest("empty", wait_ms=60_000))),
            asyncio.create_task(door.fetch("orders", 0, 0, 10, 1_000_000, 60_000)),
            asyncio.create_task(door.poll_checks(CheckPoll("shop", "m", 10, 60_000))),
        ]
        await eventually_async(lambda: _waiting(cluster.sites["a"], store_id), "all of them waiting")
        cluster.sites["a"].node.leave()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        told = [answer for answer in answers if isinstance(answer, Moved)]
        assert len(told) >= 2  # the fetch may have found the message in its queue
        with pytest.raises(Moved):
            await door.do(sending("two"))


async def _waiting(site: Site, store_id: str) -> bool:
    broker = site.broker(store_id)
    return broker.checkback.members.waiting > 0 and broker._waiters._count > 0


async def test_one_who_leaves_hands_everything_over_and_ends() -> None:
    async with cluster_of(4, "a", "b") as cluster:
        leaver = cluster.sites["a"]
        before = leaver.stores()
        for store_id in before:
            await leaver.broker(store_id).door().do(sending(store_id))
        leaver.node.leave()
        await asyncio.wait_for(leaver.task, 60)
        assert leaver.stores() == set()
        await cluster.until_spread("b")
        for store_id in before:
            (delivery,) = await receive(cluster.sites["b"], store_id)
            assert delivery.message.value == store_id.encode()
        assert {member.id for member in cluster.seen().members} == {"b", "looker"}


async def test_the_last_one_leaves_too() -> None:
    async with cluster_of(2, "a") as cluster:
        cluster.sites["a"].node.leave()
        await asyncio.wait_for(cluster.sites["a"].task, 60)
        assert {holding.owner for holding in cluster.seen().holdings} == {""}


async def test_a_newcomer_is_given_stores_and_nothing_is_lost_on_the_way() -> None:
    async with cluster_of(4, "a") as cluster:
        for store_id in cluster.ids:
            await cluster.sites["a"].broker(store_id).door().do(sending(store_id))
        cluster.start("b")
        await cluster.until_spread("a", "b")
        for store_id in cluster.ids:
            (delivery,) = await receive(owner_of(cluster, store_id), store_id)
            assert delivery.message.value == store_id.encode()


async def test_a_claim_without_an_answer_is_made_good() -> None:
    async with cluster_of(2, "a") as cluster:
        (newcomer,) = cluster.start("b")
        newcomer.way.loses_answers = True
        await eventually_async(lambda: _claimed(cluster, "b"), "a claim by b")
        newcomer.way.loses_answers = False
        await cluster.until_spread("a", "b")


async def test_one_whose_claim_hangs_lives_on_and_takes_the_other_stores_of_the_dead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster_of(4, "a", "b") as cluster:
        dead, living = cluster.sites["b"], cluster.sites["a"]
        hung, free = sorted(dead.node.tenures)
        freed = next(holding.id for holding in cluster.seen().holdings if holding.number == free)
        let_go = living.way.hanging[hung] = threading.Event()
        dead.die()
        await eventually_async(lambda: _waits(living, hung), "a claim that hangs")
        await eventually_async(lambda: _owns(living, freed), "the other store of the dead")
        (newcomer,) = cluster.start("c")  # who would take its stores
        newcomer.way.hanging = living.way.hanging
        before = living.node.membership.me.beat
        await eventually_async(lambda: _has_beaten(living, before + 2 * LEASE_MS // TICK_MS), "beats for two leases")
        assert newcomer.node.alive("a")
        assert "was taken by another broker" not in caplog.text
        assert living.node.trouble == ""
        let_go.set()
        await cluster.until_spread("a", "c")


async def _waits(site: Site, number: int) -> bool:
    return number in site.way.waiting


async def _owns(site: Site, store_id: str) -> bool:
    return store_id in site.stores()


async def _has_beaten(site: Site, times: int) -> bool:
    return site.node.membership.me.beat >= times


async def _claimed(cluster: Cluster, name: str) -> bool:
    return any(holding.owner == name for holding in cluster.seen().holdings)


async def test_the_stores_of_one_process_do_not_meet() -> None:
    """Each has its topics, its groups, its metrics."""
    async with cluster_of(2, "a") as cluster:
        first, second = sorted(cluster.ids)
        site = cluster.sites["a"]
        await site.broker(first).door().do(sending("one"))
        assert [view.name for view in (await site.broker(first).door().ends(None, None, 0))[0]] == ["orders"]
        assert (await site.broker(second).door().ends(None, None, 0))[0] == []
        assert b"tallystick_committed_total 0.0" in await site.broker(second).door().metrics()

"""Several brokers: new transactions find a healthy one, uncertain ones never leave their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from client_support import Bank, messages_in, pay, values_in

import tallystick
from brokers import BrokerProcess, running_broker
from cutting_proxy import LossyProxy, lossy_proxy
from eventually import eventually
from tallystick import AsyncClient, Client, Message, errors, outgoing
from tallystick.client.connection.peer import BrokerPeer
from tallystick.core.ids import store_of_gid

pytestmark = pytest.mark.fault

QUICK = {"check_after": "500ms", "check_interval": "300ms"}


@pytest.fixture
def pair() -> Iterator[list[BrokerProcess]]:
    with running_broker(**QUICK) as one, running_broker(**QUICK) as other:
        yield [one, other]


def urls(brokers: list[BrokerProcess]) -> list[str]:
    return [broker.url for broker in brokers]


def preferred(ts: Client) -> str:
    """The address that new transactions of this client go to now."""
    assert ts._core.latest is not None
    return ts._core.latest.brokers.for_new()[0].address


def order(ts: Client, brokers: list[BrokerProcess]) -> tuple[BrokerProcess, BrokerProcess]:
    """The broker that this client prefers, and the other one."""
    ts.info()
    first = next(broker for broker in brokers if broker.url == preferred(ts))
    return first, next(broker for broker in brokers if broker is not first)


def everything(brokers: list[BrokerProcess], topic: str) -> list[Any]:
    return sorted(value for broker in brokers for value in values_in(broker.url, topic))


def test_addresses_may_be_a_list_or_have_commas(pair: list[BrokerProcess], topic: str) -> None:
    for given in (urls(pair), ",".join(urls(pair)), f" {pair[0].url}/ , {pair[1].url},"):
        with Client(given) as ts:
            assert len(ts._core.settings.addresses) == 2
    for wrong in ("", [], "ftp://host", "http://"):
        with pytest.raises(errors.InvalidRequest, match="address"):
            Client(wrong)


@pytest.mark.parametrize("mode", ["check-back", "outbox"])
def test_new_transactions_go_to_a_broker_that_is_there(
    pair: list[BrokerProcess], bank: Bank, topic: str, group: str, mode: str
) -> None:
    with Client(urls(pair), group=group, timeout=4, commit_wait=0.2, wait=True) as ts:
        pay(ts, bank, topic, 0, mode=mode)
        first, second = order(ts, pair)
        assert values_in(first.url, topic) == [0]
        first.kill()
        began_down = []
        for number in range(1, 6):
            try:
                pay(ts, bank, topic, number, mode=mode)
            except errors.BrokerUnavailable:
                began_down.append(number)
        assert began_down == []
        first.restart()
        eventually(lambda: everything(pair, topic) == list(range(6)))
        eventually(lambda: preferred(ts) == first.url)
        pay(ts, bank, topic, 6, mode=mode)
        assert 6 in values_in(first.url, topic)
    assert len(bank.notes()) == 7
    assert set(values_in(second.url, topic)) <= set(range(1, 6))


def test_a_gid_names_its_store_and_is_found_there(pair: list[BrokerProcess], topic: str, group: str) -> None:
    with Client(urls(pair), group=group, wait=True) as ts:
        stores = {broker.url: ts.info(broker=broker.url).store for broker in pair}
        gids = {url: f"{store}-{'0' * 31}" for url, store in stores.items()}
        for url, gid in gids.items():
            ts.prepare(gid, [outgoing(topic, [url])])
            ts.commit(gid)
    with Client(urls(pair)[::-1]) as fresh:
        for url, gid in gids.items():
            assert fresh.outcome(gid) == "committed"
            assert values_in(url, topic) == [[url]]
            assert store_of_gid(gid) == stores[url]


def test_an_operation_of_a_dead_broker_fails_rather_than_going_elsewhere(
    pair: list[BrokerProcess], topic: str, group: str
) -> None:
    with Client(urls(pair), group=group, timeout=1, wait=True) as ts:
        ts.info()
        gid = ts.new_gid()
        ts.prepare(gid, [outgoing(topic, 1)])
        first, second = order(ts, pair)
        first.kill()
        with pytest.raises(errors.BrokerUnavailable):
            ts.commit(gid)
        with Client(second.url) as other:
            assert other.outcome(gid) is None
        first.restart()
        eventually(lambda: ts.commit(gid) in (True, False) and True, ignoring=(errors.BrokerUnreachable,))
    assert values_in(first.url, topic) == [1]
    assert values_in(second.url, topic) == []


def test_an_uncertain_prepare_starts_over_elsewhere_under_another_gid(any_bank: Bank, topic: str, group: str) -> None:
    bank = any_bank
    with running_broker(**QUICK) as one, running_broker(**QUICK) as other:
        proxies: list[LossyProxy] = []
        with lossy_proxy(one.port) as first, lossy_proxy(other.port) as second:
            proxies = [first, second]
            with Client([first.url, second.url], group=group, timeout=3, wait=True) as ts:
                ts.info()
                lossy = next(proxy for proxy in proxies if proxy.url == preferred(ts))
                lossy.losing, lossy.lose_at_most = b"\xa7prepare", 1
                pay(ts, bank, topic, 1)
                assert lossy.cut == 1
                left, right = values_in(one.url, topic), values_in(other.url, topic)
                assert sorted([left, right]) == [[], [1]]
                # The mark went along: a check-back of what was left behind finds nothing that was committed.
                (message,) = [*messages_in(one.url, topic), *messages_in(other.url, topic)]
                marks = bank.rows("select gid from tallystick_barrier where op = 'msg' and reason = 'msg'")
                assert marks == [(message.gid,)]
                # What was left behind is rolled back, and does not wait for a check-back.
                eventually(lambda: ts.info(broker=lossy.url).oldest_pending_at is None)
    assert bank.notes() == ["paid"]


def test_a_gid_that_was_read_binds_the_transaction(
    pair: list[BrokerProcess], bank: Bank, topic: str, group: str
) -> None:
    with Client(urls(pair), group=group, timeout=1, wait=True) as ts:
        first, second = order(ts, pair)
        first.kill()
        with pytest.raises(errors.BrokerUnavailable):
            _pay_and_read_gid(ts, bank, topic)
    assert bank.notes() == []
    assert messages_in(second.url, topic) == []


def _pay_and_read_gid(ts: Client, bank: Bank, topic: str) -> None:
    with bank.connection() as connection, ts.transaction(connection) as tx:
        bank.note(connection, tx.gid)
        tx.send(topic, 1)


def test_a_message_with_the_users_own_gid_meets_the_same_broker_again(pair: list[BrokerProcess], topic: str) -> None:
    gids = [f"order-{number}" for number in range(20)]
    for addresses in (urls(pair), urls(pair)[::-1]):
        with Client(addresses) as ts:
            sent = [ts.send(topic, [gid], gid=gid) for gid in gids]
    assert all(one.duplicate for one in sent)
    assert everything(pair, topic) == sorted([gid] for gid in gids)
    assert values_in(pair[0].url, topic)
    assert values_in(pair[1].url, topic)


@pytest.mark.parametrize("level", [1, 2])
def test_confirmed_messages_survive_a_broker(pair: list[BrokerProcess], topic: str, level: Any) -> None:
    with Client(urls(pair), timeout=4) as ts:
        first, second = order(ts, pair)
        ts.send(topic, 0, level=level)
        first.kill()
        for number in range(1, 4):
            ts.send(topic, number, level=level)
    assert values_in(second.url, topic) == [1, 2, 3]


def test_level_2_stays_with_a_broker_that_may_have_the_message(topic: str) -> None:
    """A lost answer is asked for again at the same broker; elsewhere it would make a second message."""
    with running_broker() as one, running_broker() as other:
        with lossy_proxy(one.port) as first, lossy_proxy(other.port) as second, Client([first.url, second.url]) as ts:
            for proxy in (first, second):
                proxy.losing, proxy.lose_at_most = b"\xa4send", 1
            assert ts.send(topic, 1).duplicate
        assert everything([one, other], topic) == [1]


def test_a_subscription_listens_to_all_brokers(pair: list[BrokerProcess], bank: Bank, topic: str, group: str) -> None:
    for number, broker in enumerate(pair):
        with Client(broker.url) as ts:
            ts.send_many([outgoing(topic, f"{number}-{turn}") for turn in range(5)])
    for by in ("inbox", "offset"):
        bank.run("delete from ledger")
        with Client(urls(pair)) as ts:

            def handle(message: Message, connection: Any) -> None:
                bank.note(connection, message.text)

            ts.subscribe(topic, group=f"{group}-{by}", exactly_once=bank.open, by=by)(handle)  # type: ignore[arg-type]
            ts.start()
            eventually(lambda: len(bank.notes()) >= 10)
            ts.stop()
        assert bank.notes() == [f"{number}-{turn}" for number in range(2) for turn in range(5)]


async def test_a_dead_broker_does_not_hold_up_the_others(pair: list[BrokerProcess], topic: str) -> None:
    async with AsyncClient(urls(pair), timeout=5) as ts:
        brokers: list[BrokerPeer] = list(ts._core.runtime().brokers)
        dead = next(broker for broker in pair if broker.url == brokers[0].address)
        dead.kill()
        sent = await asyncio.gather(*(ts.send(topic, number) for number in range(200)))
        assert len(sent) == 200
        assert not brokers[0].healthy
        dead.restart()
        for _ in range(200):
            if brokers[0].healthy:
                break
            await asyncio.sleep(0.05)
        assert brokers[0].healthy
    assert everything(pair, topic) == list(range(200))


def test_members_spread_over_the_brokers(pair: list[BrokerProcess]) -> None:
    found = set()
    for number in range(20):
        with tallystick.Client(urls(pair), member=f"member-{number}") as ts:
            ts.info()
            found.add(preferred(ts))
    assert found == set(urls(pair))

"""A client on a cluster whose brokers die, leave, pause, join, or cannot be reached from here: it goes on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from client_support import Bank, messages_in

import tallystick
from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess, running_broker
from eventually import eventually, eventually_async, eventually_equal
from servers import Server
from shared_stores import url_of
from tallystick.client.connection.following import StorePeer
from tallystick.core.errors import TallystickError
from tallystick.core.placing import store_for
from tallystick.local import free_port

pytestmark = pytest.mark.postgresql

QUICK = {"check_after": "500ms", "check_interval": "300ms", "redelivery_first": "100ms", "lease": "1s"}
PATIENT = 60.0
"""Of a client whose operations are never to fail in these tests, however busy the machine is."""
KEYS = [f"key-{number}" for number in range(16)]
SENDERS = 4
PAUSE = 0.002


@pytest.fixture
def cluster(postgres: Server) -> Iterator[BrokerCluster]:
    with running_cluster(url_of(postgres, postgres.new_database()), brokers=2, stores=4, **QUICK) as running:
        yield running


def killed(broker: BrokerProcess) -> None:
    broker.kill()


def terminated(broker: BrokerProcess) -> None:
    broker.terminate()


def paused(broker: BrokerProcess) -> None:
    broker.process.send_signal(signal.SIGSTOP)


class Load:
    """Threads in blocks and tasks that send, each key in order, until they are stopped; what was acknowledged."""

    def __init__(self, ts: tallystick.Client, bank: Bank, topic: str) -> None:
        self._ts, self._bank, self._topic = ts, bank, topic
        self.acknowledged: dict[str, list[str]] = {key: [] for key in KEYS}  # gids, by key
        self.failures: list[Exception] = []
        self.longest = 0.0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(KEYS[n::SENDERS], n % 2 == 0)) for n in range(SENDERS)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def goes_on(self) -> None:
        """Every key is acknowledged some more times."""
        before = {key: len(gids) for key, gids in self.acknowledged.items()}
        eventually(lambda: self.failures or all(len(self.acknowledged[key]) > before[key] + 3 for key in KEYS), "more")
        assert not self.failures

    def _send(self, keys: list[str], in_blocks: bool) -> None:
        with contextlib.ExitStack() as stack:
            conn = stack.enter_context(self._bank.connection())
            for number in itertools.count():
                for key in keys:
                    if self._stop.wait(PAUSE):
                        return
                    began = time.monotonic()
                    try:
                        gid = self._block(conn, key, number) if in_blocks else self._once(key, number)
                    except TallystickError as failure:
                        self.failures.append(failure)
                        return
                    self.longest = max(self.longest, time.monotonic() - began)
                    self.acknowledged[key].append(gid)

    def _block(self, conn: object, key: str, number: int) -> str:
        with self._ts.transaction(conn) as tx:
            self._bank.note(conn, f"{key} {number}")
            tx.send(self._topic, number, key=key)
        return tx.gid

    def _once(self, key: str, number: int) -> str:
        return self._ts.send(self._topic, number, key=key).gid or ""


def all_messages(ts: tallystick.Client, broker: BrokerProcess, topic: str) -> list[tallystick.Message]:
    """Every visible message of a topic, as one broker shows all queues of the cluster."""
    found = []
    for queue in range(ts.topic(topic, broker=broker.url).queues):
        offset = 0
        while (fetched := ts.fetch(topic, queue, offset, broker=broker.url)).messages:
            found += fetched.messages
            offset = fetched.next
    return found


@pytest.mark.parametrize("end", [killed, pytest.param(terminated, marks=pytest.mark.full)])
def test_what_was_acknowledged_is_there_once_and_in_order_after_an_owner_has_gone(
    cluster: BrokerCluster, bank: Bank, topic: str, group: str, end: Callable[[BrokerProcess], None]
) -> None:
    with tallystick.Client(cluster.urls, group=group, timeout=PATIENT) as ts:
        ts.create_topic(topic)
        with Load(ts, bank, topic) as load:
            load.goes_on()
            gone, stays = cluster.brokers
            end(gone)
            load.goes_on()
        print(f"the longest wait was {load.longest:.2f} s")
        wanted = {gid for gids in load.acknowledged.values() for gid in gids}
        eventually_equal(lambda: {message.gid for message in all_messages(ts, stays, topic)}, wanted)
        found = all_messages(ts, stays, topic)
        assert Counter(message.gid for message in found) == Counter(wanted)
        for key, gids in load.acknowledged.items():
            assert [message.gid for message in found if message.key == key] == gids
        last = [gid for gids in load.acknowledged.values() for gid in gids[-5:]]
        assert {ts.outcome(gid) for gid in last} == {"committed"}


@pytest.mark.full
@pytest.mark.parametrize("by", ["inbox", "offset"])
@pytest.mark.parametrize("end", [killed, terminated, paused])
def test_a_consumer_follows_its_stores(
    cluster: BrokerCluster, bank: Bank, topic: str, group: str, by: str, end: Callable[[BrokerProcess], None]
) -> None:
    with tallystick.Client(cluster.urls, group=group, timeout=PATIENT) as ts:
        ts.create_topic(topic)

        @ts.subscribe(topic, group=group, exactly_once=bank.open, by=by, invisible=5)  # type: ignore[arg-type]
        def note(message: tallystick.Message, conn: object) -> None:
            bank.note(conn, message.text.strip('"'))

        ts.start()
        wanted = sorted(f"{key} {turn}" for key in KEYS for turn in ("before", "after"))
        for key in KEYS:
            ts.send(topic, f"{key} before", key=key)
        eventually(lambda: len(bank.notes()) == len(KEYS), "what was sent before")
        end(cluster.brokers[0])
        try:
            for key in KEYS:
                ts.send(topic, f"{key} after", key=key)
            eventually_equal(bank.notes, wanted)
        finally:
            cluster.brokers[0].process.send_signal(signal.SIGCONT)


@pytest.mark.full
def test_a_check_back_of_the_next_owner_is_answered(cluster: BrokerCluster, bank: Bank, topic: str, group: str) -> None:
    with tallystick.Client(cluster.urls, group=group, database=bank.open, timeout=PATIENT) as ts:
        source = ts._call(ts._core.given_source) or ""
        gids = [ts.new_gid(key=key) for key in KEYS]
        for gid in gids:
            ts.prepare(gid, [tallystick.outgoing(topic, gid)], source=source, check_after=2)
        cluster.brokers[0].kill()
        eventually(lambda: {ts.outcome(gid) for gid in gids} == {"rolled_back"}, "every check answered")


@pytest.mark.full
async def test_a_paused_owner_is_left_with_what_waits_for_it(cluster: BrokerCluster, topic: str) -> None:
    async with tallystick.AsyncClient(cluster.urls, timeout=PATIENT) as ts:
        for key in KEYS:
            await ts.send(topic, 1, key=key)
        owner = cluster.brokers[0]
        paused(owner)
        try:
            await asyncio.gather(*(ts.send(topic, 2, key=key) for key in KEYS))
        finally:
            owner.process.send_signal(signal.SIGCONT)
        # What it was asked before it slept is answered or refused by now, and stored once in any case.
        assert await _values(ts, cluster, topic) == Counter({1: len(KEYS), 2: len(KEYS)})


async def _values(ts: tallystick.AsyncClient, cluster: BrokerCluster, topic: str) -> Counter[int]:
    urls = [f"{cluster.brokers[1].url}/stores/{store['id']}" for store in cluster.view(cluster.brokers[1])["stores"]]
    found = await asyncio.gather(*(asyncio.to_thread(messages_in, url, topic) for url in urls))
    return Counter(message.json() for messages in found for message in messages)


def test_brokers_come_and_go_and_none_of_those_given_is_left(postgres: Server, topic: str) -> None:
    url = url_of(postgres, postgres.new_database())
    with running_cluster(url, brokers=1, stores=2, **QUICK) as cluster:
        first = cluster.brokers[0]
        settings = {"store": url, "allow_weak_durability": True, **QUICK}
        with tallystick.Client(first.url, timeout=PATIENT) as ts, running_broker(**settings) as second:
            ts.send(topic, 1, key="a")
            cluster.brokers.append(second)
            cluster.wait_until_spread()
            stores = [peer for peer in ts._core.latest.brokers if isinstance(peer, StorePeer)]  # type: ignore[union-attr]
            owners = cluster.owners()
            eventually(
                lambda: all(peer.way == f"{owners[peer.store or '']}/stores/{peer.store}" for peer in stores),
                "the map as it is now, without a failure",
            )
            first.stop()
            for key in KEYS:
                ts.send(topic, 2, key=key)
            assert {peer.way.partition("/stores/")[0] for peer in stores} == {second.url}
            assert ts.topic(topic).queues > 0  # all stores together, too, are asked elsewhere now


_KNOWS_THE_NAME = """
import tallystick.core.addresses as addresses
outside = addresses.broker_address
def inside(text):
    return outside(text.replace("inside.invalid", "127.0.0.1"))
addresses.broker_address = inside
"""


def test_an_owner_that_cannot_be_reached_from_here_is_reached_through_another(postgres: Server, topic: str) -> None:
    """The second broker goes by a name that only the first can resolve."""
    port = free_port()
    settings = {"store": url_of(postgres, postgres.new_database()), "allow_weak_durability": True, **QUICK}
    with (
        running_broker(prelude=_KNOWS_THE_NAME, stores=2, **settings) as first,
        running_broker(port=port, stores=2, advertise=f"http://inside.invalid:{port}", **settings),
        tallystick.Client(first.url, timeout=PATIENT) as ts,
    ):
        cluster = BrokerCluster([first], 2)
        hidden = eventually(
            lambda: [store for store, owner in cluster.owners().items() if "inside.invalid" in owner], "two owners"
        )
        key = next(key for key in KEYS if store_for(key, cluster.owners()) in hidden)
        for number in range(5):
            ts.send(topic, number, key=key)
        assert [message.json() for message in messages_in(f"{first.url}/stores/{hidden[0]}", topic)] == list(range(5))


def test_a_client_that_finds_nobody_at_first_goes_on_when_a_broker_is_there(
    postgres: Server, bank: Bank, topic: str, group: str
) -> None:
    url = url_of(postgres, postgres.new_database())
    port = free_port()
    with tallystick.Client(f"http://127.0.0.1:{port}", group=group, timeout=PATIENT) as ts:

        @ts.subscribe(topic, group=group, exactly_once=bank.open)
        def note(message: tallystick.Message, conn: object) -> None:
            bank.note(conn, message.text)

        ts.start()
        sending = threading.Thread(target=lambda: ts.send(topic, 1))
        sending.start()
        with running_cluster(url, brokers=1, stores=2, port=port, **QUICK):
            sending.join()
            ts.send(topic, 2, key="a")
            eventually_equal(bank.notes, ["1", "2"])
            assert ts._core.latest is not None
            assert ts._core.latest.brokers.cluster is not None


async def test_a_client_is_closed_in_time_while_its_cluster_is_away(cluster: BrokerCluster, topic: str) -> None:
    ts = tallystick.AsyncClient(cluster.urls, timeout=PATIENT)
    await ts.send(topic, 1, key="a")
    for broker in cluster.brokers:
        broker.kill()
    sending = asyncio.ensure_future(ts.send(topic, 2, key="a"))
    stores = list(ts._core.runtime().brokers)

    async def noticed() -> bool:
        return not all(peer.healthy for peer in stores)

    await eventually_async(noticed, "somebody to notice")
    await ts.close(timeout=0.5)
    with pytest.raises(tallystick.errors.BrokerUnavailable, match="closed"):
        await sending


def test_blocks_fail_at_once_while_all_brokers_of_a_cluster_are_away(
    cluster: BrokerCluster, bank: Bank, topic: str, group: str
) -> None:
    with tallystick.Client(cluster.urls, group=group, timeout=PATIENT, database=bank.open) as ts:

        def block() -> str:
            with bank.connection() as conn, ts.transaction(conn) as tx:
                tx.send(topic, 1, key="a")
            return tx.gid

        block()
        for broker in cluster.brokers:
            broker.kill()
        began = time.monotonic()
        for _ in range(5):
            with pytest.raises(tallystick.BrokerUnavailable):
                block()
        assert time.monotonic() - began < PATIENT / 2
        for broker in cluster.brokers:
            broker.restart()
        eventually(block, "a block that works", ignoring=(tallystick.BrokerUnavailable,))
        eventually(lambda: ts.stats.unavailable_since == {})

"""A client on a cluster: its places are the stores, each reached at its owner, and what has a key stays together."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from client_support import Bank, messages_in, pay, values_in

import tallystick
from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess
from cutting_proxy import CuttingProxy
from eventually import eventually, eventually_async, eventually_equal
from keeper import doorkeeper
from servers import Server
from shared_stores import url_of
from tallystick.client.connection.brokers import Brokers
from tallystick.client.connection.following import StorePeer
from tallystick.client.connection.views import Views
from tallystick.core.errors import Forbidden, InvalidRequest, Unauthenticated
from tallystick.core.ids import store_of_gid
from tallystick.core.ops import Position
from tallystick.core.placing import store_for

pytestmark = pytest.mark.postgresql

QUICK = {"check_after": "500ms", "check_interval": "300ms", "redelivery_first": "100ms"}
STORES = 4
KEYS = [f"key-{number}" for number in range(64)]  # enough for every store to have some


@pytest.fixture(scope="module")
def cluster(postgres: Server) -> Iterator[BrokerCluster]:
    with running_cluster(url_of(postgres, postgres.new_database()), brokers=2, stores=STORES, **QUICK) as running:
        yield running


@pytest.fixture
def made(cluster: BrokerCluster, topic: str) -> str:
    """A topic that all stores have, so that all queues of it can be read."""
    with tallystick.Client(cluster.urls) as ts:
        ts.create_topic(topic)
    return topic


def brokers_of(ts: tallystick.Client) -> Brokers:
    return ts._producer().connection.brokers


def stored(cluster: BrokerCluster, topic: str) -> list[tallystick.Message]:
    """Every visible message of a topic, store by store: each says which one it is in."""
    url = cluster.brokers[0].url
    return [message for store in store_ids(cluster) for message in messages_in(f"{url}/stores/{store}", topic)]


def store_ids(cluster: BrokerCluster) -> list[str]:
    return [store["id"] for store in cluster.view()["stores"]]


def test_each_store_is_reached_straight_at_its_owner(cluster: BrokerCluster, topic: str) -> None:
    with tallystick.Client(cluster.brokers[0].url) as ts:
        for key in KEYS:
            ts.send(topic, key, key=key)
        ways = {peer.store: peer.way for peer in brokers_of(ts) if isinstance(peer, StorePeer)}
    assert ways == {store: f"{owner}/stores/{store}" for store, owner in cluster.owners().items()}
    assert len({way.partition("/stores/")[0] for way in ways.values()}) == 2


@pytest.mark.parametrize("level", [0, 1, 2])
def test_messages_with_a_key_are_in_one_store_in_order(cluster: BrokerCluster, made: str, level: int) -> None:
    first, second = (tallystick.Client(broker.url) for broker in cluster.brokers)
    with first, second:
        for number in range(10):
            for key in KEYS:
                (first if level == 0 or number % 2 else second).send(made, number, key=key, level=level)  # type: ignore[arg-type]
    found = stored(cluster, made)
    assert len(found) == 10 * len(KEYS)
    for key in KEYS:
        mine = [message for message in found if message.key == key]
        assert {message.store for message in mine} == {store_for(key, store_ids(cluster))}
        assert [message.json() for message in mine] == list(range(10))


@pytest.mark.parametrize("mode", ["check-back", "outbox", "consumer-dedup"])
def test_a_block_goes_to_the_store_of_its_first_key(
    cluster: BrokerCluster, bank: Bank, made: str, group: str, mode: str
) -> None:
    with tallystick.Client(cluster.urls, group=group, wait=True) as ts, bank.connection() as conn:
        for key in KEYS:
            with ts.transaction(conn, mode=mode) as tx:  # type: ignore[arg-type]
                bank.note(conn, key)
                tx.send(made, key, key=key)
                tx.send(made, "beside", key="another")
            assert store_of_gid(tx.gid) == store_for(key, store_ids(cluster))
        stores = {peer.store for peer in brokers_of(ts)}
    assert stores == set(store_ids(cluster))
    seen = [message for message in stored(cluster, made) if message.header("ts-sign") in ("", "prepare")]
    assert len(seen) == 2 * len(KEYS)
    assert all(message.store == store_of_gid(message.gid.partition(":")[0]) for message in seen)


def test_a_block_without_a_key_is_taken_by_a_healthy_store(
    cluster: BrokerCluster, bank: Bank, made: str, group: str
) -> None:
    with tallystick.Client(cluster.urls, group=group) as ts:
        gids = [pay(ts, bank, made, number) for number in range(5)]
        assert {store_of_gid(gid) for gid in gids} <= set(store_ids(cluster))
        assert [ts.outcome(gid) for gid in gids] == ["committed"] * 5
    assert values_in(cluster.urls, made) == list(range(5))


def test_a_gid_of_the_users_own_belongs_to_the_store_that_its_hash_names(
    cluster: BrokerCluster, bank: Bank, made: str, group: str
) -> None:
    with tallystick.Client(cluster.urls, group=group) as ts:
        gid = f"order-{made}"
        pay(ts, bank, made, 1, gid=gid)
        assert ts.send(made, 2, gid=f"{gid}-sent").duplicate is False
    with tallystick.Client(cluster.brokers[1].url) as other:
        assert other.outcome(gid) == "committed"
        assert other.send(made, 2, gid=f"{gid}-sent").duplicate is True
    where = {message.gid: message.store for message in stored(cluster, made)}
    assert where == {name: store_for(name, store_ids(cluster)) for name in (gid, f"{gid}-sent")}


def test_a_position_is_found_again_by_its_queue(cluster: BrokerCluster, topic: str) -> None:
    with tallystick.Client(cluster.urls) as ts:
        for key in KEYS:
            [at] = ts.send(topic, key, key=key).positions
            [message] = ts.fetch(topic, at.queue, at.offset, max=1).messages
            assert message.text.strip('"') == key


def test_a_delayed_message_has_no_queue_yet(cluster: BrokerCluster, topic: str) -> None:
    with tallystick.Client(cluster.urls) as ts:
        places = [ts.send(topic, key, key=key, delay=3_600).positions for key in KEYS]
    assert places == [[Position(topic, -1, -1)]] * len(KEYS)


def test_a_topic_is_one_thing_on_all_stores(cluster: BrokerCluster, topic: str) -> None:
    with tallystick.Client(cluster.brokers[1].url) as ts:
        assert ts.create_topic(topic, queues=2).queues == 2 * STORES
        for store in store_ids(cluster):
            assert ts.topic(topic, broker=f"{cluster.brokers[0].url}/stores/{store}").queues == 2


@pytest.mark.parametrize("by", ["inbox", "offset"])
def test_a_subscription_listens_to_every_store(
    cluster: BrokerCluster, bank: Bank, topic: str, group: str, by: str
) -> None:
    with tallystick.Client(cluster.urls, group=group) as ts:
        for key in KEYS:
            ts.send(topic, key, key=key)

        @ts.subscribe(topic, group=group, exactly_once=bank.open, by=by)  # type: ignore[arg-type]
        def note(message: tallystick.Message, conn: object) -> None:
            bank.note(conn, f"{message.store} {message.key}")

        ts.start()
        ids = store_ids(cluster)
        eventually_equal(bank.notes, sorted(f"{store_for(key, ids)} {key}" for key in KEYS))


def test_messages_are_received_and_settled_by_hand(cluster: BrokerCluster, topic: str, group: str) -> None:
    with tallystick.Client(cluster.urls) as ts:
        for key in KEYS:
            ts.send(topic, key, key=key)
        seen: set[str] = set()
        while len(seen) < len(KEYS):
            messages = ts.receive(topic, group, wait=5)
            seen |= {message.key or "" for message in messages}
            ts.ack(group, messages)
        assert ts.receive(topic, group) == []


def test_a_check_back_of_any_store_is_answered(cluster: BrokerCluster, bank: Bank, topic: str, group: str) -> None:
    with tallystick.Client(cluster.urls, group=group, database=bank.open) as ts:
        source = ts._call(ts._core.given_source)
        gids = {key: ts.new_gid(key=key) for key in KEYS}
        for key, gid in gids.items():
            ts.prepare(gid, [tallystick.outgoing(topic, key, key=key)], source=source or "")
        assert {store_of_gid(gid) for gid in gids.values()} == set(store_ids(cluster))
        eventually(lambda: all(ts.outcome(gid) == "rolled_back" for gid in gids.values()), "every check answered")


def test_a_gid_for_a_key_names_its_store_before_the_first_request(cluster: BrokerCluster) -> None:
    with tallystick.Client(cluster.urls) as ts:
        gids = {key: ts.new_gid(key=key) for key in KEYS}
    stores = store_ids(cluster)
    assert {key: store_of_gid(gid) for key, gid in gids.items()} == {key: store_for(key, stores) for key in KEYS}


def test_a_gid_for_a_key_is_made_in_time_where_no_broker_answers() -> None:
    with tallystick.Client("http://127.0.0.1:9", timeout=1.0) as ts:
        assert ts.new_gid(key="key")


async def test_a_gid_for_a_key_names_its_store_inside_async_with(cluster: BrokerCluster) -> None:
    stores = store_ids(cluster)
    async with tallystick.AsyncClient(cluster.urls) as ts:
        assert [store_of_gid(ts.new_gid(key=key)) for key in KEYS] == [store_for(key, stores) for key in KEYS]


async def test_the_first_gid_for_a_key_begins_to_look_for_the_brokers(cluster: BrokerCluster) -> None:
    ts = tallystick.AsyncClient(cluster.urls)
    ts.new_gid(key="key")
    wanted = store_for("key", store_ids(cluster))

    async def named() -> bool:
        return store_of_gid(ts.new_gid(key="key")) == wanted

    await eventually_async(named, "the gid names the store")
    await ts.close()


async def test_an_async_client_may_be_used_without_a_word_before(cluster: BrokerCluster, topic: str) -> None:
    ts = tallystick.AsyncClient(cluster.urls)
    sent = await asyncio.gather(*(ts.send(topic, key, key=key) for key in KEYS))
    await ts.close()
    ids = store_ids(cluster)
    assert [store_of_gid(one.gid or "") for one in sent] == [store_for(key, ids) for key in KEYS]


def test_a_forked_child_learns_the_map_for_itself(cluster: BrokerCluster, made: str) -> None:
    with tallystick.Client(cluster.urls) as ts:
        ts.send(made, 1, key="a")
        child = os.fork()
        if child == 0:
            try:
                ts.send(made, 2, key="a")
                ts.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ts.send(made, 3, key="a")
    assert [message.json() for message in stored(cluster, made)] == [1, 2, 3]


# A broker of its own


def test_a_broker_of_its_own_is_asked_once_what_it_is(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    asked: list[bytes] = []

    def note(request: bytes) -> str:
        asked.append(request.partition(b" HTTP/")[0])
        return "no"

    proxy = CuttingProxy(broker.port, note)  # type: ignore[arg-type]
    try:
        with tallystick.Client(proxy.url, group=group) as ts:
            for number in range(5):
                pay(ts, bank, topic, number)
            brokers = brokers_of(ts)
            assert brokers.cluster is None
            assert [peer.address for peer in brokers] == [proxy.url]
            assert brokers.only is not None
    finally:
        proxy.close()
    assert asked.count(b"GET /v1/cluster") == 1
    assert asked.count(b"GET /v1/info") == 1


class _Older(BaseHTTPRequestHandler):
    """A broker from before there were clusters, as far as it is asked here."""

    def do_GET(self) -> None:
        body = b'{"title":"Not Found","status":404,"detail":"nothing is there","code":"not_found"}'
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


async def test_a_broker_that_knows_no_clusters_is_one_of_its_own() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Older) as older:
        thread = threading.Thread(target=older.serve_forever)
        thread.start()
        views = Views([f"http://127.0.0.1:{older.server_port}"])
        try:
            view = await views.ask()
        finally:
            views.close()
            older.shutdown()
            thread.join()
    assert (view.stores, view.brokers) == ([], [])


async def test_a_refusal_does_not_say_that_there_is_no_cluster() -> None:
    with doorkeeper() as keeper:
        views = Views([keeper.url])
        keeper.judge = lambda path, body: 404
        assert not (await views.ask()).brokers  # one from before there were clusters
        for status, kind in ((400, InvalidRequest), (401, Unauthenticated), (403, Forbidden)):
            keeper.judge = lambda path, body, status=status: status  # type: ignore[misc]
            with pytest.raises(kind):
                await views.ask()
        views.close()


def test_offsets_are_those_of_the_stores_although_the_first_look_was_refused(
    cluster: BrokerCluster, made: str, bank: Bank
) -> None:
    """A client that took the cluster for a broker of its own would number the queues of all stores as one's."""
    got: list[bytes] = []
    with (
        doorkeeper(cluster.brokers[0].url) as keeper,
        tallystick.Client(cluster.urls) as writing,
    ):
        keeper.judge = lambda path, body: 400 if path == "/v1/cluster" else 0
        with tallystick.Client(keeper.url) as client:
            client.subscribe(made, group="offsets", exactly_once=bank.open, by="offset")(
                lambda message, connection: got.append(message.value)
            )
            client.start()
            eventually(lambda: keeper.refused.count("/v1/cluster") >= 2)
            keeper.judge = lambda path, body: 0
            for number in range(32):
                writing.send(made, str(number).encode(), key=str(number))
            eventually(lambda: len(got) >= 32)
            assert sorted(got) == sorted(str(number).encode() for number in range(32))
            assert brokers_of(client).cluster is not None
    stores = {row[0] for row in bank.rows("select distinct store from tallystick_offset")}
    assert stores == set(store_ids(cluster))

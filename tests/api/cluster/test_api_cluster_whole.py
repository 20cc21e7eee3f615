"""A cluster of several stores is used like one broker: topics, queues, receipts, lists and gids are of the whole."""

from __future__ import annotations

import io
import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from broker_clusters import BrokerCluster, running_cluster
from raw_client import Answer, RawClient
from servers import Server
from shared_stores import url_of
from tallystick.core.ids import store_of_gid
from tallystick.core.placing import store_for
from tallystick.core.wire import JSON

pytestmark = pytest.mark.postgresql
KEYS = [f"key-{number}" for number in range(20)]


class RoundRobin:
    """Asks another broker each time, as a plain load balancer would."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self._clients = [RawClient(broker.url) for broker in cluster.brokers]
        self._turns = itertools.cycle(self._clients)

    def json(self, method: str, path: str, content: Any = None) -> Any:
        return self.answer(method, path, content).json()

    def answer(self, method: str, path: str, content: Any = None) -> Answer:
        answer = next(self._turns).json(method, path, content)
        assert answer.status < 300, answer
        return answer

    def raw(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        return next(self._turns).request(method, path, body, headers)

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture(scope="module")
def cluster(postgres: Server) -> Iterator[BrokerCluster]:
    with running_cluster(url_of(postgres, postgres.new_database()), brokers=2, stores=3, lease="20s") as made:
        yield made


@pytest.fixture
def api(cluster: BrokerCluster) -> Iterator[RoundRobin]:
    made = RoundRobin(cluster)
    yield made
    made.close()


@pytest.fixture
def stores(cluster: BrokerCluster) -> list[str]:
    return [one["id"] for one in cluster.view()["stores"]]


def send_all(api: RoundRobin, topic: str) -> None:
    for key in KEYS:
        api.json("POST", "/v1/messages", {"messages": [{"topic": topic, "key": key, "value": key}]})


def test_a_topic_is_made_changed_and_deleted_as_one_thing(api: RoundRobin, stores: list[str]) -> None:
    assert api.json("PUT", "/v1/topics/one", {"queues": 2})["queues"] == 2 * len(stores)
    for store in stores:
        assert api.json("GET", f"/stores/{store}/v1/topics/one")["queues"] == 2
    api.json("PUT", "/v1/topics/one", {"retention_ms": 60_000})
    assert {api.json("GET", f"/stores/{store}/v1/topics/one")["retention_ms"] for store in stores} == {60_000}
    api.answer("DELETE", "/v1/topics/one")
    for store in stores:
        assert api.raw("GET", f"/stores/{store}/v1/topics/one", None, {}).status == 404


def at_once(cluster: BrokerCluster, *asked: tuple[str, str, Any]) -> list[Answer]:
    """Each asked of another broker, as nearly at the same moment as can be."""
    ready = threading.Barrier(len(asked))

    def ask(url: str, method: str, path: str, content: Any) -> Answer:
        with closing(RawClient(url)) as client:
            ready.wait()
            return client.json(method, path, content)

    with ThreadPoolExecutor(len(asked)) as pool:
        urls = itertools.cycle(broker.url for broker in cluster.brokers)
        return [each.result() for each in [pool.submit(ask, next(urls), *one) for one in asked]]


def test_two_who_change_a_topic_at_once_leave_the_same_everywhere(
    cluster: BrokerCluster, api: RoundRobin, stores: list[str]
) -> None:
    api.json("PUT", "/v1/topics/contested", {"queues": 1})
    for _ in range(40):
        changed = [{"retention_ms": 1_000_000}, {"retention_ms": 86_400_000}]
        answers = at_once(cluster, *(("PUT", "/v1/topics/contested", each) for each in changed))
        assert [answer.status for answer in answers] == [200, 200]
        kept = {api.json("GET", f"/stores/{store}/v1/topics/contested")["retention_ms"] for store in stores}
        assert len(kept) == 1, f"each store has the word of another: {kept}"


def test_a_topic_that_is_deleted_and_made_at_once_is_everywhere_or_nowhere(
    cluster: BrokerCluster, api: RoundRobin, stores: list[str]
) -> None:
    for _ in range(40):
        api.json("PUT", "/v1/topics/undecided", {"queues": 2})
        deleted, made = at_once(
            cluster, ("DELETE", "/v1/topics/undecided", None), ("PUT", "/v1/topics/undecided", {"queues": 2})
        )
        assert (deleted.status, made.status) == (204, 200)
        found = {api.raw("GET", f"/stores/{store}/v1/topics/undecided", None, {}).status for store in stores}
        assert len(found) == 1, f"on some stores only: {found}"


def test_two_who_change_a_call_topic_at_once_leave_the_same_everywhere(
    cluster: BrokerCluster, api: RoundRobin, stores: list[str]
) -> None:
    place, url = "/v1/call-topics/contested-calls/subscribers", "http://127.0.0.1:9/there"
    for _ in range(20):
        at_once(cluster, ("PUT", place, {"url": url}))
        deleted, made = at_once(cluster, ("DELETE", f"{place}?url={quote(url)}", None), ("PUT", place, {"url": url}))
        assert deleted.status == 204
        assert made.status < 300 or made.json()["code"] == "conflict", "there still, or there again"
        views = [api.json("GET", f"/stores/{store}/v1/call-topics/contested-calls") for store in stores]
        found = {str(sorted(one["url"] for one in view["subscribers"])) for view in views}
        assert len(found) == 1, f"each store has the word of another: {found}"


def test_messages_go_where_their_key_says_and_are_read_by_the_cluster_s_queues(
    api: RoundRobin, stores: list[str]
) -> None:
    api.json("PUT", "/v1/topics/keyed", {"queues": 2})
    send_all(api, "keyed")
    view = api.json("GET", "/v1/topics/keyed")
    found: dict[str, str] = {}
    for queue, end in enumerate(view["ends"]):
        page = api.json("GET", f"/v1/topics/keyed/queues/{queue}/messages")
        assert len(page["messages"]) == end
        for message in page["messages"]:
            assert message["queue"] == queue
            found[message["key"]] = stores[queue % len(stores)]
    assert found == {key: store_for(key, stores) for key in KEYS}


def test_a_sender_is_told_where_the_cluster_has_its_message(api: RoundRobin) -> None:
    for key in KEYS[:6]:
        sent = api.json("POST", "/v1/messages", {"messages": [{"topic": "told", "key": key, "value": key}]})
        (at,) = sent["positions"]
        page = api.json("GET", f"/v1/topics/told/queues/{at['queue']}/messages?offset={at['offset']}")
        assert page["messages"][0]["key"] == key


def test_a_delayed_message_has_no_queue_yet(api: RoundRobin) -> None:
    for key in KEYS[:6]:
        message = {"topic": "later", "key": key, "value": key, "delay_ms": 3_600_000}
        assert api.json("POST", "/v1/messages", {"messages": [message]})["positions"] == [
            {"topic": "later", "queue": -1, "offset": -1}
        ]


def test_a_topic_that_is_not_on_every_store_yet_is_read_and_reset_all_the_same(api: RoundRobin) -> None:
    api.json("POST", "/v1/messages", {"messages": [{"topic": "sparse", "key": "k", "value": "only"}]})
    view = api.json("GET", "/v1/topics/sparse")
    pages = [api.json("GET", f"/v1/topics/sparse/queues/{queue}/messages") for queue in range(view["queues"])]
    assert [one["value"] for page in pages for one in page["messages"]] == ["only"]
    request = {"topic": "sparse", "wait_ms": 2_000, "invisible_ms": 600_000}
    (delivery,) = api.json("POST", "/v1/groups/few/receive", request)["deliveries"]
    api.json("POST", "/v1/groups/few/ack", {"receipts": [delivery["receipt"]]})
    assert api.json("POST", "/v1/groups/few/reset", {"topic": "sparse", "to": "earliest"})["lag"] == 1


def test_places_in_queues_that_no_message_has_made_yet_are_at_their_start(api: RoundRobin) -> None:
    api.json("POST", "/v1/messages", {"messages": [{"topic": "young", "key": "k", "value": "only"}]})
    ends = api.json("GET", "/v1/topics/young")["ends"]
    assert sum(ends) == 1
    offsets = {str(queue): end for queue, end in enumerate(ends)}
    content = {"topic": "young", "offsets": offsets, "expected": dict.fromkeys(offsets, 0)}
    for _ in range(2):  # asked at either broker
        assert api.answer("PUT", "/v1/groups/early/offsets", {"topic": "young", "offsets": offsets}).status < 300
    empty = {queue: 0 for queue, end in offsets.items() if not end}
    assert api.answer("PUT", "/v1/groups/early/offsets", {"topic": "young", "offsets": empty}).status < 300
    view = api.json("GET", "/v1/groups/early/offsets?topic=young")
    assert {str(one["queue"]): one["offset"] for one in view["queues"]}.items() <= offsets.items()
    assert (
        api.json("POST", "/v1/groups/early/reset", {"topic": "young", "offsets": dict.fromkeys(offsets, 0)})["lag"] == 1
    )
    assert api.answer("PUT", "/v1/groups/early/offsets", content).status < 300
    assert api.answer("POST", "/v1/topics/young/trim", {"offsets": offsets}).status < 300


def test_queues_that_no_message_has_made_yet_have_no_other_place(api: RoundRobin) -> None:
    api.json("POST", "/v1/messages", {"messages": [{"topic": "younger", "key": "k", "value": "only"}]})
    ends = api.json("GET", "/v1/topics/younger")["ends"]
    store = next(queue for queue, end in enumerate(ends) if end) % 3
    beyond = {str(queue): 1 for queue in range(len(ends)) if queue % 3 != store}
    for offsets, code in ((beyond, "offset_out_of_range"), ({str(len(ends) + store + 1): 0}, "invalid_request")):
        for method, path in (("PUT", "/v1/groups/early/offsets"), ("POST", "/v1/groups/early/reset")):
            api.answer("PUT", "/v1/groups/early/offsets", {"topic": "younger", "offsets": {str(ends.index(1)): 0}})
            body = json.dumps({"topic": "younger", "offsets": offsets}).encode()
            assert api.raw(method, path, body, {"Content-Type": JSON}).json()["code"] == code
    unread = json.dumps({"topic": "younger", "offsets": beyond, "expected": dict.fromkeys(beyond, 0)}).encode()
    assert api.raw("PUT", "/v1/groups/early/offsets", unread, {"Content-Type": JSON}).status == 416
    nowhere = json.dumps({"topic": "never-made", "offsets": {"0": 0}}).encode()
    assert api.raw("PUT", "/v1/groups/early/offsets", nowhere, {"Content-Type": JSON}).status == 404


def test_one_wrong_operation_is_no_harm_to_those_beside_it(api: RoundRobin) -> None:
    assert api.json("POST", "/v1/batch", {"ops": []}) == {"results": []}
    good = [{"op": "send", "messages": [{"topic": "beside", "key": key, "value": "MQ=="}]} for key in KEYS]
    wrong = {"op": "prepare", "gid": "wrong", "group": "g", "messages": [], "check": {"via": "url"}}
    answer = api.raw("POST", "/v1/batch", json.dumps({"ops": [*good, wrong]}).encode(), {"Content-Type": JSON})
    results = answer.json()["results"]
    assert [result.get("error") for result in results] == [None] * len(good) + ["invalid_request"]


def test_arrow_reads_a_queue_of_the_cluster(api: RoundRobin) -> None:
    api.json("PUT", "/v1/topics/columns", {"queues": 1})
    send_all(api, "columns")
    values: set[bytes] = set()
    for queue in range(api.json("GET", "/v1/topics/columns")["queues"]):
        answer = api.raw(
            "GET",
            f"/v1/topics/columns/queues/{queue}/messages",
            None,
            {"Accept": "application/vnd.apache.arrow.stream"},
        )
        values |= set(pa.ipc.open_stream(io.BytesIO(answer.body)).read_all()["value"].to_pylist())
    assert values == {key.encode() for key in KEYS}


def test_a_group_gets_everything_once_and_settles_at_any_broker(api: RoundRobin) -> None:
    send_all(api, "leased")
    got: list[str] = []
    while True:
        request = {"topic": "leased", "max": 7, "wait_ms": 300, "invisible_ms": 600_000}
        deliveries = api.json("POST", "/v1/groups/workers/receive", request)["deliveries"]
        if not deliveries:
            break
        got += [one["message"]["value"] for one in deliveries]
        receipts = [one["receipt"] for one in deliveries]
        assert api.json("POST", "/v1/groups/workers/ack", {"receipts": receipts}) == {"stale": []}
        again = api.raw(
            "POST",
            "/v1/groups/workers/ack",
            b'{"receipts": ["%b"]}' % receipts[0].encode(),
            {"Content-Type": "application/json"},
        )
        assert (again.status, again.json()["stale"]) == (409, receipts[:1])
    assert sorted(got) == sorted(KEYS)
    (view,) = api.json("GET", "/v1/groups/workers")["groups"]
    assert view.get("lag", 0) == 0
    api.json("POST", "/v1/groups/workers/reset", {"topic": "leased", "to": "earliest"})
    (view,) = api.json("GET", "/v1/groups/workers")["groups"]
    assert view["lag"] == len(KEYS)


def test_a_receive_waits_for_messages_of_every_store(api: RoundRobin, cluster: BrokerCluster) -> None:
    api.json("PUT", "/v1/topics/late", {"queues": 1})
    request = {"topic": "late", "wait_ms": 60_000, "invisible_ms": 600_000}
    for key in KEYS[:3]:
        with RawClient(cluster.brokers[0].url) as client, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.json, "POST", "/v1/groups/g/receive", request)
            api.json("POST", "/v1/messages", {"messages": [{"topic": "late", "key": key, "value": key}]})
            assert [one["message"]["key"] for one in waiting.result(120).json()["deliveries"]] == [key]


def test_offsets_of_a_group_are_those_of_the_cluster_s_queues(api: RoundRobin, stores: list[str]) -> None:
    api.json("PUT", "/v1/topics/stored", {"queues": 2})
    send_all(api, "stored")
    ends = api.json("GET", "/v1/topics/stored")["ends"]
    offsets = {str(queue): end for queue, end in enumerate(ends)}
    api.json("PUT", "/v1/groups/readers/offsets", {"topic": "stored", "offsets": offsets})
    view = api.json("GET", "/v1/groups/readers/offsets?topic=stored")
    assert {str(one["queue"]): one["offset"] for one in view["queues"]} == offsets
    api.json("POST", "/v1/topics/stored/trim", {"offsets": offsets})
    assert api.json("GET", "/v1/topics/stored")["starts"] == ends
    assert api.json("GET", "/v1/topics/stored/offsets?timestamp=0")["offsets"] == ends


def test_transactions_lie_in_the_store_of_their_first_key_and_are_listed_together(
    api: RoundRobin, stores: list[str]
) -> None:
    check = {"after_ms": 3_600_000}
    made: dict[str, str] = {}
    for key in KEYS:
        content = {"group": "listed", "check": check, "messages": [{"topic": "t", "key": key, "value": 1}]}
        gid = api.json("POST", "/v1/transactions", content)["gid"]
        assert store_of_gid(gid) == store_for(key, stores)
        made[gid] = "prepared"
    for number in range(5):
        api.json("POST", "/v1/transactions", {"gid": f"own-{number}", "group": "listed", "check": check})
        made[f"own-{number}"] = "prepared"
    ops = [{"op": "commit" if at % 2 else "rollback", "gid": gid} for at, gid in enumerate(made)]
    results = api.json("POST", "/v1/batch", {"ops": [*ops, {"op": "commit", "gid": "never-made"}]})["results"]
    assert [result and result.get("error") for result in results] == [None] * len(ops) + ["not_found"]
    outcomes = {op["gid"]: "committed" if op["op"] == "commit" else "rolled_back" for op in ops}
    assert _listed(api, "/v1/transactions?group=listed&limit=3") == outcomes
    assert {gid: api.json("GET", f"/v1/transactions/{gid}")["state"] for gid in made} == outcomes
    assert _rows(api, "") == _rows_of_splits(api) == set(outcomes)


def _listed(api: RoundRobin, path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    after = ""
    while after is not None:
        page = api.json("GET", path + (f"&after={after}" if after else ""))
        for one in page["transactions"]:
            assert one["gid"] not in found
            found[one["gid"]] = one["state"]
        after = page["next"]
    return found


def _rows(api: RoundRobin, query: str) -> set[str]:
    found: set[str] = set()
    place: str | None = ""
    while place is not None:
        path = f"/v1/tables/transactions?limit=4&group=listed{query}" + (f"&after={place}" if place else "")
        answer = api.raw("GET", path, None, {})
        assert answer.status == 200, answer
        found |= set(pa.ipc.open_stream(io.BytesIO(answer.body)).read_all()["gid"].to_pylist())
        place = answer.headers.get("tallystick-next")
    return found


def _rows_of_splits(api: RoundRobin) -> set[str]:
    found: set[str] = set()
    for split in api.json("GET", "/v1/tables/transactions/splits?n=6")["splits"]:
        place: str | None = split["after"]
        while place is not None:
            path = f"/v1/tables/transactions?limit=4&group=listed&before={split['before']}&after={place}"
            answer = api.raw("GET", path, None, {})
            rows = set(pa.ipc.open_stream(io.BytesIO(answer.body)).read_all()["gid"].to_pylist())
            assert not rows & found
            found |= rows
            place = answer.headers.get("tallystick-next")
    return found


def test_a_batch_of_an_application_is_found_by_its_gid(api: RoundRobin, stores: list[str]) -> None:
    for number in range(6):
        gid = f"batch-{number}"
        api.json("POST", f"/v1/ledger/app-{number}/0", {"gid": gid})
        assert api.json("GET", f"/v1/transactions/{gid}")["state"] == "committed"
    assert api.raw("GET", "/v1/transactions/batch-none", None, {}).status == 404


def test_dtm_s_interface_is_that_of_the_whole(api: RoundRobin) -> None:
    base = "/api/dtmsvr"
    steps = {"trans_type": "msg", "steps": [{"action": "http://127.0.0.1:1/x"}], "payloads": ["{}"]}
    for number in range(6):
        trans = {"gid": f"dtm-{number}", "query_prepared": "http://127.0.0.1:1/q", **steps}
        assert api.json("POST", f"{base}/prepare", trans)["dtm_result"] == "SUCCESS"
        found = api.json("GET", f"{base}/query?gid=dtm-{number}")
        assert found["transaction"]["status"] == "prepared"
        assert api.json("POST", f"{base}/abort", trans)["dtm_result"] == "SUCCESS"
    listed, position = set(), ""
    while True:
        page = api.json("GET", f"{base}/all?limit=2&position={position}")
        listed |= {one["gid"] for one in page["transactions"]}
        position = page["next_position"]
        if not position:
            break
    assert {f"dtm-{number}" for number in range(6)} <= listed
    assert api.json("GET", f"{base}/subscribe?topic=all&url=http://127.0.0.1:1/s")["dtm_result"] == "SUCCESS"
    assert "all" in {one["k"] for one in api.json("GET", f"{base}/scanKV?cat=topics")["kv"]}


def test_metrics_name_the_store_of_each_number(api: RoundRobin, cluster: BrokerCluster) -> None:
    told = api.raw("GET", "/metrics", None, {}).body.decode()
    own = {store for store, url in cluster.owners().items()}
    named = {line.partition('store="')[2].partition('"')[0] for line in told.splitlines() if 'store="' in line}
    assert named
    assert named <= own
    assert "tallystick_cluster_brokers 2.0" in told


def test_what_is_counted_is_counted_in_all_stores(api: RoundRobin, cluster: BrokerCluster) -> None:
    before = api.json("GET", "/v1/info")["calls_waiting"]
    later = {"url": "http://127.0.0.1:9/later", "delay_ms": 3_600_000}
    for number in range(20):
        api.answer("POST", "/v1/messages", {"gid": f"later-{number}", "messages": [], "calls": [later]})
    found = [api.json("GET", f"/stores/{store['id']}/v1/info") for store in cluster.view()["stores"]]
    assert all(one["calls_waiting"] for one in found), "every store has some"
    for _ in cluster.brokers:
        assert api.json("GET", "/v1/info")["calls_waiting"] == before + 20

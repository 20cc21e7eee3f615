"""dtm's interfaces at a cluster of three: each route at every broker, for gids that belong to others as well."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any, NamedTuple

import pytest
from dtm_faces import BASE, SHORT, Face, HttpFace, JsonRpcFace, Looker, Outcome, msg, new_name

import busi_grpc
from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess
from busi import ERROR, Busi
from busi_grpc import busi_service
from dtm_grpc import GrpcClient, Refused
from eventually import eventually, eventually_equal
from raw_client import RawClient
from servers import Server
from shared_stores import url_of
from tallystick.api.dtm.grpc.messages import DtmBranchRequest, DtmRequest
from tallystick.core.ids import store_of_gid
from tallystick.core.placing import store_for

pytestmark = pytest.mark.postgresql

FAR = {"timeout_to_fail": 3_000, "retry_interval": 3_000}  # the next call of a branch that failed, in seconds


@pytest.fixture(scope="module")
def cluster(postgres: Server) -> Iterator[BrokerCluster]:
    url = url_of(postgres, postgres.new_database())
    settings: dict[str, Any] = {**SHORT, "call_retry_cap": "1h", "grpc": True, "lease": "20s"}
    with running_cluster(url, brokers=3, stores=3, **settings) as made:
        yield made


class GrpcFace:
    name = "grpc"

    def __init__(self, client: GrpcClient) -> None:
        self._client = client

    def new_gid(self) -> str:
        return self._client.new_gid()

    def prepare(self, trans: dict[str, Any]) -> Outcome:
        return self._told("prepare", *_request(trans))

    def submit(self, trans: dict[str, Any]) -> Outcome:
        return self._told("submit", *_request(trans))

    def abort(self, trans: dict[str, Any]) -> Outcome:
        return self._told("abort", trans["gid"])

    def _told(self, method: str, *given: Any) -> Outcome:
        try:
            getattr(self._client, method)(*given)
        except Refused as refused:
            return Outcome(False, refused.code == "ABORTED", refused.text)
        return Outcome(True)


def _request(trans: dict[str, Any]) -> tuple[str, list[tuple[str, bytes]], str]:
    urls = [step["action"].removeprefix("http://") for step in trans["steps"]]
    return trans["gid"], [(url, b"{}") for url in urls], trans["query_prepared"].removeprefix("http://")


class Places(NamedTuple):
    """Each broker, as it is asked, and the stores of the cluster."""

    faces: dict[str, list[Face]]
    looks: list[Looker]
    dtm: list[GrpcClient]
    brokers: list[BrokerProcess]
    stores: list[str]

    def gids(self, base: str) -> list[str]:
        """One of each store, by its hash."""
        found: dict[str, str] = {}
        while len(found) < len(self.stores):
            gid = new_name(base)
            found.setdefault(store_for(gid, self.stores), gid)
        return list(found.values())


@pytest.fixture(scope="module")
def places(cluster: BrokerCluster) -> Iterator[Places]:
    with ExitStack() as opened:
        clients = [opened.enter_context(RawClient(broker.url)) for broker in cluster.brokers]
        dtm = [opened.enter_context(GrpcClient(broker)) for broker in cluster.brokers]
        faces: dict[str, list[Face]] = {
            "http": [HttpFace(client) for client in clients],
            "json-rpc": [JsonRpcFace(client) for client in clients],
            "grpc": [GrpcFace(client) for client in dtm],
        }
        stores = [one["id"] for one in cluster.view()["stores"]]
        assert len(set(cluster.owners().values())) == 3, "each broker owns one"
        yield Places(faces, [Looker(client) for client in clients], dtm, cluster.brokers, stores)


@pytest.fixture(params=["http", "json-rpc", "grpc"])
def faces(request: pytest.FixtureRequest, places: Places) -> list[Face]:
    return places.faces[request.param]


@pytest.fixture(scope="module")
def grpc_busi() -> Iterator[busi_grpc.Busi]:
    with busi_service() as running:
        yield running


Branches = Busi | busi_grpc.Busi


@pytest.fixture
def branches(faces: list[Face], busi: Busi, grpc_busi: busi_grpc.Busi) -> Branches:
    return grpc_busi if faces[0].name == "grpc" else busi


def trans_of(gid: str, branches: Branches, **options: Any) -> dict[str, Any]:
    if isinstance(branches, Busi):
        return msg(gid, branches, **options)
    urls = [branches.url("TransOut"), branches.url("TransIn")]
    return {"gid": gid, "steps": [{"action": url} for url in urls], "query_prepared": branches.url("QueryPrepared")}


# --- transactions ------------------------------------------------------------------------------------------------


def test_what_one_broker_prepares_another_submits_and_each_branch_is_called_once(
    places: Places, faces: list[Face], branches: Branches
) -> None:
    for first, second, third in itertools.permutations(range(3)):
        for gid in places.gids("submitted"):
            trans = trans_of(gid, branches)
            assert faces[first].prepare(trans).ok
            assert {look.status(gid) for look in places.looks} == {"prepared"}
            assert faces[second].submit(trans).ok
            again = faces[third].submit(trans)
            assert again.ok or "current status 'succeed'" in again.message, "as dtm says of what is done by then"
            places.looks[third].wait(gid, "succeed")
            assert set(places.looks[first].branches(gid).values()) == {"succeed"}
            assert [call.branch for call in branches.calls(gid)] == ["01", "02"]


def test_what_one_broker_prepares_another_aborts(places: Places, faces: list[Face], branches: Branches) -> None:
    for first, second in itertools.permutations(range(3), 2):
        for gid in places.gids("aborted"):
            trans = trans_of(gid, branches) | {"trans_type": "msg"}
            assert faces[first].prepare(trans).ok
            assert faces[second].abort(trans).ok
            assert {look.status(gid) for look in places.looks} == {"failed"}
            assert not faces[first].submit(trans).ok
            assert branches.calls(gid) == []


def test_a_gid_of_any_broker_is_good_at_every_other(places: Places, faces: list[Face], branches: Branches) -> None:
    gids = [face.new_gid() for face in faces for _ in range(3)]
    assert len(set(gids)) == len(gids)
    assert {store_of_gid(gid) for gid in gids} <= set(places.stores)
    for number, gid in enumerate(gids):
        assert faces[(number + 1) % 3].submit(trans_of(gid, branches)).ok
    for number, gid in enumerate(gids):
        places.looks[(number + 2) % 3].wait(gid, "succeed")


def test_any_broker_stops_a_transaction_for_good(places: Places, busi: Busi) -> None:
    for number in range(3):
        for gid in places.gids("stopped"):
            busi.script(gid, "01", ERROR)
            assert places.faces["http"][number].submit(msg(gid, busi, "/TransIn", **FAR)).ok
            eventually(lambda gid=gid: busi.calls(gid), "a first call")
            assert places.looks[(number + 1) % 3].post("forceStop", {"gid": gid}).json() == {"dtm_result": "SUCCESS"}
            assert {look.status(gid) for look in places.looks} == {"failed"}
            assert len(busi.calls(gid)) == 1


def failed_once(places: Places, busi: Busi, gid: str, number: int) -> None:
    """Submitted at one broker; its next call would be in an hour."""
    busi.script(gid, "01", ERROR)
    assert places.faces["http"][number].submit(msg(gid, busi, "/TransIn", **FAR)).ok
    eventually(lambda: places.looks[number].query(gid)["branches"][0].get("attempts"), "a first call")


def test_any_broker_hurries_one_transaction(places: Places, busi: Busi) -> None:
    for number in range(3):
        for gid in places.gids("hurried"):
            failed_once(places, busi, gid, number)
            answer = places.looks[(number + 1) % 3].post("resetNextCronTime", {"gid": gid})
            assert answer.json() == {"dtm_result": "SUCCESS"}
            places.looks[(number + 2) % 3].wait(gid, "succeed")
            assert len(busi.calls(gid)) == 2


@pytest.mark.parametrize("number", range(3))
def test_any_broker_hurries_as_many_as_asked_whichever_stores_they_are_in(
    places: Places, busi: Busi, number: int
) -> None:
    gids = [*places.gids("all"), *places.gids("all")]
    for at, gid in enumerate(gids):
        failed_once(places, busi, gid, at % 3)
    look = places.looks[number]
    assert look.get("resetCronTime", timeout=7_000).json() == {"has_remaining": False, "succeed_count": 0}
    assert look.get("resetCronTime", timeout=100, limit=4).json() == {"has_remaining": True, "succeed_count": 4}
    eventually_equal(lambda: sum(look.status(gid) == "succeed" for gid in gids), 4)
    assert look.post("resetCronTime", None).json() == {"has_remaining": False, "succeed_count": 2}
    for gid in gids:
        look.wait(gid, "succeed")


def test_no_broker_knows_a_gid_that_nobody_has_made(places: Places) -> None:
    for gid in places.gids("unknown"):
        for look in places.looks:
            assert look.query(gid) == {"transaction": None, "branches": []}
            for name in ("forceStop", "resetNextCronTime"):
                answer = look.post(name, {"gid": gid})
                assert (answer.status, answer.json()) == (500, {"message": f"no TransGlobal with gid: {gid} found"})


# --- topics ------------------------------------------------------------------------------------------------------


def subscribers(look: Looker, topic: str) -> list[str]:
    found = look.get("queryKV", cat="topics", key=topic).json()["kv"]
    return [one["url"] for one in json.loads(found[0]["v"])] if found else []


def test_topics_are_changed_and_read_at_every_broker(places: Places, busi: Busi) -> None:
    a, b = f"{busi.url}/a", f"{busi.url}/b"
    for one, two, three in itertools.permutations(places.looks):
        topic = new_name("topic")
        one.subscribe(topic, a)
        two.subscribe(topic, b)
        assert [subscribers(look, topic) for look in places.looks] == [[a, b]] * 3
        assert topic in {kv["k"] for kv in three.get("scanKV", cat="topics", limit=1_000).json()["kv"]}
        assert three.get("subscribe", topic=topic, url=a).json()["message"] == "this url exists"
        assert two.get("unsubscribe", topic=topic, url=a).json() == {"dtm_result": "SUCCESS"}
        assert [subscribers(look, topic) for look in places.looks] == [[b]] * 3
        assert one.get("unsubscribe", topic=topic, url=a).json()["message"] == "no such an url "
        answer = three.client.request("DELETE", f"{BASE}/topic/{topic}")
        assert (answer.status, answer.json()) == (200, {"dtm_result": "SUCCESS"})
        assert [subscribers(look, topic) for look in places.looks] == [[]] * 3
        assert one.client.request("DELETE", f"{BASE}/topic/{topic}").json()["message"] == "storage: NotFound"


def test_topics_are_changed_over_grpc_at_every_broker(places: Places) -> None:
    for (one, two, three), look in zip(itertools.permutations(places.dtm), places.looks * 2, strict=True):
        topic = new_name("grpc-topic")
        one.subscribe(topic, "127.0.0.1:1/a.B/c")
        two.subscribe(topic, "127.0.0.1:1/a.B/d")
        assert subscribers(look, topic) == ["127.0.0.1:1/a.B/c", "127.0.0.1:1/a.B/d"]
        three.unsubscribe(topic, "127.0.0.1:1/a.B/c")
        assert subscribers(look, topic) == ["127.0.0.1:1/a.B/d"]
        two.delete_topic(topic)
        assert subscribers(look, topic) == []
        with pytest.raises(Refused, match="storage: NotFound"):
            one.delete_topic(topic)


def test_a_transaction_of_any_store_goes_to_the_subscribers_of_a_topic(places: Places, busi: Busi) -> None:
    topic = new_name("fan-out")
    places.looks[0].subscribe(topic, f"{busi.url}/first")
    places.looks[1].subscribe(topic, f"{busi.url}/second")
    for face in places.faces["http"]:
        for gid in places.gids("to-topic"):
            assert face.submit(msg(gid, busi, f"topic://{topic}")).ok
            places.looks[2].wait(gid, "succeed")
            assert sorted(call.path for call in busi.calls(gid)) == ["/first", "/second"]


# --- the rest ----------------------------------------------------------------------------------------------------


def test_every_broker_tells_which_dtm_it_speaks(places: Places) -> None:
    told = [look.get("version").json() for look in places.looks]
    assert told == [{"version": "v1.19.0", "tallystick": version("tallystick")}] * 3


def test_every_broker_refuses_branches_that_come_one_by_one(places: Places) -> None:
    for look in places.looks:
        for name in ("registerBranch", "registerXaBranch", "registerTccBranch", "prepareWorkflow"):
            answer = look.post(name, {"trans_type": "msg"})
            assert (answer.status, answer.json()) == (500, {"message": "unknow trans type: msg"})
    for face in places.faces["json-rpc"]:
        assert isinstance(face, JsonRpcFace)
        assert face.call("registerBranch", {"trans_type": "tcc"})["error"]["code"] == -32603
        assert face.call("prepareWorkflow", {})["error"]["code"] == -32601
    for dtm in places.dtm:
        with pytest.raises(Refused, match="'tcc' is not supported"):
            dtm.call("RegisterBranch", DtmBranchRequest(Gid="g", TransType="tcc").SerializeToString())
        with pytest.raises(Refused, match="'workflow' is not supported"):
            dtm.call("PrepareWorkflow", DtmRequest(Gid="g", TransType="workflow").SerializeToString())

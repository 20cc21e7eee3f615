"""A request for every route of the table: about the topic `mine`, the groups `mine` and `dtm`, the gid `mine`.

They need not succeed; they have to get as far as the door and be judged by it, for whoever the table lets in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from tallystick.api.dtm.grpc.messages import DtmBranchRequest, DtmRequest, DtmTopicRequest

CALLED = "http://127.0.0.1:1/x"  # nobody listens there
MESSAGE = {"topic": "mine", "value": "x"}
_TRANS = {"gid": "by-dtm", "trans_type": "msg"}  # without calls, for which it takes more than to produce
# What somebody with the right role for other objects gets: a refusal, an answer in which nothing of this is shown, as
# if it were not there, or the same as everybody (it is about no object).
Elsewhere = Literal["refused", "hidden", "same"]


@dataclass(frozen=True)
class Ask:
    path: str
    body: Any = None
    elsewhere: Elsewhere = "refused"
    by_role: dict[str, Any] = field(default_factory=dict)  # where a role asks for something else than the others

    def content(self, role: str = "") -> bytes | None:
        body = self.by_role.get(role, self.body)
        return None if body is None else json.dumps(body).encode()


def _receipts(**more: Any) -> dict[str, Any]:
    return {"receipts": ["mine/0/0/1"], **more}


HTTP: dict[str, Ask] = {
    "POST /v1/batch": Ask(
        "/v1/batch",
        {"ops": [{"op": "send", "messages": [{"topic": "mine", "value": "eA=="}]}]},
        by_role={"consumer": {"ops": [{"op": "ack", "group": "mine", "receipts": []}]}},
    ),
    "GET /v1/info": Ask("/v1/info", elsewhere="same"),
    "GET /v1/cluster": Ask("/v1/cluster", elsewhere="same"),
    "GET /v1/whoami": Ask("/v1/whoami", elsewhere="same"),
    "POST /v1/transactions": Ask("/v1/transactions", {"group": "mine", "messages": [MESSAGE]}),
    "GET /v1/transactions": Ask("/v1/transactions", elsewhere="hidden"),
    "GET /v1/transactions/{gid}": Ask("/v1/transactions/mine", elsewhere="hidden"),
    "POST /v1/transactions/{gid}/commit": Ask(
        "/v1/transactions/mine/commit", {}, by_role={"operator": {"by": "operator"}}
    ),
    "POST /v1/transactions/{gid}/rollback": Ask(
        "/v1/transactions/mine/rollback", {}, by_role={"operator": {"by": "operator"}}
    ),
    "POST /v1/transactions/{gid}/resume": Ask("/v1/transactions/mine/resume"),
    "POST /v1/transactions/{gid}/hurry": Ask("/v1/transactions/mine/hurry"),
    "GET /v1/transactions/{gid}/calls": Ask("/v1/transactions/mine/calls", elsewhere="hidden"),
    "POST /v1/transactions/{gid}/calls/resume": Ask("/v1/transactions/mine/calls/resume"),
    "POST /v1/transactions/{gid}/calls/stop": Ask("/v1/transactions/mine/calls/stop"),
    "GET /v1/calls": Ask("/v1/calls"),
    "GET /v1/call-hosts": Ask("/v1/call-hosts"),
    "GET /v1/call-topics": Ask("/v1/call-topics", elsewhere="hidden"),
    "GET /v1/call-topics/{topic}": Ask("/v1/call-topics/mine"),
    "DELETE /v1/call-topics/{topic}": Ask("/v1/call-topics/gone"),
    "PUT /v1/call-topics/{topic}/subscribers": Ask("/v1/call-topics/mine/subscribers", {"url": CALLED}),
    "DELETE /v1/call-topics/{topic}/subscribers": Ask("/v1/call-topics/mine/subscribers?url=http://127.0.0.1:1/y"),
    "POST /v1/parts/{part}": Ask("/v1/parts/part", {"messages": [MESSAGE]}),
    "DELETE /v1/parts/{part}": Ask("/v1/parts/gone", elsewhere="same"),
    "POST /v1/messages": Ask("/v1/messages", {"messages": [MESSAGE]}),
    "GET /v1/topics": Ask("/v1/topics", elsewhere="hidden"),
    "GET /v1/topics/{topic}": Ask("/v1/topics/mine"),
    "PUT /v1/topics/{topic}": Ask("/v1/topics/mine", {"queues": 4}, by_role={"operator": {"retention_ms": 86_400_000}}),
    "DELETE /v1/topics/{topic}": Ask("/v1/topics/gone"),
    "GET /v1/topics/{topic}/offsets": Ask("/v1/topics/mine/offsets?timestamp=0"),
    "POST /v1/topics/{topic}/trim": Ask("/v1/topics/mine/trim", {"offsets": {"0": 0}}),
    "GET /v1/topics/{topic}/queues/{queue:int}/messages": Ask("/v1/topics/mine/queues/0/messages"),
    "GET /v1/groups": Ask("/v1/groups", elsewhere="hidden"),
    "GET /v1/groups/{group}": Ask("/v1/groups/mine"),
    "POST /v1/groups/{group}/receive": Ask("/v1/groups/mine/receive", {"topic": "mine", "max": 1}),
    "POST /v1/groups/{group}/ack": Ask("/v1/groups/mine/ack", _receipts()),
    "POST /v1/groups/{group}/nack": Ask("/v1/groups/mine/nack", _receipts()),
    "POST /v1/groups/{group}/renew": Ask("/v1/groups/mine/renew", _receipts(invisible_ms=1_000)),
    "GET /v1/groups/{group}/offsets": Ask("/v1/groups/mine/offsets?topic=mine"),
    "PUT /v1/groups/{group}/offsets": Ask("/v1/groups/mine/offsets", {"topic": "mine", "offsets": {"0": 0}}),
    "POST /v1/groups/{group}/reset": Ask("/v1/groups/mine/reset", {"topic": "mine", "to": "latest"}),
    "POST /v1/checks/poll": Ask("/v1/checks/poll", {"group": "mine", "member": "m", "wait_ms": 0}),
    "POST /v1/checks/answers": Ask("/v1/checks/answers", {"answers": {"mine": "unknown"}}),
    "GET /v1/tables/{table}": Ask("/v1/tables/half", elsewhere="hidden"),
    "GET /v1/tables/{table}/splits": Ask("/v1/tables/op/splits"),
    "GET /v1/ledger": Ask("/v1/ledger", elsewhere="hidden"),
    "GET /v1/ledger/{app}": Ask("/v1/ledger/mine"),
    "DELETE /v1/ledger/{app}": Ask("/v1/ledger/mine.gone"),
    "POST /v1/ledger/{app}/{version:int}": Ask("/v1/ledger/mine/0", {}),
    "POST /v1/tokens": Ask("/v1/tokens", {"name": "made", "roles": ["reader"]}),
    "GET /v1/tokens": Ask("/v1/tokens"),
    "DELETE /v1/tokens/{name}": Ask("/v1/tokens/gone"),
    "GET /v1/audit": Ask("/v1/audit"),
    "GET /healthz": Ask("/healthz", elsewhere="same"),
    "GET /readyz": Ask("/readyz", elsewhere="same"),
    "GET /metrics": Ask("/metrics"),
    "GET /openapi.json": Ask("/openapi.json", elsewhere="same"),
    "GET /docs": Ask("/docs", elsewhere="same"),
    "POST /api/dtmsvr/prepare": Ask("/api/dtmsvr/prepare", {**_TRANS, "gid": "to-be"}),
    "POST /api/dtmsvr/submit": Ask("/api/dtmsvr/submit", _TRANS),
    "POST /api/dtmsvr/abort": Ask("/api/dtmsvr/abort", {"gid": "mine", "trans_type": "msg"}, elsewhere="hidden"),
    "POST /api/dtmsvr/forceStop": Ask("/api/dtmsvr/forceStop", {"gid": "mine"}, elsewhere="hidden"),
    "POST /api/dtmsvr/resetNextCronTime": Ask("/api/dtmsvr/resetNextCronTime", {"gid": "mine"}, elsewhere="hidden"),
    "GET /api/dtmsvr/resetCronTime": Ask("/api/dtmsvr/resetCronTime?limit=1"),
    "POST /api/dtmsvr/resetCronTime": Ask("/api/dtmsvr/resetCronTime", {"limit": 1}),
    "GET /api/dtmsvr/newGid": Ask("/api/dtmsvr/newGid", elsewhere="same"),
    "GET /api/dtmsvr/query": Ask("/api/dtmsvr/query?gid=mine", elsewhere="hidden"),
    "GET /api/dtmsvr/all": Ask("/api/dtmsvr/all", elsewhere="hidden"),
    "GET /api/dtmsvr/subscribe": Ask(f"/api/dtmsvr/subscribe?topic=mine&url={CALLED}"),
    "POST /api/dtmsvr/subscribe": Ask("/api/dtmsvr/subscribe", {"topic": "mine", "url": CALLED}),
    "GET /api/dtmsvr/unsubscribe": Ask("/api/dtmsvr/unsubscribe?topic=mine&url=http://127.0.0.1:1/y"),
    "POST /api/dtmsvr/unsubscribe": Ask("/api/dtmsvr/unsubscribe", {"topic": "mine", "url": "http://127.0.0.1:1/y"}),
    "DELETE /api/dtmsvr/topic/": Ask("/api/dtmsvr/topic/gone"),
    "GET /api/dtmsvr/queryKV": Ask("/api/dtmsvr/queryKV?cat=topics", elsewhere="hidden"),
    "GET /api/dtmsvr/scanKV": Ask("/api/dtmsvr/scanKV?cat=topics", elsewhere="hidden"),
    "GET /api/dtmsvr/version": Ask("/api/dtmsvr/version", elsewhere="same"),
    # Nothing is registered here, whoever asks.
    **{
        f"POST /api/dtmsvr/{name}": Ask(f"/api/dtmsvr/{name}", {"trans_type": "msg"}, elsewhere="same")
        for name in ("registerBranch", "registerXaBranch", "registerTccBranch", "prepareWorkflow")
    },
    "POST /api/json-rpc": Ask(
        "/api/json-rpc", {"jsonrpc": "2.0", "id": "1", "method": "newGid", "params": {}}, elsewhere="same"
    ),
    "GET /api/ping": Ask("/api/ping", elsewhere="same"),
    "GET /api/metrics": Ask("/api/metrics"),
}


# The methods of a route that has several: each is judged like the route of the same name.
JSON_RPC: dict[str, Ask] = {
    method: Ask("/api/json-rpc", {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}, elsewhere)
    for method, params, elsewhere in (
        ("newGid", {}, "same"),
        ("prepare", {**_TRANS, "gid": "to-be-by-rpc"}, "refused"),
        ("submit", {**_TRANS, "gid": "mine"}, "refused"),
        ("abort", {"gid": "mine", "trans_type": "msg"}, "hidden"),
        ("registerBranch", {"trans_type": "msg"}, "same"),
    )
}


_REQUEST = DtmRequest(Gid="by-grpc", TransType="msg")
_TOPIC = DtmTopicRequest(Topic="mine", URL="grpc://127.0.0.1:1/a.B/C", Remark="")


@dataclass(frozen=True)
class Call:
    message: Any
    elsewhere: Elsewhere = "refused"


GRPC: dict[str, Call] = {
    "/dtmgimp.Dtm/NewGid": Call(None, "same"),
    "/dtmgimp.Dtm/Prepare": Call(_REQUEST),
    "/dtmgimp.Dtm/Submit": Call(_REQUEST),
    "/dtmgimp.Dtm/Abort": Call(DtmRequest(Gid="mine", TransType="msg"), "hidden"),
    "/dtmgimp.Dtm/RegisterBranch": Call(DtmBranchRequest(TransType="msg"), "same"),
    "/dtmgimp.Dtm/PrepareWorkflow": Call(_REQUEST, "same"),
    "/dtmgimp.Dtm/Subscribe": Call(_TOPIC),
    "/dtmgimp.Dtm/Unsubscribe": Call(_TOPIC),
    "/dtmgimp.Dtm/DeleteTopic": Call(DtmTopicRequest(Topic="gone")),
}

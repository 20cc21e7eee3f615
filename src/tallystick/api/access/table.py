"""Every route of every interface, with what it takes to use it. What does not stand here is refused.

The door asks once more, with the operations themselves; this is asked before a request's body is read.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tallystick.core.access import Permission

Object = Literal["", "topic", "group", "gid", "app"]
Whom = Literal["some", "known", "open", "peer"]


class Needs(NamedTuple):
    """`whom`: some (who have one of the permissions), known (whoever is known), open (nobody is asked), peer (another
    broker of the cluster). `touches` is the object that the path names; `changes` says that a GET changes state."""

    whom: Whom
    permissions: tuple[Permission, ...] = ()
    touches: Object = ""
    changes: bool = False


OPEN, KNOWN, PEER = Needs("open"), Needs("known"), Needs("peer")


def _any(*permissions: Permission, of: Object = "", changes: bool = False) -> Needs:
    return Needs("some", permissions, of, changes)


_EVERYTHING: tuple[Permission, ...] = ("read", "operate", "admin")
_TOPICS: tuple[Permission, ...] = ("produce", "consume", "read", "operate", "admin")
_TRANSACTION: tuple[Permission, ...] = ("produce", "check-back", "read", "operate")

NATIVE: dict[str, Needs] = {
    "POST /v1/batch": _any("produce", "consume", "check-back"),
    "GET /v1/info": KNOWN,
    "GET /v1/cluster": KNOWN,
    "GET /v1/whoami": KNOWN,
    "POST /v1/transactions": _any("produce"),
    "GET /v1/transactions": _any("read", "operate"),
    "GET /v1/transactions/{gid}": _any(*_TRANSACTION, of="gid"),
    "POST /v1/transactions/{gid}/commit": _any("produce", "operate", of="gid"),
    "POST /v1/transactions/{gid}/rollback": _any("produce", "operate", of="gid"),
    "POST /v1/transactions/{gid}/resume": _any("operate", of="gid"),
    "POST /v1/transactions/{gid}/hurry": _any("operate", of="gid"),
    "GET /v1/transactions/{gid}/calls": _any(*_TRANSACTION, of="gid"),
    "POST /v1/transactions/{gid}/calls/resume": _any("operate", of="gid"),
    "POST /v1/transactions/{gid}/calls/stop": _any("operate", of="gid"),
    "GET /v1/calls": _any(*_EVERYTHING),
    "GET /v1/call-hosts": _any(*_EVERYTHING),
    "GET /v1/call-topics": _any("call", *_EVERYTHING),
    "GET /v1/call-topics/{topic}": _any("call", *_EVERYTHING, of="topic"),
    "DELETE /v1/call-topics/{topic}": _any("admin", of="topic"),
    "PUT /v1/call-topics/{topic}/subscribers": _any("admin", of="topic"),
    "DELETE /v1/call-topics/{topic}/subscribers": _any("admin", of="topic"),
    "POST /v1/parts/{part}": _any("produce"),
    "DELETE /v1/parts/{part}": _any("produce"),
    "POST /v1/messages": _any("produce"),
    "GET /v1/topics": _any(*_TOPICS),
    "GET /v1/topics/{topic}": _any(*_TOPICS, of="topic"),
    "PUT /v1/topics/{topic}": _any("operate", "admin", of="topic"),
    "DELETE /v1/topics/{topic}": _any("admin", of="topic"),
    "GET /v1/topics/{topic}/offsets": _any(*_TOPICS, of="topic"),
    "POST /v1/topics/{topic}/trim": _any("operate", of="topic"),
    "GET /v1/topics/{topic}/queues/{queue:int}/messages": _any("consume", "read", of="topic"),
    "GET /v1/groups": _any("consume", "read", "operate"),
    "GET /v1/groups/{group}": _any("consume", "read", "operate", of="group"),
    "POST /v1/groups/{group}/receive": _any("consume", of="group"),
    "POST /v1/groups/{group}/ack": _any("consume", of="group"),
    "POST /v1/groups/{group}/nack": _any("consume", of="group"),
    "POST /v1/groups/{group}/renew": _any("consume", of="group"),
    "GET /v1/groups/{group}/offsets": _any("consume", "read", "operate", of="group"),
    "PUT /v1/groups/{group}/offsets": _any("consume", of="group"),
    "POST /v1/groups/{group}/reset": _any("operate", of="group"),
    "POST /v1/checks/poll": _any("check-back"),
    "POST /v1/checks/answers": _any("check-back"),
    "GET /v1/tables/{table}": _any(*_EVERYTHING),
    "GET /v1/tables/{table}/splits": _any(*_EVERYTHING),
    "GET /v1/ledger": _any("produce", "read", "operate"),
    "GET /v1/ledger/{app}": _any("produce", "read", "operate", of="app"),
    "DELETE /v1/ledger/{app}": _any("operate", of="app"),
    "POST /v1/ledger/{app}/{version:int}": _any("produce", of="app"),
    "POST /v1/tokens": _any("admin"),
    "GET /v1/tokens": _any("admin"),
    "DELETE /v1/tokens/{name}": _any("admin"),
    "GET /v1/audit": _any("operate", "admin"),
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /metrics": _any(*_EVERYTHING),
    "GET /openapi.json": OPEN,
    "GET /docs": OPEN,
}

DTM_HTTP: dict[str, Needs] = {
    "POST /api/dtmsvr/prepare": _any("produce"),
    "POST /api/dtmsvr/submit": _any("produce"),
    "POST /api/dtmsvr/abort": _any("produce"),
    "POST /api/dtmsvr/forceStop": _any("operate"),
    "POST /api/dtmsvr/resetNextCronTime": _any("operate"),
    "GET /api/dtmsvr/resetCronTime": _any("operate", changes=True),
    "POST /api/dtmsvr/resetCronTime": _any("operate"),
    "GET /api/dtmsvr/newGid": KNOWN,
    "GET /api/dtmsvr/query": _any(*_TRANSACTION),
    "GET /api/dtmsvr/all": _any("read", "operate"),
    "GET /api/dtmsvr/subscribe": _any("admin", changes=True),
    "POST /api/dtmsvr/subscribe": _any("admin"),
    "GET /api/dtmsvr/unsubscribe": _any("admin", changes=True),
    "POST /api/dtmsvr/unsubscribe": _any("admin"),
    "DELETE /api/dtmsvr/topic/": _any("admin", of="topic"),
    "GET /api/dtmsvr/queryKV": _any("call", *_EVERYTHING),
    "GET /api/dtmsvr/scanKV": _any("call", *_EVERYTHING),
    "GET /api/dtmsvr/version": KNOWN,
    "POST /api/dtmsvr/registerBranch": _any("produce"),
    "POST /api/dtmsvr/registerXaBranch": _any("produce"),
    "POST /api/dtmsvr/registerTccBranch": _any("produce"),
    "POST /api/dtmsvr/prepareWorkflow": _any("produce"),
    "POST /api/json-rpc": _any("produce"),
    "GET /api/ping": OPEN,
    "GET /api/metrics": _any(*_EVERYTHING),
}

DTM_GRPC: dict[str, Needs] = {
    "/dtmgimp.Dtm/NewGid": KNOWN,
    "/dtmgimp.Dtm/Prepare": _any("produce"),
    "/dtmgimp.Dtm/Submit": _any("produce"),
    "/dtmgimp.Dtm/Abort": _any("produce"),
    "/dtmgimp.Dtm/RegisterBranch": _any("produce"),
    "/dtmgimp.Dtm/PrepareWorkflow": _any("produce"),
    "/dtmgimp.Dtm/Subscribe": _any("admin"),
    "/dtmgimp.Dtm/Unsubscribe": _any("admin"),
    "/dtmgimp.Dtm/DeleteTopic": _any("admin"),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": KNOWN,
}

DOOR_WAYS = "/.door/..."
"""The route of every way of a store's door; which there are, `api/cluster/asking.py` has."""

PEERS: dict[str, Needs] = {DOOR_WAYS: PEER}

NOTHING = "(nothing)"
"""The route of a request that belongs to none: who is known may hear that there is nothing there."""

TABLE: dict[str, Needs] = {**NATIVE, **DTM_HTTP, **DTM_GRPC, **PEERS, NOTHING: KNOWN}

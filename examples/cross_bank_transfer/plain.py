"""The two-phase message over plain HTTP and SQL, with the standard library only: any language can do this.

Three requests in all: `prepare`, then the local transaction with one more row in it, then `submit`; or `abort`.
"""

import json
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

Connection = TypeVar("Connection", bound=sqlite3.Connection)

# The row that a check-back looks for. Its key is unique: if the check-back was here first, this fails.
MARK = (
    "insert into tallystick_barrier (trans_type, gid, branch_id, op, barrier_id, reason) "
    "values ('msg', ?, '00', 'msg', '01', 'msg')"
)


class Dtm:
    """dtm's HTTP API, below `/api/dtmsvr`."""

    def __init__(self, url: str) -> None:
        self._base = f"{url}/api/dtmsvr"

    def trans(self, action: str, payload: Any, query_prepared: str, **options: Any) -> dict[str, Any]:
        gid = json.loads(self._ask("newGid"))["gid"]
        return {
            "gid": gid,
            "trans_type": "msg",
            "steps": [{"action": action}],
            "payloads": [json.dumps(payload)],
            "query_prepared": query_prepared,
            **options,
        }

    def post(self, operation: str, trans: dict[str, Any]) -> None:
        answer = json.loads(self._ask(operation, json.dumps(trans).encode()))
        if answer.get("dtm_result") != "SUCCESS":
            raise RuntimeError(f"{operation} of {trans['gid']}: {answer}")

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self._base}/{path}", body, {"Content-Type": "application/json"})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - the URL is the user's own
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: status {error.code}: {error.read().decode(errors='replace')}") from error


def do_and_submit(dtm: Dtm, trans: dict[str, Any], conn: Connection, business: Callable[[Connection], None]) -> None:
    """The local transaction and its calls: both or neither."""
    dtm.post("prepare", trans)
    try:
        conn.execute("begin immediate")
        conn.execute(MARK, (trans["gid"],))
        business(conn)
        conn.commit()
    except BaseException:
        # Nothing was committed, so nothing may be called. If this request is lost the check-back says the same.
        conn.rollback()
        dtm.post("abort", trans)
        raise
    dtm.post("submit", trans)

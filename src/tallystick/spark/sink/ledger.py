"""The driver's side: the broker's ledger of batches, asked on behalf of one write.

A batch is decided by one call: `POST /v1/ledger/{app}/{version}`. The broker commits it if the version is newer than
the last one of that application, and otherwise drops its parts and changes nothing. What follows here is only about
telling a replay, which is fine, from a mistake, which would lose messages in silence: by the query's id in the last
gid, by batches out of turn, and by the content that the ledger remembers of each version.
"""

from __future__ import annotations

import secrets
from typing import Any

from tallystick.core.errors import Conflict, DifferentContent, NotFound, PartUnavailable
from tallystick.link import Link
from tallystick.spark.sink.content import Content

_MARK = "spark"
_NEW_APP = (
    "Or set a new txnAppId: it writes this batch and the next ones as new, so rows that were committed before are in "
    "the topic twice"
)


class Ledger:
    """The ledger as one application sees it. `query` is the id of the streaming query that writes, or empty.

    The gid of a batch carries the query's id. So a query finds out that its application id was used by another one:
    whose batches have the same numbers, and other content.
    """

    def __init__(self, link: Link, app: str, query: str) -> None:
        self._link, self._app, self._query = link, app, query

    def decided(self, version: int) -> bool:
        """Whether this batch was committed before. An error if what has the number is another query's."""
        return self._decided_by(version) is not None

    def commit(self, version: int, parts: dict[str, int], content: Content) -> bool:
        """Make the parts visible, all at once. False if the batch was committed before: then they are dropped.

        Asked again after a lost answer, the broker finds the batch decided, and that is just as good.
        """
        named = [{"part": part, "count": count} for part, count in parts.items()]
        try:
            answer = self._link.post(
                "ledger", self._app, str(version), parts=named, digest=content.digest, **self._gid(version)
            )
        except PartUnavailable as error:
            raise self._unavailable(version, error) from error
        return not answer["duplicate"]

    def require_same(self, version: int, content: Content, drops: bool = False) -> str:
        """Compare with the rows committed under this number, where they are known: `DifferentContent` if they differ.

        With `drops`, returns the difference instead, and refuses only a stream's batch with fewer rows: the committed
        rows that it lacks may be in the next batches, which would write them again. If the application was forgotten
        meanwhile, the outcome cannot be determined."""
        last = self._decided_by(version)
        if last is None:
            raise Conflict(
                f"batch {version} of txnAppId {self._app!r} was found committed, then its application was forgotten; "
                "nothing was sent. Run again, the batch is sent anew",
                field="txnAppId",
            )
        known, found = _remembered(last, version)
        if found is not None:
            how = content.differs(found["messages"], found["digest"])
        else:
            # Of what came before the first digest that is known, nothing can be told.
            how = f"no batch of that number is among the last {len(known)}" if known[0]["digest"] else ""
        if how and self._query and version < last["version"]:
            raise self._out_of_turn(version, last, how)
        fewer = bool(self._query) and found is not None and content.rows < found["messages"]
        if how and (fewer or not drops):
            raise self._different(version, last, how, fewer)
        return how

    def forget(self) -> None:
        """Remove the application, whose id nobody will use again."""
        self._link.delete("ledger", self._app)

    def _decided_by(self, version: int) -> dict[str, Any] | None:
        """The ledger's word on the application, if it has come to this version."""
        try:
            last: dict[str, Any] = self._link.get("ledger", self._app)
        except NotFound:
            return None
        if version > last["version"]:
            return None
        self._check_same(version, last)
        return last

    def _gid(self, version: int) -> dict[str, str]:
        """A new one for every try (the broker makes one where none is given): a gid is never used twice."""
        return {"gid": f"{_MARK}:{self._query}:{version}:{secrets.token_hex(10)}"} if self._query else {}

    def _check_same(self, version: int, last: dict[str, Any]) -> None:
        """Refuse a batch of another query, and one that is out of turn and whose rows cannot be compared.

        Spark runs only its last batch again. An older number is a driver that was replaced, or a checkpoint that was
        put back: its batch N need not hold the rows that the first batch N held. Where the ledger remembers the
        digest, `require_same` compares the rows.
        """
        if not self._query:
            return
        mark, _, rest = last["gid"].partition(":")
        other = rest.partition(":")[0] if mark == _MARK else self._query
        if other != self._query:
            raise Conflict(
                f"batch {version} of query {self._query} is not sent: query {other} has committed batch "
                f"{last['version']} under the same txnAppId {self._app!r}. Give each query, and each new checkpoint, "
                f"a txnAppId of its own; or forget the old one with DELETE /v1/ledger/{self._app}",
                field="txnAppId",
            )
        if version < last["version"]:
            _, found = _remembered(last, version)
            if found is None or not Content().comparable(found["digest"]):
                raise self._out_of_turn(version, last, "the ledger does not remember the rows of that number")

    def _out_of_turn(self, version: int, last: dict[str, Any], how: str) -> Conflict:
        return Conflict(
            f"batch {version} of txnAppId {self._app!r} is not sent: batch {last['version']} is committed already, and "
            f"this is not batch {version} as it was committed ({how}). Another driver runs this query, or its "
            "checkpoint was put back to an older state; this driver stops. Option failOnDifferentReplay=false applies "
            f"only to batch {last['version']}, the last one. Continue with a newer checkpoint. {_NEW_APP}",
            field="txnAppId",
        )

    def _different(self, version: int, last: dict[str, Any], how: str, fewer: bool) -> DifferentContent:
        where = f", gid {last['gid']}" if version == last["version"] else ""
        return DifferentContent(
            f"batch {version} of txnAppId {self._app!r} is not newer than the last that was committed "
            f"({last['version']}{where}), so it counts as run again, but with other content: {how}. "
            f"Nothing of this attempt was sent. {self._advice(fewer)}",
            field="txnVersion",
        )

    def _advice(self, fewer: bool) -> str:
        if fewer:
            return (
                "Option failOnDifferentReplay=false does not drop a batch with fewer rows, because the missing rows "
                "may be in the next batches, which would write them twice. Either the checkpoint is older than the "
                "broker's ledger (a restored backup), or the source has lost rows. Continue with a newer checkpoint. "
                f"{_NEW_APP}"
            )
        if not self._query:
            return (
                "If these rows are new, give them a new, larger txnVersion; if they are to be dropped, set option "
                "failOnDifferentReplay=false"
            )
        return (
            "Either the checkpoint is older than the broker's ledger (a restored backup); or the input or the query "
            "changed, or gives other rows each time (rand(), uuid(), a source that cannot be read again). Look at what "
            "is missing in the topic, then either write this batch as a new one, under a new txnAppId, or drop it with "
            "option failOnDifferentReplay=false"
        )

    def _unavailable(self, version: int, error: PartUnavailable) -> PartUnavailable:
        return PartUnavailable(
            f"batch {version} of txnAppId {self._app!r} was not committed, nothing of it is visible: {error.detail}. "
            "Either the batch took longer than its parts are kept (option 'partTtl', else the broker's part_ttl), or "
            "another driver has dropped them. Run again, the batch is sent anew",
            field="parts",
        )


def _remembered(last: dict[str, Any], version: int) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The versions whose content the ledger remembers, and the one with this number, if it is among them."""
    known = [*last["earlier"], last]
    return known, next((one for one in known if one["version"] == version), None)

"""The driver's side: the broker's ledger of batches, asked on behalf of one write.

A batch is decided by one call: `POST /v1/ledger/{app}/{version}`. The broker commits it if the version is newer than
the last one of that application, and otherwise drops its parts and changes nothing. What follows here is only about
telling a replay, which is fine, from a mistake, which would lose messages in silence.
"""

from __future__ import annotations

import secrets
from typing import Any

from tallystick.core.errors import Conflict, NotFound, PartUnavailable
from tallystick.link import Link

_MARK = "spark"


class Ledger:
    """The ledger as one application sees it. `query` is the id of the streaming query that writes, or empty.

    The gid of a batch carries the query's id. So a query finds out that its application id was used by another one:
    whose batches have the same numbers, and other content.
    """

    def __init__(self, link: Link, app: str, query: str) -> None:
        self._link, self._app, self._query = link, app, query

    def decided(self, version: int) -> bool:
        """Whether this batch was committed before. An error if what has the number is not this batch."""
        try:
            last = self._link.get("ledger", self._app)
        except NotFound:
            return False
        if version > last["version"]:
            return False
        self._check_same(version, last)
        return True

    def commit(self, version: int, parts: dict[str, int]) -> bool:
        """Make the parts visible, all at once. False if the batch was committed before: then they are dropped.

        Asked again after a lost answer, the broker finds the batch decided, and that is just as good.
        """
        named = [{"part": part, "count": count} for part, count in parts.items()]
        try:
            answer = self._link.post("ledger", self._app, str(version), parts=named, **self._gid(version))
        except PartUnavailable as error:
            raise self._unavailable(version, error) from error
        if answer["duplicate"]:
            self.decided(version)
        return not answer["duplicate"]

    def forget(self) -> None:
        """Remove the application, whose id nobody will use again."""
        self._link.delete("ledger", self._app)

    def _gid(self, version: int) -> dict[str, str]:
        """A new one for every try (the broker makes one where none is given): a gid is never used twice."""
        return {"gid": f"{_MARK}:{self._query}:{version}:{secrets.token_hex(10)}"} if self._query else {}

    def _check_same(self, version: int, last: dict[str, Any]) -> None:
        """Spark runs only its last batch again. An older number is a driver that was replaced, or a checkpoint that
        was put back: its batch N need not hold the rows that the first batch N held."""
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
            raise Conflict(
                f"batch {version} of txnAppId {self._app!r} is not sent: batch {last['version']} is committed already. "
                "Another driver runs this query, or its checkpoint was put back to an older state; this driver stops",
                field="txnAppId",
            )

    def _unavailable(self, version: int, error: PartUnavailable) -> PartUnavailable:
        return PartUnavailable(
            f"batch {version} of txnAppId {self._app!r} was not committed, nothing of it is visible: {error.detail}. "
            "Either the batch took longer than its parts are kept (option 'partTtl', else the broker's part_ttl), or "
            "another driver has dropped them. Run again, the batch is sent anew",
            field="parts",
        )

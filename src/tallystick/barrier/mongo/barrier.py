"""A barrier whose truth is a document in MongoDB: the effect and its mark are one transaction.

    barrier = MongoBarrier(client, gid)
    barrier.call(lambda session: accounts.update_one({"_id": 1}, {"$inc": {"balance": -30}}, session=session))

The check-back runs `decide()`: it inserts `rollback`, and the unique index lets in either that or the effect's mark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import pymongo
from pymongo import MongoClient, ReadPreference
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError, ExecutionTimeout
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from tallystick.barrier import queries
from tallystick.barrier.branch_key import FIRST_BARRIER, MESSAGE_BRANCH, MESSAGE_OP, Branch
from tallystick.barrier.errors import TablesMissing
from tallystick.barrier.mongo import documents
from tallystick.barrier.mongo.documents import COLLECTION, Document
from tallystick.barrier.names import checked_text
from tallystick.barrier.operations.barrier import Decision
from tallystick.barrier.operations.common import DEFAULT_WAIT

T = TypeVar("T")

# Acknowledged by most members: one that fails over takes no outcome back.
_MAJORITY = WriteConcern("majority")

_with_index: WeakKeyDictionary[MongoClient[Any], set[str]] = WeakKeyDictionary()
"""Collections that were seen to have their unique index, by client."""


def create_collection(client: MongoClient[Any], collection: str = COLLECTION) -> None:
    """Create the collection's unique index, and so the collection; safe to call again."""
    _collection(client, collection).create_index(
        [(field, pymongo.ASCENDING) for field in documents.UNIQUE], unique=True
    )


class MongoBarrier:
    """Over a `MongoClient` of PyMongo. The four names are dtm's; the default is the local transaction of a message."""

    def __init__(
        self,
        client: MongoClient[Any],
        gid: str,
        branch_id: str = MESSAGE_BRANCH,
        op: str = MESSAGE_OP,
        barrier_id: str = FIRST_BARRIER,
        *,
        trans_type: str = "msg",
        collection: str = COLLECTION,
    ) -> None:
        self.branch = Branch(gid, branch_id, op, barrier_id)
        self._trans_type = checked_text(trans_type, "trans_type", 45)
        self._client = client
        self._name = collection
        self._marks = _collection(client, collection)

    def call(self, effect: Callable[[ClientSession], T]) -> T | None:
        """Run `effect(session)` and commit, once; None if it is not to run (it did, or must not).

        For the local transaction of a message an earlier mark is an error, `AlreadyDecided`. PyMongo runs the
        transaction again, effect included, when MongoDB asks for that (a write conflict, a new primary): what the
        effect does outside of `session` may happen more than once. Whatever fails is raised.
        """
        self._require_index()
        with self._client.start_session() as session:
            return session.with_transaction(
                lambda running: effect(running) if self.mark(running) else None,
                read_concern=ReadConcern("snapshot"),
                write_concern=_MAJORITY,
                read_preference=ReadPreference.PRIMARY,
            )

    def mark(self, session: ClientSession) -> bool:
        """Mark the effect in a transaction that the caller has open and will end; False if it is not to run."""
        self._require_index()
        branches = [self.branch, *([self.branch.origin] if self.branch.origin else [])]
        found = [
            document
            for branch in branches
            if (document := self._marks.find_one(documents.key_of(branch), session=session)) is not None
        ]
        plan = documents.plan(self.branch, self._trans_type, found)
        for mark in plan.marks:
            self._marks.insert_one(mark, session=session)
        return plan.run

    def decide(self, wait: float = DEFAULT_WAIT) -> Decision:
        """The check-back: `committed` if the effect was committed; else `rolled_back`, and it never will be.

        A transaction that is still open holds the unique key, and is waited for; after `wait` seconds: `running`.
        """
        self.branch.require_message()
        self._require_index()
        marks = self._marks.with_options(write_concern=_MAJORITY, read_concern=ReadConcern("majority"))
        try:
            with pymongo.timeout(wait):
                marks.insert_one(documents.mark_of(self.branch, self._trans_type, queries.ROLLED_BACK))
        except DuplicateKeyError:
            return documents.decision_of(marks.find_one(documents.key_of(self.branch)))
        except ExecutionTimeout:
            return "running"
        return "rolled_back"

    def _require_index(self) -> None:
        """Without the index both marks would be let in, so it is looked for, once for each client."""
        seen = _with_index.setdefault(self._client, set())
        if self._name in seen:
            return
        if not any(documents.is_unique_index(index) for index in self._marks.index_information().values()):
            raise TablesMissing(
                f"the collection {self._name} has no unique index on {', '.join(documents.UNIQUE)}; "
                "create it once with tallystick.barrier.mongo.create_collection(client)"
            )
        seen.add(self._name)


class MongoDecider:
    """Answers to check-backs: for `tallystick.client.handlers`, or `Client(..., deciders={"mongo": ...})`."""

    def __init__(self, client: MongoClient[Any], *, collection: str = COLLECTION, wait: float = DEFAULT_WAIT) -> None:
        documents.database_and_collection(collection)
        self._client = client
        self._collection = collection
        self._wait = wait

    def decide(self, gid: str) -> Decision:
        return MongoBarrier(self._client, gid, collection=self._collection).decide(self._wait)


def _collection(client: MongoClient[Any], name: str) -> Collection[Document]:
    database, collection = documents.database_and_collection(name)
    # From the primary, whatever the client prefers: a secondary does not know the latest marks.
    return client[database].get_collection(collection, read_preference=ReadPreference.PRIMARY)

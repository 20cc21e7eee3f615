"""The door of a broker: what every protocol goes through, whatever it wants done, seen, read or waited for.

A door is made for one caller. Each way through it first asks whether the caller may: with the operations themselves,
which say their kind and their names, or with the word for what is looked at and its names.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec
from msgspec import Struct
from prometheus_client import Metric, generate_latest

from tallystick.broker.access_ways import AccessWays
from tallystick.broker.auditing import audited
from tallystick.broker.caller import Caller
from tallystick.broker.checkback.scheduler import TICK_SECONDS
from tallystick.broker.showing import TABLE_LOOKS, position_of, present, refuse_if_failed, visible_rows
from tallystick.broker.waiters import ANY
from tallystick.core.access import Evidence
from tallystick.core.calls import CallPage, CallsView, CallTopicView, HostView
from tallystick.core.errors import NotFound, TallystickError, error_from_code
from tallystick.core.ids import new_gid
from tallystick.core.message import OutgoingMessage, Slice, Welcome
from tallystick.core.names import GroupName
from tallystick.core.ops import (
    Ack,
    AnswerChecks,
    ClientOp,
    Commit,
    Nack,
    OpResult,
    Outcome,
    Prepare,
    PrepareColumns,
    Rollback,
)
from tallystick.core.wire import (
    BrokerInfo,
    CallerView,
    CheckPoll,
    CheckRequest,
    ClusterStore,
    ClusterView,
    Delivery,
    GroupView,
    LedgerView,
    ReceiveRequest,
    ResetRequest,
    Split,
    TableName,
    TopicSpec,
    TopicView,
    TransactionPage,
    TransactionView,
)
from tallystick.store.protocol import (
    BrokerOp,
    DeleteTopic,
    DropCallTopic,
    ForgetApp,
    Guarded,
    Hurry,
    HurryAll,
    OperatorResolve,
    Progress,
    PutTopic,
    Receive,
    Received,
    ResetGroup,
    Result,
    Resume,
    ResumeCalls,
    StopCalls,
    Store,
    StoreOp,
    Subscribe,
    TablePage,
    TableQuery,
    TrimTo,
    Unsubscribe,
)

if TYPE_CHECKING:
    from tallystick.broker.broker import Broker

T = TypeVar("T")
WEIGHT = 1_024  # what an operation without bodies is reckoned as
TRIMMED_AT_ONCE = 5_000


class Whole(Struct):
    """A transaction and, if it has some, its calls with their bodies, as they were at one moment."""

    transaction: TransactionView
    calls: CallsView | None
    bodies: list[bytes] = []


class BrokerDoor(AccessWays):
    def __init__(self, broker: Broker, caller: Caller) -> None:
        self._caller = caller
        self._broker = broker
        self._store, self._writer, self._waiters = broker._store, broker._writer, broker._waiters
        self._admission = broker._admission
        self.limits = broker.limits
        self.browser_hosts = broker.config.browser_hosts

    def of(self, caller: Caller) -> BrokerDoor:
        """The same door, for somebody else."""
        if caller is self._caller:
            return self
        door = copy.copy(self)
        door._caller = caller
        return door

    def __copy__(self) -> Self:
        made: Self = object.__new__(type(self))  # with each request, so not by the way of everything that is copied
        made.__dict__.update(self.__dict__)
        return made

    @property
    def open(self) -> bool:
        """Whether nobody is asked who they are."""
        return self._broker.identities is None

    async def caller_of(self, evidence: Evidence) -> Caller:
        """Who sends a request that shows this. Raises `Unauthenticated` if nobody is known by it."""
        identities = self._broker.identities
        if identities is None:
            return Caller(source=evidence.source)
        return self._broker.callers.of(await identities.find(evidence), evidence.source)

    def whoami(self) -> CallerView:
        """The one whom this door is for."""
        identity, source = self._caller.identity, self._caller.source
        return CallerView(
            identity.name, identity.kind, list(identity.grants), identity.limits, identity.expires_at, source
        )

    # --- what a client does --------------------------------------------------------------------------------------

    async def batch(self, ops: Sequence[ClientOp | PrepareColumns], weight: int = WEIGHT) -> list[OpResult | None]:
        """Carry out what a client sent, as part of one group commit. Raises before anything is stored."""
        soonest = self._admit(ops)
        results = await self._writer.submit(self._caller.guarded(ops), weight)
        if soonest is not None:
            self._broker.checkback.prepared(soonest)
        for op in ops:
            if type(op) is AnswerChecks:
                self._broker.checkback.answered(op)
            elif type(op) is Nack or (type(op) is Ack and self._waiters.in_order):
                self._given_back(op.receipts)
        return results  # type: ignore[return-value]  # client operations answer with OpResult or None only

    async def commit_of_group(self, op: Commit, group: GroupName, weight: int = WEIGHT) -> OpResult:
        """Commit a transaction of this producer group, or of none. For any other the result is `forbidden`."""
        self._admit([op])
        (wished,) = self._caller.guarded([op])
        (result,) = await self._writer.submit([Guarded(wished, (group,))], weight)
        return result if isinstance(result, OpResult) else OpResult()

    async def do(self, op: ClientOp | PrepareColumns, weight: int = WEIGHT) -> OpResult:
        """Carry out a single operation; a refusal is raised. Receipts that held nothing are told in the answer."""
        try:
            (result,) = await self.batch([op], weight)
        except TallystickError as error:
            raise _of_one(error) from error
        if result is None:
            return OpResult()
        if not result.stale:
            raise_refusal(result)
        return result

    async def do_and_show(self, op: Prepare | Commit | Rollback, weight: int = WEIGHT) -> TransactionView:
        """Carry out one operation on a transaction and tell what has become of that; a refusal is raised."""
        try:
            soonest = self._admit([op])
            view = await self._change(op, op.gid, weight)
        except TallystickError as error:
            raise _of_one(error) from error
        if soonest is not None:
            self._broker.checkback.prepared(soonest)
        return view

    def _admit(self, ops: Sequence[ClientOp | PrepareColumns]) -> int | None:
        """Refuse what this caller may not do, or nobody may; the shortest time to a first check among the rest."""
        self._caller.may_do(ops)
        return self._admission.check(ops)

    async def _change(self, op: ClientOp | BrokerOp, gid: str, weight: int = WEIGHT) -> TransactionView:
        """Carry out an operation on a transaction, and see it as the group commit left it."""
        self._caller.may_see("transaction", gid)
        wrapped = self._wrapped(op)
        (result,), view = await self._writer.submit_and_look([wrapped], lambda store: store.transaction(gid), weight)
        raise_refusal(result)
        return _known(self._shown(view), gid)

    def _shown(self, view: TransactionView | None) -> TransactionView | None:
        """A transaction that was found by its gid, unless it is of a group that is not for this caller's eyes. One
        without a group was sent, or rolled back before it was prepared: whoever produces, and knows its gid, may ask
        about it."""
        if view is None or (not view.group and self._caller.sees_nobodys):
            return view
        return view if self._caller.sees_transactions_of(view.group) else None

    def _listed(self, found: Iterable[TransactionView]) -> list[TransactionView]:
        """Those of a list that are for this caller's eyes. One without a group is nobody's own, and whoever looks
        through a list does not know its gid."""
        return [view for view in found if self._caller.sees_transactions_of(view.group)]

    def _sees(self, store: Store, gid: str) -> bool:
        return self._caller.sees_every_transaction or self._shown(store.transaction(gid)) is not None

    def _given_back(self, receipts: list[str]) -> None:
        """A message is visible again sooner than its lease said, or the next one of its key is free: those who
        wait look again."""
        self._waiters.appended({receipt.partition("/")[0] for receipt in receipts})

    def new_gid(self, messages: Sequence[OutgoingMessage] = ()) -> str:
        """For a transaction that is to hold these messages."""
        return new_gid(self.store_id)

    def new_gid_of(self, app: str) -> str:
        """For a batch of an application."""
        return new_gid(self.store_id)

    # --- what an operator does -----------------------------------------------------------------------------------

    async def resolve(self, gid: str, outcome: Outcome) -> TransactionView:
        return await self._act_on(gid, OperatorResolve(gid, outcome))

    async def resume(self, gid: str) -> TransactionView:
        return await self._act_on(gid, Resume(gid))

    async def hurry(self, gid: str) -> TransactionView:
        return await self._act_on(gid, Hurry(gid))

    async def hurry_all(self, after_ms: int, limit: int) -> tuple[int, bool]:
        """How many were hurried, and whether there are more."""
        progress = await self._act(HurryAll(after_ms, limit), Progress)
        return progress.done, progress.more

    async def resume_calls(self, gid: str) -> None:
        await self._act(ResumeCalls(gid))

    async def stop_calls(self, gid: str) -> None:
        await self._act(StopCalls(gid))

    async def subscribe(self, topic: str, url: str, remark: str) -> None:
        """Add a URL to a call topic, if this broker may call it."""
        await self._act(Subscribe(topic, url, remark))

    async def unsubscribe(self, topic: str, url: str) -> None:
        await self._act(Unsubscribe(topic, url))

    async def drop_call_topic(self, topic: str) -> None:
        await self._act(DropCallTopic(topic))

    async def put_topic(self, name: str, spec: TopicSpec) -> TopicView:
        return await self._act(PutTopic(name, spec.queues, spec.retention_ms), TopicView)

    async def delete_topic(self, name: str) -> None:
        await self._act(DeleteTopic(name))

    async def trim(self, topic: str, offsets: dict[int, int]) -> None:
        """Remove what lies before these offsets, in pieces that hold nobody up."""
        op = TrimTo(topic, offsets, TRIMMED_AT_ONCE)
        progress = await self._act(op, Progress)
        while progress.more:  # written down once, not with each piece
            progress = await self._carry_out(op, op, Progress)

    async def reset_group(self, group: str, to: ResetRequest) -> GroupView:
        """Move a consumer group; tells where it is then. Those who wait for messages look again."""
        await self._act(ResetGroup(group, to.topic, to.to, to.offsets, to.timestamp))
        view = await self._look(lambda store: store.stored_offsets(group, to.topic))
        self._waiters.appended({to.topic})
        return view

    async def forget_app(self, app: str) -> None:
        await self._act(ForgetApp(app))

    async def _act_on(self, gid: str, op: BrokerOp) -> TransactionView:
        """Carry out an operation on a transaction that no batch may hold, and tell what has become of that."""
        self._caller.may_do([op])
        view = await self._change(op, gid)
        self._acted(op)
        return view

    def _acted(self, op: BrokerOp) -> None:
        if isinstance(op, Resume | Hurry | HurryAll):
            self._broker.checkback.resumed()

    async def _act(self, op: BrokerOp, gives: type[T] = object) -> T:  # type: ignore[assignment]
        """Carry out an operation that no batch may hold; a refusal is raised."""
        self._caller.may_do([op])
        self._admission.check_action(op)
        return await self._carry_out(op, self._wrapped(op), gives)

    async def _carry_out(self, op: BrokerOp, wrapped: StoreOp, gives: type[T]) -> T:
        (result,) = await self._writer.submit([wrapped])
        raise_refusal(result)
        self._acted(op)
        if gives is not object and not isinstance(result, gives):
            raise TypeError(f"the store answered {op!r} with {result!r}")
        return result  # type: ignore[return-value]  # checked, or wanted by nobody

    def _wrapped(self, op: ClientOp | BrokerOp) -> StoreOp:
        """With whose transactions it may touch, and with who is to be written down as the one who did it."""
        (guarded,) = self._caller.guarded([op])
        return audited(guarded, op, self._caller)

    # --- whose turn it is, among the brokers of a cluster -----------------------------------------------------------

    async def take_turn(self, what: str, holder: str) -> bool:
        self._caller.may_see("turns")
        return self._broker.turns.take(what, holder)

    async def give_turn_back(self, what: str, holder: str) -> None:
        self._caller.may_see("turns")
        self._broker.turns.give_back(what, holder)

    # --- what can be looked at, between two group commits --------------------------------------------------------

    async def transaction(self, gid: str) -> TransactionView:
        return _known(self._shown(await self._see(lambda store: store.transaction(gid), "transaction", gid)), gid)

    async def transactions(
        self, state: str | None, group: str | None, after: str | None, limit: int
    ) -> TransactionPage:
        names = () if group is None else (group,)
        found, following = await self._see(lambda store: store.scan(state, group, after, limit), "transactions", *names)
        return TransactionPage(self._listed(found), following)

    async def whole(self, gid: str, most_bytes: int = 0) -> Whole | None:
        """A transaction with its calls. Bodies beyond `most_bytes` together are left out, as empty ones."""

        def see(store: Store) -> Whole | None:
            view = self._shown(store.transaction(gid))
            return None if view is None else _whole(store, view, store.calls(gid), most_bytes)

        return await self._see(see, "transaction", gid)

    async def wholes(self, state: str | None, after: str | None, limit: int) -> tuple[list[Whole], str | None]:
        """A page of transactions with their calls, without bodies, and where the next page begins."""

        def see(store: Store) -> tuple[list[Whole], str | None]:
            found, following = store.scan(state, None, after, limit)
            views = self._listed(found)
            return [Whole(view, store.calls(view.gid) if view.calls else None) for view in views], following

        return await self._see(see, "transactions")

    async def calls(self, gid: str) -> CallsView:
        view = await self._see(lambda s: s.calls(gid) if self._sees(s, gid) else None, "transaction", gid)
        if view is None:
            raise _without_calls(gid)
        self._broker.calls.mark(view.calls)
        return view

    async def list_calls(self, state: str | None, after: str | None, limit: int) -> CallPage:
        page = CallPage(*await self._see(lambda store: store.scan_calls(state, after, limit), "calls"))
        self._broker.calls.mark(page.calls)
        return page

    async def call_topics(self) -> list[CallTopicView]:
        found = await self._see(lambda store: store.call_topics(), "call topics")
        return [view for view in found if self._caller.sees_call_topic(view.topic)]

    async def called_hosts(self) -> list[HostView]:
        return self.call_hosts()

    def call_hosts(self) -> list[HostView]:
        self._caller.may_see("call hosts")
        return self._broker.calls.hosts()

    async def groups(self, group: str | None = None) -> list[GroupView]:
        names = () if group is None else (group,)
        found = await self._see(lambda store: store.groups(group), "group", *names)
        return [view for view in found if self._caller.sees_consumers(view.group, view.topic)]

    async def stored_offsets(self, group: str, topic: str) -> GroupView:
        return await self._see(lambda store: store.stored_offsets(group, topic), "group", group, topic)

    async def ledger(self, app: str) -> LedgerView:
        found = await self._see(lambda store: store.ledger(app), "ledger", app)
        if found is None:
            raise NotFound(f"there is no application {app!r} in the ledger", field="app")
        return found

    async def ledgers(self, after: str, limit: int) -> list[LedgerView]:
        found = await self._see(lambda store: store.ledgers(after, limit), "ledger")
        return [view for view in found if self._caller.sees_app(view.app)]

    async def splits(self, table: TableName, state: str | None, most: int) -> list[Split]:
        what = TABLE_LOOKS.get(table, "table")
        return await self._see(lambda store: store.splits(table, state, most), what, table)

    async def page(
        self,
        table: TableName,
        limit: int,
        after: str | None = None,
        before: str | None = None,
        state: str | None = None,
        group: str | None = None,
        older_than_ms: int | None = None,
    ) -> TablePage:
        """A page of one of the store's tables, with nothing in it that is not durable."""
        self._caller.may_see(TABLE_LOOKS.get(table, "table"), table)
        created_before = None if older_than_ms is None else self.now_ms() - older_than_ms
        query = TableQuery(table, limit, after, before, state, group, created_before)
        if table == "offsets":
            return visible_rows(await self._look(lambda store: store.page(query)), self._caller)
        page = await asyncio.to_thread(self._store.page, query)
        # It may show a group commit that is on its way to the disk: once the writer has looked up, that has arrived.
        await self._look(refuse_if_failed)
        return visible_rows(page, self._caller)

    async def info(self) -> BrokerInfo:
        counts = await self._see(lambda store: store.counts(), "broker")
        config = self._broker.config
        return BrokerInfo(
            self.store_id,
            version("tallystick"),
            self.now_ms(),
            config.dedup_retention,
            counts.oldest_pending_at,
            msgspec.structs.asdict(self.limits),
            counts.calls_waiting,
            counts.calls_parked,
            config.grpc_port if config.grpc else 0,
            list(self._broker.weaknesses),
        )

    async def _see(self, see: Callable[[Store], T], what: str, *names: str) -> T:
        self._caller.may_see(what, *names)
        return await self._look(see)

    async def _look(self, see: Callable[[Store], T]) -> T:
        return await self._writer.look(see)

    # --- topics and what is in them ------------------------------------------------------------------------------

    async def topic(self, name: str) -> TopicView:
        return self.known_topic(name)

    def known_topic(self, name: str) -> TopicView:
        """What the store keeps of topics in memory, so that it costs the event loop nothing to look."""
        self._caller.may_see("topic", name)
        view = self._store.topic(name)
        if view is None:
            raise NotFound(f"there is no topic {name!r}", field="topic")
        return view

    async def offsets_at(self, topic: str, timestamp: int) -> list[int]:
        self._caller.may_see("topic", topic)
        return await asyncio.to_thread(self._store.offsets_at, topic, timestamp)

    def read(self, topic: str, queue: int, offset: int, most: int, max_bytes: int, columns: Welcome = "none") -> Slice:
        """A piece of a queue. It reads from the disk, so not on the event loop. Who reads many is asked again."""
        self._caller.may_see("messages", topic)
        self._check_again()
        return self._store.read(topic, queue, offset, most, max_bytes, columns)

    def queues_of(self, topics: Iterable[str]) -> dict[str, int]:
        """How many queues these topics have, or would have once they are made: for whoever divides messages among them,
        and will be asked whether it may send those."""
        views = {name: self._store.topic(name) for name in topics}
        default = self._broker.config.default_queues
        return {name: default if view is None else view.queues for name, view in views.items()}

    # --- long polls ----------------------------------------------------------------------------------------------

    async def fetch(self, topic: str, queue: int, offset: int, most: int, max_bytes: int, wait_ms: int) -> Slice:
        async def look() -> Slice:
            return await asyncio.to_thread(self.read, topic, queue, offset, most, max_bytes)

        return await self._waiters.poll((topic,), wait_ms, look, lambda piece: bool(piece.chunks))

    async def ends(
        self, names: Sequence[str] | None, position: int | None, wait_ms: int
    ) -> tuple[list[TopicView], int]:
        """Topics and a number that changes with their ends; waits while it is still `position`."""
        self._caller.may_see("topic", *(names or ()))

        async def look() -> tuple[list[TopicView], int]:
            self._check_again()
            # In memory, as in `topic`.
            views = self._store.topics() if names is None else present(self._store.topic(name) for name in names)
            views = [view for view in views if self._caller.sees_topic(view.name)]
            return views, position_of(views)

        return await self._waiters.poll(names or (ANY,), wait_ms, look, lambda found: found[1] != position)

    async def receive(self, group: str, request: ReceiveRequest) -> list[Delivery]:
        self._admission.refuse_while_draining()
        op = Receive(
            group,
            request.topic,
            request.max,
            request.invisible_ms,
            request.ordered,
            request.start,
            request.tags,
        )

        async def look() -> Received:
            self._check_again()
            return await self._act(op, Received)

        def again_in(received: Received) -> float | None:
            visible_at = received.next_visible
            return None if visible_at is None else max(0.005, (visible_at - self.now_ms()) / 1000)

        # Counted before the first look: an ack after it must not be missed.
        self._waiters.in_order += request.ordered
        try:
            received = await self._waiters.poll(
                (request.topic,), request.wait_ms, look, lambda received: bool(received.deliveries), again_in
            )
        finally:
            self._waiters.in_order -= request.ordered
        return received.deliveries

    async def wait_for_calls(self, gid: str, seconds: float) -> CallsView:
        """A transaction's calls, once each that could be tried has been, or when the time is up."""
        self._caller.may_see("transaction", gid)
        if not self._caller.sees_every_transaction and not await self._look(lambda store: self._sees(store, gid)):
            raise _without_calls(gid)
        found = await self._broker.calls.wait(gid, seconds)
        self._check_again()
        return found

    async def poll_checks(self, poll: CheckPoll) -> list[CheckRequest]:
        self._caller.may_see("checks", poll.group)
        self._admission.refuse_while_draining()
        # Checks are handed out in rounds: whoever does not want to wait still waits for the next one.
        seconds = max(poll.wait_ms / 1000, 2 * TICK_SECONDS)
        asked = await self._broker.checkback.members.poll(poll.group, poll.member, poll.max, seconds)
        self._check_again()
        return asked

    def _check_again(self) -> None:
        """A poll may last for a minute, a stream for longer, and what let it in be revoked meanwhile."""
        if self._broker.identities is not None:
            self._broker.identities.check_again(self._caller.identity)

    # --- the broker itself ---------------------------------------------------------------------------------------

    @property
    def store_id(self) -> str:
        return self._store.id

    def now_ms(self) -> int:
        return self._broker.clock.now_ms()

    def cluster(self) -> ClusterView:
        """Of a broker that works on one store by itself."""
        self._caller.may_see("broker")
        trouble = self.not_ready() or ""
        return ClusterView([ClusterStore(self.store_id, trouble=trouble)], not_ready=trouble)

    def not_ready(self) -> str | None:
        """Why no work is taken; None if it is."""
        refusal = self._admission.refusal
        return self._writer.failure() if refusal is None else refusal.code

    def answered(self, route: str, status: int | str) -> None:
        """Count a request. `route` comes from a closed set, never from what somebody sent."""
        self._broker.metrics.requests[route, str(status)] += 1

    async def metrics(self) -> bytes:
        """In the form that Prometheus reads."""
        self._caller.may_see("metrics")
        await self._broker.count()
        return generate_latest(self._broker.metrics.registry)

    async def families(self) -> list[Metric]:
        """The same, for whoever puts them together with those of other stores."""
        self._caller.may_see("metrics")
        await self._broker.count()
        return list(self._broker.metrics.registry.collect())


def raise_refusal(result: Result) -> None:
    """Raise what an operation was refused with; nothing if it was carried out."""
    if isinstance(result, OpResult) and result.error:
        raise error_from_code(result.error, result.detail, result.field)


def _of_one(error: TallystickError) -> TallystickError:
    """The caller has sent no list of operations, so the place is told without it."""
    place = (error.field or "").removeprefix("ops[0].") or None
    return type(error)(error.detail.removeprefix("ops[0]."), field=place, **error.extra)


def _known(view: TransactionView | None, gid: str) -> TransactionView:
    if view is None:
        raise NotFound(f"transaction {gid} is not known here", field="gid")
    return view


def _without_calls(gid: str) -> NotFound:
    return NotFound(f"transaction {gid} is not known here, or has no calls", field="gid")


def _whole(store: Store, view: TransactionView, calls: CallsView | None, most_bytes: int) -> Whole:
    bodies = []
    for call in calls.calls if calls and most_bytes else ():
        most_bytes -= call.size
        bodies.append(store.call_body(view.gid, call.index) if call.size and most_bytes >= 0 else b"")
    return Whole(view, calls, bodies)

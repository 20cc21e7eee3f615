"""`ts`: the client of this process, made from the settings at its first use."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, connections

from tallystick.barrier.adapters.django import OrmAdapter
from tallystick.client.base import forks
from tallystick.client.base.arguments import check_handler, checked_tags
from tallystick.client.base.calls import CallOptions
from tallystick.client.base.misuse import OneProcess
from tallystick.client.base.results import check_runs
from tallystick.client.base.settings import CheckBack
from tallystick.client.base.stats import Stats
from tallystick.client.client import Client
from tallystick.client.consumers.subscription import check_topic
from tallystick.client.seam import seam_of
from tallystick.client.transactions.modes import ModeName
from tallystick.client.transactions.transaction import Transaction
from tallystick.core.errors import InvalidRequest
from tallystick.django import conf
from tallystick.django.handlers import Handler, Registered

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=Handler)


def _of_client(method: Callable[Concatenate[Client, P], T]) -> Callable[Concatenate[Tallystick, P], T]:
    """The method of the client, which is made if need be."""

    def call(self: Tallystick, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self.client, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


class Tallystick(OneProcess):
    """A client that knows Django's databases by their aliases. Safe for threads and prefork servers, as `Client` is."""

    def __init__(self) -> None:
        self.registered: list[Registered] = []
        self._client: Client | None = None
        self._taken: set[int] = set()
        self._lock = threading.Lock()
        forks.watch(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()  # the client takes care of itself

    @property
    def client(self) -> Client:
        """The client itself, made from `settings.TALLYSTICK` at its first use."""
        client = self._client
        if client is None:
            with self._lock:
                client = self._client = self._client or conf.new_client()
        return client

    def close(self, timeout: float | None = None) -> None:
        """Close the client, if there is one; the next use makes another."""
        with self._lock:
            client, self._client = self._client, None
            self._taken.clear()
        if client is not None:
            client.close(*(() if timeout is None else (timeout,)))

    @property
    def stats(self) -> Stats:
        """Counts of what happened without being raised."""
        return self.client.stats

    # Transactions

    def transaction(
        self,
        using: str | None = None,
        *,
        durable: bool = False,
        mode: ModeName = "check-back",
        check: CheckBack | None = None,
        gid: str | None = None,
        wait: bool | None = None,
        call_options: CallOptions | None = None,
    ) -> Transaction:
        """An `atomic(using)` whose changes and messages happen together or not at all.

        As the outermost `atomic` it commits at its end. Inside another one (also a `TestCase`, or ATOMIC_REQUESTS) it
        is a savepoint, and its messages go out when, and if, the outermost one commits. With `durable` it must be the
        outermost, as for `atomic`. The other options are those of `Client.transaction`.
        """
        adapter = OrmAdapter(connections[using or DEFAULT_DB_ALIAS], durable=durable)
        options = {"check": check, "gid": gid, "wait": wait, "call_options": call_options}
        return seam_of(self.client).transaction(adapter, mode=mode, **options)

    def clean(self, using: str | None = None, *, older_than: float, groups: list[str] | None = None) -> dict[str, int]:
        """`Client.clean` for a database: delete old rows that no broker can ask for any more; how many of each kind."""
        return self.client.clean(connections[using or DEFAULT_DB_ALIAS], older_than=older_than, groups=groups)

    # Consumers

    def subscribe(self, topic: str, *, using: str | None = DEFAULT_DB_ALIAS, **options: Any) -> Callable[[H], H]:
        """Have a function called for each message of a topic by `manage.py tallystick_consume`.

        It is one of `(message)`, `(message, tx)`, whose `tx.send` and `tx.call` happen if and only if its effect does,
        or `(message, connection, tx)`. It runs in an `atomic(using)` together with its inbox row (or offset), so the
        ORM's changes in that database happen once. With `using=None` it runs in no transaction, and may be called more
        than once for a message. The other options are those of `Client.subscribe`, but for `exactly_once`.
        """

        check_topic(topic)
        if "exactly_once" in options:
            raise InvalidRequest(
                "exactly_once: Django's connections are named by their alias. Give using='default' instead.",
                field="exactly_once",
            )
        if using is not None and not isinstance(using, str):
            raise InvalidRequest(
                f"using: the alias of a database is needed (got {type(using).__name__}). Give using='default'.",
                field="using",
            )
        checked_tags(options.get("tags"))

        def register(handler: H) -> H:
            check_handler(handler)
            check_runs(handler, "handler", awaited=False)
            self.registered.append(Registered(topic, handler, using, options))
            return handler

        return register

    def take_up(self, topics: Iterable[str] = ()) -> list[Registered]:
        """Subscribe what is registered for these topics (all, if none is named) at the client."""
        wanted = set(topics)
        chosen = [one for one in self.registered if not wanted or one.topic in wanted]
        for one in chosen:
            if id(one) not in self._taken:
                one.subscribe(self.client)
                self._taken.add(id(one))
        return chosen

    start = _of_client(Client.start)
    stop = _of_client(Client.stop)
    run = _of_client(Client.run)

    # What needs no database

    new_gid = _of_client(Client.new_gid)
    prepare = _of_client(Client.prepare)
    commit = _of_client(Client.commit)
    rollback = _of_client(Client.rollback)
    transaction_state = _of_client(Client.transaction_state)
    outcome = _of_client(Client.outcome)
    call = _of_client(Client.call)
    send_calls = _of_client(Client.send_calls)
    calls = _of_client(Client.calls)
    send = _of_client(Client.send)
    send_many = _of_client(Client.send_many)
    fetch = _of_client(Client.fetch)
    receive = _of_client(Client.receive)
    ack = _of_client(Client.ack)
    nack = _of_client(Client.nack)
    renew = _of_client(Client.renew)
    offsets = _of_client(Client.offsets)
    commit_offsets = _of_client(Client.commit_offsets)
    reset_group = _of_client(Client.reset_group)
    topics = _of_client(Client.topics)
    topic = _of_client(Client.topic)
    create_topic = _of_client(Client.create_topic)
    info = _of_client(Client.info)


ts = Tallystick()


def _settings_changed(*, setting: str, **_: Any) -> None:
    """Only tests change settings: what they have set is for the next client."""
    if setting == conf.NAME:
        ts.close()


setting_changed.connect(_settings_changed, dispatch_uid="tallystick")

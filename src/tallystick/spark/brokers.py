"""The way to a broker, or to a cluster of brokers that share their stores: as long as one of them lives, it is found.

An address may be several, separated by commas: brokers of one cluster. Whoever answers first is asked who else is
there; when it answers no longer, another one is. Any of them takes any request, so a task need not know who owns what.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tallystick.core.errors import (
    BrokerUnavailable,
    BrokerUntrusted,
    Draining,
    InvalidRequest,
    NotFound,
    TallystickError,
)
from tallystick.core.placing import store_for
from tallystick.core.wire import ClusterView
from tallystick.credentials.credentials import NO_CREDENTIALS, Credentials
from tallystick.credentials.following import may_follow
from tallystick.limited_http import LimitedResponse
from tallystick.link import TIMEOUT_SECONDS, Link, addresses_of

_STORES = "/stores/"
_LOOK_SECONDS = 5.0
T = TypeVar("T")
_FRESH_SECONDS = 5.0  # brokers come and go while a query runs for weeks


class BrokersLink(Link):
    """A link that goes on at another broker of the cluster when the one it asks is gone. A broker of its own has no
    others: then it waits for that one, as long as its patience lasts."""

    def __init__(
        self,
        urls: str,
        timeout: float = TIMEOUT_SECONDS,
        patience: float = 0.0,
        named: str = "--url",
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self._given = self._known = addresses_of(urls, named)
        self._view: ClusterView | None = None
        self._untrusted: dict[str, BrokerUntrusted] = {}  # during one request: the brokers not to try again
        self._look_at = 0.0  # when the broker whose turn it is will be asked who else is there
        super().__init__(self._given[0], timeout, patience, named, credentials)

    # --- what is there -------------------------------------------------------------------------------------------

    @property
    def stores(self) -> list[str]:
        """The ids of the stores that are asked by this link, in the order of their numbers; none, if the broker is too
        old to tell."""
        view = self._patiently(self._seen)
        one = _store_named(self.url)
        return [one] if one else [store.id for store in sorted(view.stores, key=lambda store: store.number)]

    @property
    def divided(self) -> bool:
        """Whether what looks like one topic lies in several stores, each with a life of its own."""
        return len(self.stores) > 1

    @property
    def identity(self) -> str:
        """What tells these queues from others of the same number: the store, or the stores and how many there are."""
        stores = self.stores
        if not stores:
            return str(self.get("info")["store"])
        return stores[0] if len(stores) == 1 else f"{stores[0]}/{len(stores)}"

    def store_of_app(self, app: str) -> str:
        """Where the batches of an application are kept, all of them."""
        stores = self.stores
        return store_for(app, stores) if stores else ""

    def addresses_by_store(self) -> dict[str, str]:
        """Of each store an address of its own, at all brokers that are known."""
        roots = [_root(url) for url in self._known]
        return {store: ",".join(f"{root}{_STORES}{store}" for root in roots) for store in self.stores}

    def _seen(self) -> ClusterView:
        if self._view is None or time.monotonic() >= self._look_at:
            self._view = self._look()
            self._look_at = time.monotonic() + _FRESH_SECONDS
        return self._view

    def _look(self) -> ClusterView:
        with Link(_root(self.url), timeout=_LOOK_SECONDS, named=self._named, credentials=self._credentials) as asked:
            try:
                view = msgspec.convert(asked.get("cluster"), ClusterView)
            except NotFound:  # a broker from before there were clusters
                view = ClusterView([])
        self._require_same(view)
        suffix = self.url.removeprefix(_root(self.url))
        alive = [broker.url.rstrip("/") + suffix for broker in view.brokers if broker.alive]
        alive = [url for url in alive if may_follow(self._given, url)]
        self._known = list(dict.fromkeys([*self._given, *alive]))
        return view

    def _require_same(self, view: ClusterView) -> None:
        """Of brokers that have nothing to do with each other, none can stand in for another. That a broker of its own
        has another store than before is found out where it matters: its topics are others."""
        before = {store.id for store in self._view.stores} if self._view is not None and self._view.brokers else set()
        alone = len(self._given) > 1 and not view.brokers
        if alone or (before and before.isdisjoint(store.id for store in view.stores)):
            what = "a broker of its own" if alone else "no broker of the cluster that was asked before"
            raise InvalidRequest(
                f"{self._named}: {self.url} is {what}; several addresses are for brokers that share their stores",
                field="url",
            )

    # --- one request ---------------------------------------------------------------------------------------------

    def _exchange(
        self, method: str, path: str, body: bytes | memoryview | None, headers: dict[str, str]
    ) -> LimitedResponse:
        self._seen()
        return super()._exchange(method, path, body, headers)

    def _patiently(self, ask: Callable[[], T]) -> T:
        self._untrusted = {}
        try:
            return super()._patiently(ask)
        except BrokerUnavailable as error:
            others = [one.detail for one in self._untrusted.values() if one is not error]
            if not others:
                raise
            raise type(error)("; ".join([error.detail, *others])) from error

    def _asks_elsewhere(self, error: TallystickError) -> bool:
        """A broker whose certificate is not trusted is not tried again. Another one may have a good certificate."""
        if not isinstance(error, BrokerUntrusted):
            return False
        self._untrusted[self.url] = error
        return self._go_on_at_another()

    def _before_another_try(self, error: TallystickError) -> None:
        """Go on at the next broker, unless this one has only asked for a later try."""
        if isinstance(error, BrokerUnavailable | Draining):
            self._go_on_at_another()

    def _go_on_at_another(self) -> bool:
        """False if no other broker is known that may be asked."""
        at = self._known.index(self.url) if self.url in self._known else -1
        turns = [*self._known[at + 1 :], *self._known[: max(at, 0)]]
        another = next((url for url in turns if url not in self._untrusted and url != self.url), None)
        if another is None:
            return False
        self.close()
        self._connect_to(another)
        self._look_at = 0.0
        return True


def stores_behind(
    urls: str, patience: float, named: str = "--url", credentials: Credentials = NO_CREDENTIALS
) -> dict[str, str]:
    """The address of each store at these addresses, by its id: of a broker of its own, what was given."""
    with BrokersLink(urls, patience=patience, named=named, credentials=credentials) as link:
        if not link.stores:
            return {link.identity: urls}
        return link.addresses_by_store() if link.divided else {link.stores[0]: urls}


def _root(url: str) -> str:
    """The broker's own address, without the store."""
    return url.rpartition(_STORES)[0] or url if _store_named(url) else url


def _store_named(url: str) -> str:
    """The store that an address ends with, if it does."""
    _, mark, store = url.rpartition(_STORES)
    return store if mark and "/" not in store else ""

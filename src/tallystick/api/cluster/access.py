"""Tokens and deeds of a cluster: every store has all tokens, so that its owner knows them; each has its own deeds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tallystick.api.cluster.asking import Method, finish_without_client
from tallystick.api.cluster.present import SOON_SECONDS
from tallystick.api.cluster.views import ClusterViews
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import Conflict, InvalidRequest, NotFound, StorageFailed, TallystickError
from tallystick.core.limits import PATIENCE_SECONDS
from tallystick.core.token_records import TokenRecord, TokenView
from tallystick.core.wire import AuditLine, AuditPage

BEGIN, END = "", "."  # of a store's log, where another store's has a place
WOVEN = 16  # lines of a store that are looked at beyond a page, for deeds whose lines lie in another order elsewhere
Deed = dict[int, AuditLine]  # the line of each store, by its number
ONE_DEED_MS = 10_000  # what was done on several stores within this time, in the same words, is one deed


class ClusterAccess(ClusterViews):
    # --- tokens ----------------------------------------------------------------------------------------------------

    async def put_token(self, record: TokenRecord) -> None:
        """On the first store first: of two who want a name at once, it decides. Then on all others; if one of them
        cannot, the token is taken back everywhere. So it is if the first store does not have it any more: it was
        revoked meanwhile, and that may have come to the others before the token did."""
        finish_without_client()
        first, *others = stores = self._owners.stores()
        until = _deadline()
        failed = await self._failures([first], until, BrokerDoor.put_token, record)
        if failed:
            stores = [first]
        else:
            failed = await self._failures(others, until, BrokerDoor.put_token, record)
        if not failed and others:
            failed = await self._gone(first, record)
        if not failed:
            return
        store, error = next(iter(failed.items()))
        left = await self._take_back(record, stores, until)
        raise _told(error, f"store {store}: {error.detail}", left, "keep it; `tallystick tokens revoke` takes it back")

    async def _gone(self, store: str, record: TokenRecord) -> dict[str, TallystickError]:
        try:
            views = await self._ask(store, BrokerDoor.tokens)
        except TallystickError as error:
            return {store: error}
        if any(view.id == record.id for view in views):
            return {}
        return {store: Conflict(f"the token {record.name!r} was revoked while it was made", field="name")}

    async def _take_back(self, record: TokenRecord, stores: Sequence[str], until: float) -> list[str]:
        """Those that could not be asked, and may have it. A store that said no may have it all the same, if it was its
        answer that got lost; another token of that name stays."""
        failed = await self._failures(stores, until, BrokerDoor.drop_token, record.name, record.id)
        return [store for store, error in failed.items() if not isinstance(error, NotFound)]

    async def drop_token(self, name: str, token_id: str = "") -> None:
        """From the first store first, as it is put there first: whoever puts it looks there again at the end."""
        finish_without_client()
        stores, until = self._owners.stores(), _deadline()
        failed = await self._dropped(stores, until, name, token_id)
        unknown = {store for store, error in failed.items() if isinstance(error, NotFound)}
        if stores[0] in unknown and len(failed) < len(stores):
            # It was put just now: what did not have it yet may have it by now.
            again = await self._dropped([store for store in stores if store in unknown], until, name, token_id)
            failed = {store: error for store, error in failed.items() if store not in unknown} | again
            unknown = {store for store, error in failed.items() if isinstance(error, NotFound)}
        left = [store for store in failed if store not in unknown]
        if left:
            error = failed[left[0]]
            raise _told(error, error.detail, left, "still take the token: revoke it again")
        if len(unknown) == len(stores):
            raise next(iter(failed.values()))

    async def _dropped(
        self, stores: Sequence[str], until: float, name: str, token_id: str
    ) -> dict[str, TallystickError]:
        """Those that have it all the same, and why."""
        first, *others = stores
        failed = await self._failures([first], until, BrokerDoor.drop_token, name, token_id)
        return failed | await self._failures(others, until, BrokerDoor.drop_token, name, token_id)

    async def tokens(self) -> list[TokenView]:
        """While one is put or dropped, or if that broke off half-way, it says which stores do not have it."""
        stores = self._owners.stores()
        known: dict[tuple[str, str], TokenView] = {}
        having: dict[tuple[str, str], set[str]] = {}
        for store, views in zip(stores, await self._each(BrokerDoor.tokens), strict=True):
            for view in views:
                known.setdefault((view.name, view.id), view)
                having.setdefault((view.name, view.id), set()).add(store)
        for key, view in known.items():
            view.missing_on = [store for store in stores if store not in having[key]]
        return [known[key] for key in sorted(known)]

    async def _failures(
        self, stores: Sequence[str], until: float, method: Method[Any], *args: Any
    ) -> dict[str, TallystickError]:
        """`until` is the deadline of the whole request. After it, stores that answer soon still do their part."""
        limit = max(until, asyncio.get_running_loop().time() + SOON_SECONDS)

        async def failure(store: str) -> TallystickError | None:
            try:
                async with asyncio.timeout_at(limit):
                    await self._ask(store, method, *args)
            except TallystickError as error:
                return error
            except TimeoutError:
                return StorageFailed(f"the store has not answered in time (limit {PATIENCE_SECONDS:.0f} s)")
            return None

        found = zip(stores, await asyncio.gather(*map(failure, stores)), strict=True)
        return {store: error for store, error in found if error is not None}

    # --- deeds -----------------------------------------------------------------------------------------------------

    async def audit(
        self,
        limit: int,
        after: str | None = None,
        who: str | None = None,
        action: str | None = None,
        since: int | None = None,
    ) -> AuditPage:
        """Of all stores, by time. A place is that of each store, with commas between them. A page ends behind a whole
        deed: it may have a few less than are wanted, or more, where several were done at once."""
        stores = self._owners.stores()
        places = [BEGIN] * len(stores) if after is None else after.split(",")
        if len(places) != len(stores):
            raise InvalidRequest(f"after: {str(after)[:80]!r} is no place in the log of this cluster", field="after")
        pages = await asyncio.gather(
            *(
                self._audit_of(store, limit + WOVEN, place, who, action, since)
                for store, place in zip(stores, places, strict=True)
            )
        )
        merged = sorted(
            ((line, number) for number, page in enumerate(pages) for line in page.lines),
            key=lambda found: (-found[0].at, found[1]),
        )
        deeds = _deeds(merged)
        deeds = deeds[: _whole_deeds(deeds, [page.lines for page in pages], limit)]
        following = [
            _following(place, page, [deed[number] for deed in deeds if number in deed])
            for number, (place, page) in enumerate(zip(places, pages, strict=True))
        ]
        over = all(place == END for place in following)
        return AuditPage(
            [max(deed.values(), key=lambda line: line.at) for deed in deeds], None if over else ",".join(following)
        )

    async def _audit_of(
        self, store: str, limit: int, place: str, who: str | None, action: str | None, since: int | None
    ) -> AuditPage:
        """As many as are wanted, unless there are no more: a page that filters much away may end early."""
        whole = AuditPage([], None if place == END else place)
        while whole.next is not None and len(whole.lines) < limit:
            page = await self._ask(store, BrokerDoor.audit, limit, whole.next or None, who, action, since)
            whole = AuditPage(whole.lines + page.lines, page.next)
        return whole


def _deadline() -> float:
    """A little later than the stores themselves give up, because their reason says more than a time-out."""
    return asyncio.get_running_loop().time() + PATIENCE_SECONDS + SOON_SECONDS


def _following(place: str, page: AuditPage, taken: Sequence[AuditLine]) -> str:
    """Where to go on in the log of one store, of whose page these were taken."""
    if len(taken) == len(page.lines):
        return END if page.next is None else page.next
    return page.lines[len(taken) - 1].place if taken else place


def _deeds(found: Sequence[tuple[AuditLine, int]]) -> list[Deed]:
    """What was done to every store is written down on each, and told once."""
    latest: dict[tuple[str, ...], Deed] = {}
    deeds: list[Deed] = []
    for line, store in found:
        said = (line.who, line.kind, line.source, line.action, line.subject)
        deed = latest.get(said)
        if deed is None or store in deed or max(one.at for one in deed.values()) - line.at > ONE_DEED_MS:
            deed = latest[said] = {}
            deeds.append(deed)
        deed[store] = line
    return deeds


def _whole_deeds(deeds: Sequence[Deed], logs: Sequence[Sequence[AuditLine]], limit: int) -> int:
    """How many fill a page that can be gone on from: of each store's log they are the beginning, and nothing that comes
    later lies between them. As many as are wanted, or else the next smaller number, or else the next larger one."""
    taken = [0] * len(logs)  # lines of each store
    reached = [0] * len(logs)  # how far they lie from its beginning
    places = [{line.place: number for number, line in enumerate(log, 1)} for log in logs]
    good = 0
    for count, deed in enumerate(deeds, 1):
        for store, line in deed.items():
            taken[store] += 1
            reached[store] = max(reached[store], places[store][line.place])
        if taken == reached:
            good = count
        if count >= limit and good:
            break
    return good


def _told(error: TallystickError, detail: str, left: Sequence[str], what: str) -> TallystickError:
    more = f"; the stores {', '.join(left)} could not be asked, and may {what}" if left else ""
    return type(error)(detail + more, field=error.field)

"""The way from a command to a broker: one address, or several of which the first one that answers is taken."""

from __future__ import annotations

from tallystick.cli.credentials import given_credentials
from tallystick.core.errors import BrokerUnavailable, BrokerUnreachable, BrokerUntrusted
from tallystick.limited_http import LimitedResponse
from tallystick.link import TIMEOUT_SECONDS, Link, addresses_of

LOOK_SECONDS = 3.0


class AnyLink(Link):
    """A link to the first of these brokers that answers. Chosen anew for each connection: `tail` goes on at another one
    when its broker is gone."""

    def __init__(self, urls: str, timeout: float = TIMEOUT_SECONDS) -> None:
        self._given = addresses_of(urls, "--url")
        super().__init__(self._given[0], timeout, credentials=given_credentials())

    def _exchange(
        self, method: str, path: str, body: bytes | memoryview | None, headers: dict[str, str]
    ) -> LimitedResponse:
        if self._connection.sock is None and len(self._given) > 1:
            self._connect_to(self._answering())
        return super()._exchange(method, path, body, headers)

    def _answering(self) -> str:
        why, failed = "", list[type[BrokerUnavailable]]()
        for address in self._given:
            with Link(address, LOOK_SECONDS, credentials=self._credentials) as asked:
                try:
                    asked.ready()  # or not: it answers
                except BrokerUnavailable as error:
                    failed.append(type(error))
                    if isinstance(error, BrokerUnreachable):  # TLS failed, so something listens there
                        why = f" ({error.detail})"
                    continue
            return address
        untrusted = all(issubclass(one, BrokerUntrusted) for one in failed)
        raise (BrokerUntrusted if untrusted else BrokerUnavailable)(
            f"no broker answers at any of {', '.join(self._given)}{why}; start one with `tallystick serve`, or name "
            "others with --url"
        )

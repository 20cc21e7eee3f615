"""HTTP to one broker: msgpack out and in, every failure turned into one of our errors.

The distinction that matters to a transaction is made here: `BrokerUnreachable` means that no byte of the request
left, any other `BrokerUnavailable` means that the broker may or may not have acted.

By aiohttp: long polls and what is asked now and then. What blocks wait for goes over `loop_wire.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp
import msgspec
from yarl import URL

from tallystick.core.errors import BrokerUnavailable, BrokerUnreachable, TallystickError, error_from_code
from tallystick.core.wire import MSGPACK, Problem

CONNECT_SECONDS = 5.0
# Shorter than a web server's own patience with idle connections (5 s is common): a request on a connection that is just
# being closed at the other end would count as sent, with its answer lost.
IDLE_SECONDS = 3.0

_HEADERS = {"Content-Type": MSGPACK, "Accept": MSGPACK}
_problem = msgspec.json.Decoder(Problem)


def new_session() -> aiohttp.ClientSession:
    """A session with nothing in it that a broker does not need."""
    return aiohttp.ClientSession(
        # No limit on connections: long polls keep theirs for as long as they wait, and the coalescer bounds the rest.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=256 * 1024,
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
        headers=_HEADERS,
    )


class Transport:
    """Requests to one broker over a shared session."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self.address = address
        self._session = session

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        query: Mapping[str, str | int] | None = None,
        timeout: float,
    ) -> bytes:
        """The body of a 2xx answer; anything else is raised as the error it stands for."""
        url = URL(self.address + path).with_query(query)
        return await self._request(method, url, body, timeout)

    async def _request(self, method: str, url: URL, body: bytes | None, timeout: float) -> bytes:
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
        try:
            async with self._session.request(method, url, data=body, timeout=limits) as answer:
                content = await answer.read()
                if answer.status < 300:
                    return content
                raise refusal(self.address, answer.status, answer.headers.get("Retry-After", ""), content)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as failure:
            raise BrokerUnreachable(
                f"{self.address} cannot be reached ({failure}); is the broker running there?"
            ) from failure
        except TimeoutError as failure:
            raise BrokerUnavailable(f"{self.address} did not answer within {timeout:.1f} s") from failure
        except RuntimeError as failure:
            if not self._session.closed:
                raise
            raise BrokerUnavailable(f"the client was closed before {self.address} had answered") from failure
        except aiohttp.ClientError as failure:
            detail = str(failure) or type(failure).__name__
            raise BrokerUnavailable(f"the connection to {self.address} broke: {detail}") from failure


def refusal(address: str, status: int, retry_after: str, content: bytes) -> TallystickError:
    """The error of an answer that is not 2xx, also from a proxy that does not speak problem+json."""
    try:
        problem = _problem.decode(content)
    except msgspec.MsgspecError:
        text = content[:200].decode("utf-8", "replace")
        return BrokerUnavailable(f"{address} answered {status} without a reason: {text!r}")
    error = error_from_code(problem.code, problem.detail, problem.field)
    if retry_after.isdigit():
        error.extra["retry_after"] = float(retry_after)
    return error


async def shut_session(session: aiohttp.ClientSession) -> None:
    """Close a session and let its sockets go before the loop does."""
    await session.close()
    # aiohttp closes its transports on the loop's next turns; a loop that ends first would leave them open.
    await asyncio.sleep(0)

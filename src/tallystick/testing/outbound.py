"""Ways out that lead nowhere: a unit test has no services around it that could be called."""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.broker.outbound.allow_list import AllowedUrls, Target
from tallystick.broker.outbound.answer import Answered, GrpcAnswer, OutboundFailed
from tallystick.broker.outbound.headers import Metadata
from tallystick.broker.outbound.outbound import Outbound
from tallystick.core.urls import url_parts


class EveryUrl(AllowedUrls):
    """Whatever is called in production may be named in a test. What is no URL is refused as ever."""

    def __init__(self) -> None:
        super().__init__([])

    def _look_at(self, url: str) -> Target:
        parts = url_parts(url)
        return Target(parts.scheme, parts.host, parts.port, parts.host, parts.path or "/", parts.query)


class NoWayOut(Outbound):
    """Nothing leaves. Calls, if they are made at all, are answered with success here; a check-back by URL is not."""

    def __init__(self) -> None:
        super().__init__(EveryUrl())

    async def get(
        self, url: str, params: Mapping[str, str], seconds: float, headers: Mapping[str, str] | None = None
    ) -> Answered:
        raise OutboundFailed(
            f"the broker of the tests does not ask {url}; MemoryBroker(calls='made') may go out to loopback",
            "not_allowed",
            permanent=False,
        )

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, seconds: float, query: str = ""
    ) -> Answered:
        return Answered(200, b"")

    async def grpc(self, url: str, metadata: Metadata, body: bytes, seconds: float) -> GrpcAnswer:
        return GrpcAnswer("OK", "")

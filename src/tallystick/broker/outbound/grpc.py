"""gRPC as raw bytes: unary calls whose messages nobody here looks into, over channels that are kept."""

from __future__ import annotations

import asyncio

import grpc

from tallystick.broker.outbound.allow_list import Resolver, Target
from tallystick.broker.outbound.answer import MAX_ANSWER_BYTES, GrpcAnswer, broken, late, unsendable
from tallystick.broker.outbound.headers import Metadata

IDLE_SECONDS = 60.0
MAX_CHANNELS = 1_024
_REFUSED = "failed to connect to all addresses"  # gRPC's own words


class _Kept:
    """A channel and who uses it: one that is in use is not closed."""

    __slots__ = ("channel", "used_at", "users")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel, self.users, self.used_at = channel, 0, 0.0


class Grpc:
    """Unary calls without TLS, as dtm's drivers make them, to addresses that were checked."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._channels: dict[tuple[str, str], _Kept] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, target: Target, metadata: Metadata, body: bytes, seconds: float) -> GrpcAnswer:
        """The status that came back, whatever it is; OutboundFailed if the call could not be made at all."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._resolver.addresses(target.host)
        except TimeoutError as error:
            raise late(seconds) from error
        except UnicodeError as error:  # a name that DNS cannot hold
            raise unsendable(error) from error
        except OSError as error:
            raise broken(error) from error
        answer = GrpcAnswer("UNAVAILABLE", "")
        for name in _names(addresses, target.port):
            answer = await self._call_at(name, target, metadata, body, deadline - loop.time())
            # Of a name that leads to addresses of both kinds, the service may listen on those of one. A refused
            # connection has brought nothing to anybody, so the others may be tried.
            if not _refused(answer):
                break
        return answer

    async def _call_at(self, name: str, target: Target, metadata: Metadata, body: bytes, seconds: float) -> GrpcAnswer:
        key = (name, target.authority)
        kept = self._channels.get(key) or self._open(key)
        kept.users += 1
        try:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = kept.channel.unary_unary(target.path)
            await method(body, timeout=max(0.001, seconds), metadata=tuple(metadata), wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                # Perhaps a connection into nothing, which TCP would believe in for a quarter of an hour.
                self._drop(key, kept)
            return GrpcAnswer(error.code().name, error.details() or "")
        finally:
            kept.users -= 1
            kept.used_at = asyncio.get_running_loop().time()
            if self._channels.get(key) is not kept:
                self._close(kept)
        return GrpcAnswer("OK", "")

    def _open(self, key: tuple[str, str]) -> _Kept:
        self._close_idle()
        name, authority = key
        options = [
            ("grpc.default_authority", authority),
            ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),  # whether a call is made again is for the store to say
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.use_local_subchannel_pool", 1),
            # A host that returns is found by our own tries, so the channel must not hold them back for long.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
        ]
        kept = _Kept(grpc.aio.insecure_channel(name, options=options))
        self._channels[key] = kept
        return kept

    def _close_idle(self) -> None:
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        idle = [(key, kept) for key, kept in self._channels.items() if not kept.users]
        idle.sort(key=lambda one: one[1].used_at)
        spare = len(self._channels) - MAX_CHANNELS + 1
        for place, (key, kept) in enumerate(idle):
            if kept.used_at < oldest or place < spare:
                self._drop(key, kept)

    def _drop(self, key: tuple[str, str], kept: _Kept) -> None:
        if self._channels.get(key) is kept:
            del self._channels[key]
        self._close(kept)

    def _close(self, kept: _Kept) -> None:
        if not kept.users:
            task = asyncio.ensure_future(kept.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        kept, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(one.channel.close() for one in kept), *self._closing)


def _names(addresses: list[str], port: int) -> list[str]:
    """gRPC's names for the addresses, those of one kind together: the kind that comes first is tried first."""
    kinds: dict[str, list[str]] = {}
    for address in addresses:
        six = ":" in address
        kinds.setdefault("ipv6" if six else "ipv4", []).append(f"[{address}]:{port}" if six else f"{address}:{port}")
    return [f"{kind}:{','.join(found)}" for kind, found in kinds.items()]


def _refused(answer: GrpcAnswer) -> bool:
    return answer.code == "UNAVAILABLE" and answer.details.startswith(_REFUSED)

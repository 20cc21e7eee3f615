"""The gRPC server that protocols share: unary and streaming methods, several services, several ports, reflection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tallystick.api.serving import sockets
from tallystick.api.serving.grpc import MAX_STATUS_TEXT, GrpcLimits, GrpcServer, GrpcService
from tallystick.api.serving.tls import Tls
from tallystick.broker.config import Config

METHODS = {"Once": (False, False), "Down": (False, True), "Up": (True, False), "Both": (True, True)}


class Echo:
    """A service in a pool of its own, as each protocol has one."""

    def __init__(self, package: str) -> None:
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        file.message_type.add(name="Word").field.add(name="text", number=1, type=9, label=1)
        service = file.service.add(name="Echo")
        for name, (up, down) in METHODS.items():
            kind = f".{package}.Word"
            service.method.add(name=name, input_type=kind, output_type=kind, client_streaming=up, server_streaming=down)
        pool = DescriptorPool()
        pool.Add(file)
        self.described = pool.FindServiceByName(f"{package}.Echo")
        self.word: Any = GetMessageClass(pool.FindMessageTypeByName(f"{package}.Word"))
        self.counted: list[tuple[str, str]] = []
        self.finished: list[str] = []
        self.release = asyncio.Event()
        methods = {"Once": self.once, "Down": self.down, "Up": self.up, "Both": self.both}
        self.service = GrpcService(self.described, methods, refuse, lambda *seen: self.counted.append(seen))

    async def once(self, word: Any) -> Any:
        if word.text == "bad":
            raise ValueError("x" * 5_000)
        if word.text == "slow":
            await asyncio.sleep(0.3)
        if word.text == "slow and bad":
            await self.release.wait()
            self.finished.append(word.text)
            raise ValueError("too late")
        self.finished.append(word.text)
        return self.word(text=word.text.upper())

    async def down(self, word: Any) -> AsyncIterator[Any]:
        for letter in word.text:
            if letter == "!":
                raise ValueError("no shouting")
            yield self.word(text=letter)

    async def up(self, words: AsyncIterator[Any]) -> Any:
        return self.word(text=" ".join([word.text async for word in words]))

    async def both(self, words: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for word in words:
            yield self.word(text=word.text[::-1])


def refuse(error: Exception) -> tuple[grpc.StatusCode, str]:
    return grpc.StatusCode.INVALID_ARGUMENT, str(error)


class Caller:
    """Calls a service by its description alone, at one port."""

    def __init__(self, channel: grpc.aio.Channel, echo: Echo) -> None:
        self._channel, self._echo = channel, echo

    def __getattr__(self, method: str) -> Any:
        up, down = METHODS[method]
        make = getattr(self._channel, f"{'stream' if up else 'unary'}_{'stream' if down else 'unary'}")
        read = self._echo.word.FromString
        return make(f"/{self._echo.described.full_name}/{method}", lambda one: one.SerializeToString(), read)


@contextlib.asynccontextmanager
async def serving(*services: Echo, ports: int = 1) -> AsyncIterator[list[grpc.aio.Channel]]:
    reserved = [one for _ in range(ports) for one in sockets.bind("127.0.0.1", 0)]
    server = GrpcServer(reserved, GrpcLimits(1_000_000, 100, 1_000, 10.0, 1.0), Tls(Config()))
    try:
        await server.start([echo.service for echo in services])
        async with contextlib.AsyncExitStack() as opened:
            places = [f"127.0.0.1:{one.getsockname()[1]}" for one in reserved]
            yield [await opened.enter_async_context(grpc.aio.insecure_channel(place)) for place in places]
    finally:
        await server.stop()
        sockets.close(reserved)


async def test_the_four_kinds_of_methods() -> None:
    echo = Echo("one")
    async with serving(echo) as (channel,):
        call, word = Caller(channel, echo), echo.word
        assert (await call.Once(word(text="a"))).text == "A"
        assert [one.text async for one in call.Down(word(text="abc"))] == ["a", "b", "c"]
        assert (await call.Up(iter([word(text="a"), word(text="b")]))).text == "a b"
        assert [one.text async for one in call.Both(iter([word(text="ab"), word(text="cd")]))] == ["ba", "dc"]
    assert echo.counted == [(f"/one.Echo/{name}", "OK") for name in METHODS]


async def test_a_stream_in_both_directions_answers_while_it_is_asked() -> None:
    echo = Echo("one")
    async with serving(echo) as (channel,):
        stream = Caller(channel, echo).Both()
        for text in ("ab", "cd"):
            await stream.write(echo.word(text=text))
            assert (await stream.read()).text == text[::-1]
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def test_what_a_method_raises_is_the_services_to_say() -> None:
    echo = Echo("one")
    async with serving(echo) as (channel,):
        call = Caller(channel, echo)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.Once(echo.word(text="bad"))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == "x" * MAX_STATUS_TEXT
        stream = call.Down(echo.word(text="ab!c"))
        assert [(await stream.read()).text for _ in range(2)] == ["a", "b"]
        with pytest.raises(grpc.aio.AioRpcError, match="no shouting"):
            await stream.read()
        nonsense = channel.unary_unary("/one.Echo/Once")
        with pytest.raises(grpc.aio.AioRpcError, match=r"cannot be decoded as one\.Word"):
            await nonsense(b"\xff\xff")
    assert [code for _, code in echo.counted] == ["INVALID_ARGUMENT"] * 3


async def test_what_has_begun_is_carried_out_though_its_caller_is_gone() -> None:
    echo = Echo("one")
    async with serving(echo) as (channel,):
        with pytest.raises(grpc.aio.AioRpcError, match="Deadline"):
            await Caller(channel, echo).Once(echo.word(text="slow"), timeout=0.1)
        await asyncio.sleep(0.5)
        assert echo.finished == ["slow"]


async def test_an_error_whose_caller_is_gone_is_taken_from_its_task() -> None:
    """asyncio logs a traceback for one that is not."""
    echo, logged = Echo("one"), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    async with serving(echo) as (channel,):
        with pytest.raises(grpc.aio.AioRpcError, match="Deadline"):
            await Caller(channel, echo).Once(echo.word(text="slow and bad"), timeout=0.2)
        for _ in range(100):  # the server hears of it, and gives up its side
            await asyncio.sleep(0.01)
            if not any("answer" in repr(task.get_coro()) for task in asyncio.all_tasks()):
                break
        echo.release.set()
        async with asyncio.timeout(20):
            while not echo.finished:
                await asyncio.sleep(0.01)
        for _ in range(5):
            await asyncio.sleep(0.01)
            gc.collect()
    assert logged == []


async def test_several_services_on_several_ports_are_known_to_reflection() -> None:
    first, second = Echo("one"), Echo("two")
    async with serving(first, second, ports=2) as channels:
        for channel in channels:
            for echo in (first, second):
                assert (await Caller(channel, echo).Once(echo.word(text="a"))).text == "A"
            asked = [
                reflection_pb2.ServerReflectionRequest(list_services=""),
                reflection_pb2.ServerReflectionRequest(file_containing_symbol="two.Echo"),
            ]
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            listed, described = [one async for one in stub.ServerReflectionInfo(iter(asked))]
            names = {one.name for one in listed.list_services_response.service}
            assert names == {"one.Echo", "two.Echo", "grpc.reflection.v1alpha.ServerReflection"}
            (written,) = described.file_descriptor_response.file_descriptor_proto
            assert FileDescriptorProto.FromString(written).package == "two"


async def test_a_port_that_another_program_listens_on_is_told() -> None:
    (taken,) = sockets.bind("127.0.0.1", 0)
    with taken:
        taken.listen()
        server = GrpcServer([taken], GrpcLimits(1_000, 10, 10, 10.0, 0.1), Tls(Config()))
        with pytest.raises(OSError, match="bind"):
            await server.start([Echo("one").service])
        await server.stop()

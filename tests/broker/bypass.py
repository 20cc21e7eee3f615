"""Every door of a broker that takes a URL, and a place that notes whoever comes by."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

from brokers import BrokerProcess
from dtm_grpc import GrpcClient, Refused
from raw_client import RawClient
from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import TallystickError
from tallystick.core.ops import Check, Prepare, Send

numbers = itertools.count()


class Listener:
    """A place on loopback that notes every connection and what was said first; answers with `answer`."""

    def __init__(self, answer: bytes = b"", family: int = socket.AF_INET, address: str = "127.0.0.1") -> None:
        self.heard: list[bytes] = []
        self.answer = answer or b'HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{"dtm_result":"SUCCESS"}'
        self._socket = socket.socket(family)
        self._socket.bind((address, 0))
        self._socket.listen(64)
        self._socket.settimeout(0.05)
        self._ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        while not self._ended:
            with contextlib.suppress(OSError):
                connection, _ = self._socket.accept()
                with connection:
                    connection.settimeout(1)
                    self.heard.append(b"")
                    self.heard[-1] = connection.recv(65_536)
                    connection.sendall(self.answer)

    def close(self) -> None:
        self._ended = True
        self._thread.join()
        self._socket.close()


@contextlib.contextmanager
def listening(**rest: Any) -> Iterator[Listener]:
    made = Listener(**rest)
    try:
        yield made
    finally:
        made.close()


Door = Callable[[BrokerProcess, str], str]
"""Tries to get a URL in; tells how it was refused, or "" if it was taken."""


def new_gid() -> str:
    return f"bypass-{next(numbers)}"


def native(op: Any) -> Callable[[BrokerProcess], str]:
    def attempt(broker: BrokerProcess) -> str:
        with RawClient(broker.url) as client:
            try:
                client.do(op)
            except TallystickError as error:
                return error.code
        return ""

    return attempt


def native_call(broker: BrokerProcess, url: str) -> str:
    return native(Send([], new_gid(), calls=[OutgoingCall(url, b"{}")]))(broker)


def native_second_call(broker: BrokerProcess, url: str) -> str:
    """Behind one that is allowed, in a transaction that would be committed at once."""
    good = OutgoingCall(f"http://127.0.0.1:{broker.settings['allowed_urls'][0].rpartition(':')[2]}/", b"{}")
    return native(Send([], new_gid(), calls=[good, OutgoingCall(url, b"{}")]))(broker)


def native_check(broker: BrokerProcess, url: str) -> str:
    return native(Prepare(new_gid(), "shop", [], Check("url", url, after_ms=0), calls=[]))(broker)


def native_json(broker: BrokerProcess, url: str) -> str:
    with RawClient(broker.url) as client:
        request = {"gid": new_gid(), "group": "shop", "messages": [], "calls": [{"url": url, "body": "x"}]}
        answer = client.json("POST", "/v1/transactions", request)
    return "" if answer.status < 300 else str(answer.status)


def native_topic(broker: BrokerProcess, url: str) -> str:
    topic = new_gid()
    with RawClient(broker.url) as client:
        answer = client.json("PUT", f"/v1/call-topics/{topic}/subscribers", {"url": url})
    return "" if answer.status < 300 else str(answer.status)


def trans(url: str, query_prepared: str = "", **rest: Any) -> dict[str, Any]:
    steps = [{"action": url}] if url else []
    made = {"gid": new_gid(), "trans_type": "msg", "steps": steps, "payloads": ["{}"] * len(steps)}
    return {**made, "query_prepared": query_prepared, "timeout_to_fail": 1, **rest}


def dtm(broker: BrokerProcess, route: str, request: dict[str, Any]) -> str:
    with RawClient(broker.url) as client:
        answer = client.json("POST", f"/api/dtmsvr/{route}", request)
    return "" if answer.status < 300 else str(answer.status)


def dtm_submit(broker: BrokerProcess, url: str) -> str:
    return dtm(broker, "submit", trans(url))


def dtm_submit_as_grpc(broker: BrokerProcess, url: str) -> str:
    return dtm(broker, "submit", trans(url, protocol="grpc"))


def dtm_prepare(broker: BrokerProcess, url: str) -> str:
    return dtm(broker, "prepare", trans(url, f"http://{broker.settings['allowed_urls'][0].partition('://')[2]}/"))


def dtm_check(broker: BrokerProcess, url: str) -> str:
    return dtm(broker, "prepare", trans("", url))


def dtm_topic(broker: BrokerProcess, url: str) -> str:
    with RawClient(broker.url) as client:
        answer = client.json("GET", f"/api/dtmsvr/subscribe?{urlencode({'topic': new_gid(), 'url': url})}")
    return "" if answer.status < 300 else str(answer.status)


def json_rpc(broker: BrokerProcess, url: str) -> str:
    request = {"jsonrpc": "2.0", "method": "submit", "id": "1", "params": trans(url, protocol="json-rpc")}
    with RawClient(broker.url) as client:
        answer = client.json("POST", "/api/json-rpc", request).json()
    return "" if answer.get("error") is None else str(answer["error"]["code"])


def over_grpc(broker: BrokerProcess, do: Callable[[GrpcClient], None]) -> str:
    with GrpcClient(broker) as client:
        try:
            do(client)
        except Refused as refused:
            return refused.code
    return ""


def grpc_submit(broker: BrokerProcess, url: str) -> str:
    return over_grpc(broker, lambda client: client.submit(new_gid(), [(url, b"{}")]))


def grpc_check(broker: BrokerProcess, url: str) -> str:
    return over_grpc(broker, lambda client: client.prepare(new_gid(), [], url, TimeoutToFail=1))


def grpc_topic(broker: BrokerProcess, url: str) -> str:
    return over_grpc(broker, lambda client: client.subscribe(new_gid(), url))


DOORS: list[Door] = [
    native_call,
    native_second_call,
    native_check,
    native_json,
    native_topic,
    dtm_submit,
    dtm_submit_as_grpc,
    dtm_prepare,
    dtm_check,
    dtm_topic,
    json_rpc,
    grpc_submit,
    grpc_check,
    grpc_topic,
]

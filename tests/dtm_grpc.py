"""dtm's gRPC protocol spoken by hand, as its clients speak it: `with GrpcClient(broker) as dtm: dtm.submit(...)`."""

from __future__ import annotations

import http.client
import json
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import grpc

from brokers import BrokerProcess
from tallystick.api.dtm.grpc.messages import DtmGidReply, DtmRequest, DtmTopicRequest, DtmTransOptions

SECONDS = 20.0


class Refused(Exception):
    """What a call was answered with instead of OK."""

    def __init__(self, error: grpc.RpcError) -> None:
        self.code: str = error.code().name  # type: ignore[attr-defined]
        self.text: str = error.details()  # type: ignore[attr-defined]
        super().__init__(f"{self.code}: {self.text}")


def request_of(
    gid: str, steps: list[tuple[str, bytes]], query_prepared: str = "", custom_data: str = "", **options: Any
) -> Any:
    """A DtmRequest for a msg. `options` are those of DtmTransOptions, by their names there."""
    return DtmRequest(
        Gid=gid,
        TransType="msg",
        Steps=json.dumps([{"action": url} for url, _ in steps]),
        BinPayloads=[body for _, body in steps],
        QueryPrepared=query_prepared,
        CustomedData=custom_data,
        TransOptions=DtmTransOptions(**options),
    )


class GrpcClient:
    def __init__(self, broker: BrokerProcess) -> None:
        self.broker, self.seconds = broker, SECONDS
        # A limit on what it sends would hide what the broker does with too much of it.
        self._channel = grpc.insecure_channel(broker.grpc, options=[("grpc.max_send_message_length", -1)])

    def call(self, method: str, body: bytes, service: str = "dtmgimp.Dtm", **options: Any) -> bytes:
        made = self._channel.unary_unary(f"/{service}/{method}")
        try:
            # It waits for a broker that is on its way up again, unless the test says otherwise.
            answer: bytes = made(body, timeout=self.seconds, **{"wait_for_ready": True, **options})
        except grpc.RpcError as error:
            raise Refused(error) from error
        return answer

    def new_gid(self) -> str:
        gid: str = DtmGidReply.FromString(self.call("NewGid", b"")).Gid
        return gid

    def prepare(self, *given: Any, **options: Any) -> None:
        self.call("Prepare", request_of(*given, **options).SerializeToString())

    def submit(self, *given: Any, **options: Any) -> None:
        self.call("Submit", request_of(*given, **options).SerializeToString())

    def abort(self, gid: str) -> None:
        self.call("Abort", DtmRequest(Gid=gid, TransType="msg").SerializeToString())

    def subscribe(self, topic: str, url: str, remark: str = "for test") -> None:
        self.call("Subscribe", DtmTopicRequest(Topic=topic, URL=url, Remark=remark).SerializeToString())

    def unsubscribe(self, topic: str, url: str) -> None:
        self.call("Unsubscribe", DtmTopicRequest(Topic=topic, URL=url).SerializeToString())

    def delete_topic(self, topic: str) -> None:
        self.call("DeleteTopic", DtmTopicRequest(Topic=topic).SerializeToString())

    # --- what gRPC has no method for: over HTTP ----------------------------------------------------------------

    def get(self, route: str, **query: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.broker.port, timeout=SECONDS)
        try:
            connection.request("GET", f"/api/dtmsvr/{route}?{urlencode(query)}")
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, (answer.status, body)
            return json.loads(body)
        finally:
            connection.close()

    def status(self, gid: str) -> str | None:
        """dtm's word for where a transaction stands; None if the gid is unknown."""
        found = self.get("query", gid=gid)["transaction"]
        return found and found["status"]

    def branches(self, gid: str) -> list[str]:
        return [branch["status"] for branch in self.get("query", gid=gid)["branches"]]

    def wait_status(self, gid: str, wanted: str, seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while (found := self.status(gid)) != wanted:
            assert time.monotonic() < deadline, f"{gid} is {found}, not {wanted}: {self.get('query', gid=gid)}"
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

"""Who takes places and memory of the gRPC port: nobody before it is known who asks, and then not for ever."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from http2_by_hand import GOAWAY, HEADERS, PING, Http2Client

from access_tokens import ADMIN, STRANGERS
from access_tokens import settings as known_tokens
from brokers import BrokerProcess, running_broker
from certificates import Authority
from eventually import SECONDS, eventually
from raw_client import RawClient

CALL_SECONDS = 2 * SECONDS  # longer than any wait for it
NEW_GID = "/dtmgimp.Dtm/NewGid"
KNOWN = (("authorization", f"Bearer {ADMIN.text}"),)
SLOW_AT_ONCE = """
import tallystick.api.serving.grpc_messages as messages

messages.QUICK_SECONDS, messages.MOST_SLOW = 0.2, 2
"""
PINGED_AT_ONCE = """
import tallystick.api.serving.grpc as serving

serving.KEEPALIVE_MS, serving.KEEPALIVE_ANSWER_MS = 300, 300
"""
OLD_AT_ONCE = """
import tallystick.api.serving.grpc as serving

serving.CERTIFIED_AGE_MS, serving.CERTIFIED_GRACE_MS = 300, 300
"""


class Silent:
    """A call whose client says what it wants done, and nothing more."""

    def __init__(self, broker: BrokerProcess, *metadata: tuple[str, str]) -> None:
        self._end = threading.Event()
        # Channels to one address share their connection unless they are told not to.
        self._channel = grpc.insecure_channel(broker.grpc, [("grpc.use_local_subchannel_pool", 1)])
        self.call: Any = self._channel.stream_unary(NEW_GID).future(
            self._nothing(), timeout=CALL_SECONDS, metadata=metadata
        )

    def _nothing(self) -> Iterator[bytes]:
        self._end.wait()
        yield from ()

    def code(self) -> str:
        """What it was ended with; waits for it."""
        return str(self.call.exception().code().name)

    def close(self) -> None:
        self.call.cancel()
        self._end.set()
        self._channel.close()


@contextlib.contextmanager
def silent(broker: BrokerProcess, count: int, *metadata: tuple[str, str]) -> Iterator[list[Silent]]:
    made: list[Silent] = []
    try:
        for _ in range(count):
            made.append(Silent(broker, *metadata))
        yield made
    finally:
        for one in made:
            one.close()


def called(broker: BrokerProcess) -> str:
    """How a call ends whose client does not wait with its message."""
    with grpc.insecure_channel(broker.grpc, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            channel.unary_unary(NEW_GID)(b"", timeout=60, metadata=KNOWN)
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"


def all_hold(broker: BrokerProcess, held: list[Silent], refusal: str) -> bool:
    """Whether silent calls have all places, so that another call is refused.

    A place may be taken for a moment by such another call, or by calls that have just ended. A silent call that was
    refused for that reason never holds a place, so it is made again.
    """
    for place, one in enumerate(held):
        if one.call.done():
            one.close()
            held[place] = Silent(broker, *KNOWN)
    return called(broker) == refusal


def counted(broker: BrokerProcess, code: str) -> float:
    with RawClient(broker.url) as client:
        lines = client.request("GET", "/metrics", None, ADMIN.headers).body.decode().splitlines()
    found = [line for line in lines if f'route="{NEW_GID}",status="{code}"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def test_who_is_not_known_is_refused_before_its_message_is_waited_for() -> None:
    with running_broker(grpc=True, max_long_polls=2, **known_tokens()) as broker:
        for shown in STRANGERS.values():
            metadata = [(name.lower(), value) for name, value in shown.items()]
            with silent(broker, 2, *metadata) as strangers:
                assert [one.code() for one in strangers] == ["UNAUTHENTICATED"] * 2
                assert called(broker) == "OK"
        assert "Traceback" not in broker.log_text()


def test_who_is_known_and_sends_no_message_loses_its_place() -> None:
    with running_broker(grpc=True, max_long_polls=2, body_timeout="1s", **known_tokens()) as broker:
        with silent(broker, 2, *KNOWN) as known:
            assert [one.code() for one in known] == ["DEADLINE_EXCEEDED"] * 2
            assert called(broker) == "OK"
        assert counted(broker, "DEADLINE_EXCEEDED") == 2
        assert "Traceback" not in broker.log_text()


def test_a_message_that_stops_in_the_middle_is_not_waited_for_either() -> None:
    with (
        running_broker(grpc=True, body_timeout="1s", **known_tokens()) as broker,
        Http2Client(broker.grpc_port) as client,
    ):
        client.message(client.call(NEW_GID, authorization=f"Bearer {ADMIN.text}"), 1_000_000, 1_000)
        assert client.frames(HEADERS)[-1] == HEADERS  # in which the call is ended
        eventually(lambda: counted(broker, "DEADLINE_EXCEEDED") == 1, "the call has ended")


def test_a_client_that_goes_away_before_its_message_leaves_no_trace() -> None:
    with running_broker(grpc=True, max_long_polls=2, body_timeout="1h", **known_tokens()) as broker:
        for _ in range(3):
            with silent(broker, 2, *KNOWN) as held:
                eventually(lambda: all_hold(broker, held, "RESOURCE_EXHAUSTED"), "both hold a place")
            eventually(lambda: called(broker) == "OK", "a place is free")
        assert "Traceback" not in broker.log_text()


@pytest.mark.parametrize("messages", [0, 2])
def test_a_method_that_takes_one_message_takes_one(messages: int) -> None:
    with running_broker(grpc=True, **known_tokens()) as broker, grpc.insecure_channel(broker.grpc) as channel:
        call = channel.stream_unary(NEW_GID)
        if messages:
            assert call(
                iter([b""] * messages), timeout=60, metadata=KNOWN
            )  # the first counts, and the rest is not read
            return
        with pytest.raises(grpc.RpcError, match="this method takes one message, and none came") as refused:
            call(iter([]), timeout=60, metadata=KNOWN)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]
        assert counted(broker, "UNIMPLEMENTED") == 1


def test_slow_messages_have_room_for_so_many_and_quick_ones_pass_them_by() -> None:
    with running_broker(grpc=True, prelude=SLOW_AT_ONCE, body_timeout="1h", **known_tokens()) as broker:
        with silent(broker, 2, *KNOWN) as first:
            with silent(broker, 3, *KNOWN) as more:
                eventually(lambda: sum(one.call.done() for one in (*first, *more)) == 3, "two of them have their room")
                ended = [one.code() for one in (*first, *more) if one.call.done()]
            assert ended == ["UNAVAILABLE"] * 3
            assert called(broker) == "OK"
        with silent(broker, 3, *KNOWN) as again:
            eventually(lambda: one_is_refused(broker, again), "two have room again")
        assert "Traceback" not in broker.log_text()


def one_is_refused(broker: BrokerProcess, calls: list[Silent]) -> bool:
    """Those before may not be gone yet when these come: all but one of the refused are made again."""
    refused = [place for place, one in enumerate(calls) if one.call.done()]
    for place in refused[1:]:
        calls[place].close()
        calls[place] = Silent(broker, *KNOWN)
    return len(refused) == 1


def test_an_address_has_so_many_calls_under_way_and_no_more() -> None:
    limits = {"max_connections_per_address": 3, "body_timeout": "1h"}
    with running_broker(grpc=True, **limits, **known_tokens()) as broker:
        with silent(broker, 3, *KNOWN) as held:
            eventually(lambda: all_hold(broker, held, "UNAVAILABLE"), "all hold a place")
            held[0].close()
            eventually(lambda: called(broker) == "OK", "one has made room")
        assert counted(broker, "UNAVAILABLE") >= 1


def test_a_connection_has_so_many_calls_and_the_others_wait_for_their_turn() -> None:
    limits = {"max_connections_per_address": 2, "body_timeout": "1s"}
    with (
        running_broker(grpc=True, **limits, **known_tokens()) as broker,
        grpc.insecure_channel(broker.grpc) as channel,
    ):
        call = channel.stream_unary(NEW_GID)
        gate = threading.Event()

        def late() -> Iterator[bytes]:
            gate.wait()
            yield b""

        held = [call.future(late(), timeout=60, metadata=KNOWN) for _ in range(2)]
        quick = [channel.unary_unary(NEW_GID).future(b"", timeout=60, metadata=KNOWN) for _ in range(5)]
        assert all(one.result() for one in quick)  # none is refused
        assert [one.exception().code().name for one in held] == ["DEADLINE_EXCEEDED"] * 2
        gate.set()


# --- connections -----------------------------------------------------------------------------------------------------


def test_a_connection_without_a_call_is_ended() -> None:
    with running_broker(grpc=True, idle_timeout="500ms") as broker, Http2Client(broker.grpc_port) as client:
        assert GOAWAY in client.frames(-1)


def test_a_client_with_calls_that_answers_to_no_ping_is_gone() -> None:
    with (
        running_broker(grpc=True, prelude=PINGED_AT_ONCE, body_timeout="1h", **known_tokens()) as broker,
        Http2Client(broker.grpc_port) as client,
    ):
        client.call(NEW_GID, authorization=f"Bearer {ADMIN.text}")
        assert PING in client.frames(-1)
        assert counted(broker, "OK") == 0


def test_connections_are_made_anew_now_and_then_where_certificates_of_clients_count(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker", "127.0.0.1")
    given = {"tls_cert": certificate, "tls_key": key, "tls_ca": authority.path, "tls_client_ca": authority.path}
    own = authority.trusting(*authority.issue("shop"))
    own.set_alpn_protocols(["h2"])
    with (
        running_broker(grpc=True, prelude=OLD_AT_ONCE, idle_timeout="1h", **given) as broker,
        Http2Client(broker.grpc_port, own) as client,
    ):
        assert GOAWAY in client.frames(-1)

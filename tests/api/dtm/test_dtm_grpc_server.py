"""The gRPC port: where it listens, what it refuses before reading it, and how it ends."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from brokers import BrokerProcess, running_broker
from busi_grpc import Answer, busi_service
from dtm_grpc import GrpcClient, Refused, request_of
from eventually import eventually
from tallystick.api.dtm.grpc.messages import DtmRequest
from tallystick.core.limits import MIB

MOST = 1 * MIB


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(grpc=True, max_request_bytes=MOST, max_message_bytes=MOST) as running:
        yield running


@pytest.fixture
def dtm(broker: BrokerProcess) -> Iterator[GrpcClient]:
    with GrpcClient(broker) as client:
        yield client


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tallystick", "serve", "--port", "0", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# --- where it listens -------------------------------------------------------------------------------------------


def test_a_taken_port_is_told_in_one_line_before_anything_is_opened(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        done = serve("--grpc-port", place.rpartition(":")[2], "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"tallystick: grpc_port: cannot listen on {place}: Address already in use")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_the_port_of_a_running_broker_is_not_shared_with_a_second_one(broker: BrokerProcess) -> None:
    done = serve("--grpc-port", str(broker.grpc_port), "--store", "memory")
    assert done.returncode == 1
    assert f"127.0.0.1:{broker.grpc_port}" in done.stderr


def test_a_port_that_is_taken_while_the_store_is_opened_is_told_the_same_way(tmp_path: Path) -> None:
    # The prelude listens on the port after the broker has reserved it, as another program might.
    thief = """
import socket
from tallystick.api import server
def opening(config, *places, open_it=server._service):
    global taken
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", config.grpc_port))
    taken.listen()
    return open_it(config, *places)
server._service = opening
"""
    with running_broker(tmp_path, prelude=thief, start=False, grpc=True) as broker:
        broker.spawn()
        assert broker.ends_before_ready()
        broker.wait()
        last = broker.log_text().strip().splitlines()[-1]
        assert f"grpc_port: cannot listen on {broker.grpc}: Address already in use" in last
        broker.prelude = ""
        broker.start()  # the store was let go of cleanly


def test_the_log_names_the_address_and_port_0_picks_a_free_one(broker: BrokerProcess) -> None:
    assert f"gRPC on {broker.grpc}" in broker.log_text()
    # Two at once: a fixed port would be in the way of the second.
    with running_broker(grpc=True, start=False) as first, running_broker(grpc=True, start=False) as second:
        for one in (first, second):
            one.settings["grpc_port"] = 0
            one.start()
            found = re.search(r"gRPC on 127\.0\.0\.1:(\d+)", one.log_text())
            assert found is not None
            one.grpc_port = int(found[1])
            with GrpcClient(one) as client:
                assert client.new_gid()
        assert first.grpc_port != second.grpc_port


def test_switched_off_nothing_listens() -> None:
    with running_broker(grpc=False) as broker:
        assert "gRPC" not in broker.log_text()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", broker.grpc_port)) != 0


def test_it_listens_on_ipv6_too() -> None:
    with running_broker(grpc=True, host="::1", start=False) as broker:
        broker.spawn()
        with grpc.insecure_channel(f"[::1]:{broker.grpc_port}") as channel:
            grpc.channel_ready_future(channel).result(20)


def test_reflection_describes_the_service(broker: BrokerProcess) -> None:
    with grpc.insecure_channel(broker.grpc) as channel:
        known = ProtoReflectionDescriptorDatabase(channel)
        assert "dtmgimp.Dtm" in known.get_services()
        found = DescriptorPool(known).FindServiceByName("dtmgimp.Dtm")
        assert found.methods_by_name["Submit"].input_type.fields_by_name["Steps"].number == 7


# --- what it refuses --------------------------------------------------------------------------------------------


def oversize(size: int) -> bytes:
    body: bytes = DtmRequest(Gid="g", TransType="msg", BinPayloads=[bytes(size)]).SerializeToString()
    return body


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_over_the_limit_is_refused_unread(dtm: GrpcClient, compression: grpc.Compression) -> None:
    with pytest.raises(Refused) as refused:
        dtm.call("Submit", oversize(MOST), compression=compression)
    assert refused.value.code == "RESOURCE_EXHAUSTED"
    assert str(MOST) in refused.value.text
    assert dtm.new_gid()


def test_a_small_message_that_unpacks_to_a_large_one_takes_no_memory(broker: BrokerProcess, dtm: GrpcClient) -> None:
    dtm.new_gid()
    before = memory_of(broker)
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            dtm.call("Submit", oversize(150 * MIB), compression=grpc.Compression.Gzip)
        assert refused.value.code == "RESOURCE_EXHAUSTED"
    assert memory_of(broker) - before < 100 * MIB


def memory_of(broker: BrokerProcess) -> int:
    """The most that the process has ever had in memory."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{broker.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_bytes_that_are_no_message_are_refused(dtm: GrpcClient) -> None:
    for body in (b"\xff\xff\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe"):
        with pytest.raises(Refused, match=r"UNKNOWN: the message cannot be decoded as dtmgimp\.DtmRequest"):
            dtm.call("Submit", body)


def test_methods_that_dtm_does_not_have_are_unimplemented(dtm: GrpcClient) -> None:
    for service, method in (("dtmgimp.Dtm", "Query"), ("dtmgimp.Other", "Submit")):
        with pytest.raises(Refused) as refused:
            dtm.call(method, b"", service)
        assert refused.value.code == "UNIMPLEMENTED"


def test_requests_are_counted_by_method_and_code(broker: BrokerProcess, dtm: GrpcClient) -> None:
    dtm.new_gid()
    with pytest.raises(Refused):
        dtm.abort("nobody-knows-it")
    text = metrics_of(broker)
    assert re.search(r'requests_total\{route="/dtmgimp.Dtm/NewGid",status="OK"\} [1-9]', text)
    assert re.search(r'requests_total\{route="/dtmgimp.Dtm/Abort",status="UNKNOWN"\} [1-9]', text)


def metrics_of(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"{broker.url}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


# --- the end ----------------------------------------------------------------------------------------------------


def test_a_signal_ends_it_with_nothing_in_the_log_and_what_was_accepted_is_there(tmp_path: Path) -> None:
    with running_broker(tmp_path, grpc=True) as broker, GrpcClient(broker) as dtm, busi_service() as busi:
        dtm.prepare("half", [(busi.url("TransIn"), b"x")], busi.url("Query"))
        assert broker.stop() == 0
        assert "draining" in broker.log_text()
        assert re.search("(?i)error|warn|traceback", broker.log_text()) is None
        broker.start()
        assert dtm.status("half") == "prepared"


def test_a_call_under_way_is_answered_and_a_new_one_is_refused(tmp_path: Path) -> None:
    with running_broker(tmp_path, grpc=True) as broker, busi_service() as busi:
        slow = threading.Event()
        busi.answers("TransIn", Answer(after=slow))
        answers: list[Any] = []
        waiting = threading.Thread(target=submit_and_wait, args=(broker, busi.url("TransIn"), answers))
        waiting.start()
        busi.wait_for("waits", 1)
        broker.terminate()
        wait_for_the_drain(broker)
        with pytest.raises(Refused) as refused, GrpcClient(broker) as late:
            late.call("Submit", request_of("late", []).SerializeToString(), wait_for_ready=False)
        assert refused.value.code == "UNAVAILABLE"
        slow.set()
        waiting.join(20)
        assert broker.wait() == 0
        assert answers == ["OK"]


def submit_and_wait(broker: BrokerProcess, url: str, answers: list[Any]) -> None:
    with GrpcClient(broker) as client:
        try:
            client.submit("waits", [(url, b"x")], WaitResult=True, RequestTimeout=10)
            answers.append("OK")
        except Refused as refused:
            answers.append(refused)


def wait_for_the_drain(broker: BrokerProcess) -> None:
    eventually(lambda: "draining" in broker.log_text(), "the broker drains")


def test_a_client_that_has_gone_away_holds_up_no_end(tmp_path: Path) -> None:
    with running_broker(tmp_path, grpc=True) as broker, busi_service() as busi, GrpcClient(broker) as dtm:
        slow = threading.Event()
        busi.answers("TransIn", Answer(after=slow))
        dtm.seconds = 0.5
        with pytest.raises(Refused, match="DEADLINE_EXCEEDED"):
            dtm.submit("gone", [(busi.url("TransIn"), b"x")], WaitResult=True, RequestTimeout=60)
        busi.wait_for("gone", 1)
        assert broker.stop() == 0
        slow.set()

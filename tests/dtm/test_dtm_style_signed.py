"""A broker that signs, and services in each framework that believe nobody else: calls and check-backs, end to end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from style_bank import Bank
from style_services import CHECK, FRAMEWORKS

import tallystick
from brokers import BrokerProcess, running_broker
from eventually import eventually
from tallystick.client.proof.verifier import KEYS_FILE_VARIABLE
from tallystick.dtm import BranchBarrier, Msg
from tallystick.signing_keys import new_key_line

PLACES = ["/query-prepared", CHECK]


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "signing.keys"
    path.touch(0o600)
    path.write_text(f"{new_key_line()}\n")
    return path


@pytest.fixture(scope="module")
def broker(keys_file: Path) -> Iterator[BrokerProcess]:
    settings = {"check_interval": "300ms", "call_retry_first": "100ms", "call_retry_cap": "300ms"}
    with running_broker(signing_keys_file=str(keys_file), **settings) as process:
        yield process


@pytest.fixture
def bank(one_bank: Bank) -> Bank:
    return one_bank


@pytest.fixture(params=FRAMEWORKS)
def service(
    request: pytest.FixtureRequest, bank: Bank, keys_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    monkeypatch.setenv(KEYS_FILE_VARIABLE, str(keys_file))
    with FRAMEWORKS[request.param](bank) as url:
        yield url


def test_a_transfer_arrives(ts: tallystick.Client, bank: Bank, service: str) -> None:
    msg = Msg(ts).add(f"{service}/trans-in?note=a%20b%2Fc&%C3%A9=1", {"amount": 30}).set_wait_result()
    with bank.connection() as connection:
        msg.do_and_submit_db(f"{service}/query-prepared", connection, lambda used: bank.adjust(used, 1, -30))
    assert bank.balances() == (9970, 10030)


@pytest.mark.parametrize("place", PLACES)
def test_a_check_back_is_answered(
    broker: BrokerProcess, ts: tallystick.Client, bank: Bank, service: str, place: str
) -> None:
    committed, lost = (Msg(broker.url, ts.new_gid(), timeout_to_fail=0.2) for _ in range(2))
    with bank.connection() as connection:
        barrier = BranchBarrier("msg", committed.gid, "00", "msg")
        barrier.call(connection, lambda used: bank.adjust(used, 1, -30))
    for msg in (committed, lost):
        msg.add(f"{service}/trans-in", {"amount": 30}).prepare(service + place)
    eventually(lambda: ts.calls(committed.gid).state == "done")
    eventually(lambda: ts.outcome(lost.gid) == "rolled_back")
    assert bank.balances() == (9970, 10030)


def test_a_stranger_is_refused_and_nothing_is_done_or_decided(bank: Bank, service: str) -> None:
    rows = bank.rows("select gid from tallystick_barrier")
    query = {"gid": "gid-1", "trans_type": "msg", "branch_id": "01", "op": "action"}
    asked = {"gid": "gid-1", "trans_type": "msg", "branch_id": "00", "op": "msg"}
    forged = {"Tallystick-Signature": f"t=1790000000000,n=0123456789abcdef,h=bank:80,k=k1,v1={'0' * 64}"}
    for headers in ({}, forged, {"Tallystick-Signature": "x"}):
        answers = [
            httpx.post(f"{service}/trans-in", params=query, json={"amount": 30}, headers=headers),
            *(httpx.get(service + place, params=asked, headers=headers) for place in PLACES),
        ]
        assert [answer.status_code for answer in answers] == [401, 401, 401]
        assert not any({"outcome", "dtm_result"} & set(answer.json()) for answer in answers)
    assert bank.rows("select gid from tallystick_barrier") == rows
    assert bank.balances() == (10000, 10000)


def test_a_broker_without_the_key_is_a_stranger(service: str, bank: Bank) -> None:
    with running_broker(call_retry_first="100ms") as other, tallystick.Client(other.url, group="g") as ts:
        msg = Msg(ts).add(f"{service}/trans-in", {"amount": 30}).set_wait_result()
        with pytest.raises(tallystick.CallsNotFinished, match=r"401.*no header Tallystick-Signature"):
            msg.submit()
    assert bank.balances() == (10000, 10000)


def test_the_brokers_log_does_not_know_the_secret(broker: BrokerProcess, keys_file: Path) -> None:
    assert keys_file.read_text().split()[1] not in broker.log_text()

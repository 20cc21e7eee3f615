"""Services in FastAPI, Flask and Django, served for real and called by a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import httpx
import pytest
from fastapi import FastAPI, Request
from style_bank import Bank
from style_services import CHECK, FRAMEWORKS

import tallystick
from asgi import asgi_server
from brokers import BrokerProcess
from eventually import eventually
from tallystick import Verifier
from tallystick.dtm import BranchBarrier, Msg, web


@pytest.fixture
def bank(one_bank: Bank) -> Bank:
    return one_bank


@pytest.fixture(params=FRAMEWORKS)
def service(request: pytest.FixtureRequest, bank: Bank) -> Iterator[str]:
    with FRAMEWORKS[request.param](bank) as url:
        yield url


def test_a_transfer_arrives_once(ts: tallystick.Client, bank: Bank, service: str) -> None:
    msg = Msg(ts).add(f"{service}/trans-in", {"amount": 30}).set_wait_result()
    with bank.connection() as connection:
        msg.do_and_submit_db(f"{service}/query-prepared", connection, lambda used: bank.adjust(used, 1, -30))
    assert bank.balances() == (9970, 10030)
    # The same call again, as after a lost answer.
    query = {"gid": msg.gid, "trans_type": "msg", "branch_id": "01", "op": "action"}
    answer = httpx.post(f"{service}/trans-in", params=query, json={"amount": 30})
    assert (answer.status_code, answer.json()) == (200, {"dtm_result": "SUCCESS"})
    assert bank.balances() == (9970, 10030)


def test_exceptions_become_dtms_answers(service: str, bank: Bank) -> None:
    query = {"gid": "gid-1", "trans_type": "msg", "branch_id": "01", "op": "action"}
    told = {}
    for amount in (0, -1):
        answer = httpx.post(f"{service}/trans-in", params=query, json={"amount": amount})
        told[amount] = (answer.status_code, answer.json())
    assert told == {
        0: (409, {"dtm_result": "FAILURE", "message": "nothing to transfer"}),
        -1: (425, {"dtm_result": "ONGOING", "message": "still thinking"}),
    }
    answer = httpx.post(f"{service}/trans-in", params={**query, "gid": ""}, json={"amount": 30})
    assert (answer.status_code, set(answer.json())) == (400, {"message"})
    assert bank.balances() == (10000, 10000)


def test_a_view_may_answer_for_itself(service: str) -> None:
    assert httpx.get(f"{service}/own", params={"name": "bob"}).json() == {"hello": "bob"}


def test_a_refused_call_is_told_to_the_one_who_waits(ts: tallystick.Client, service: str) -> None:
    msg = Msg(ts).add(f"{service}/trans-in", {"amount": 0}).set_wait_result()
    with pytest.raises(tallystick.CallsNotFinished, match="nothing to transfer") as raised:
        msg.submit()
    assert raised.value.view is not None
    assert raised.value.view.calls[0].state == "waiting"


@pytest.mark.parametrize("place", ["/query-prepared", CHECK])
def test_a_check_back_is_answered(
    broker: BrokerProcess, ts: tallystick.Client, bank: Bank, service: str, place: str
) -> None:
    """Twice prepared and never submitted: one was committed locally, the other was not. Nobody but the URL can tell."""
    committed, lost = (Msg(broker.url, ts.new_gid(), timeout_to_fail=0.2) for _ in range(2))
    with bank.connection() as connection:
        barrier = BranchBarrier("msg", committed.gid, "00", "msg")
        barrier.call(connection, lambda used: bank.adjust(used, 1, -30))
    for msg in (committed, lost):
        msg.add(f"{service}/trans-in", {"amount": 30}).prepare(service + place)
    eventually(lambda: ts.calls(committed.gid).state == "done")
    eventually(lambda: ts.outcome(lost.gid) == "rolled_back")
    assert bank.balances() == (9970, 10030)


def test_a_check_back_waits_for_what_is_running(bank: Bank, service: str) -> None:
    barrier = BranchBarrier("msg", "gid-1", "00", "msg")
    query = {"gid": "gid-1", "trans_type": "msg", "branch_id": "00", "op": "msg"}
    with bank.connection() as connection, barrier.once(connection):
        answer = httpx.get(f"{service}/query-prepared", params=query, timeout=20)
        assert (answer.status_code, answer.json()["dtm_result"]) == (425, "ONGOING")
        connection.commit()
    assert httpx.get(f"{service}/query-prepared", params=query).json() == {"dtm_result": "SUCCESS"}


@pytest.mark.parametrize("late", [False, True], ids=["known", "of a name that is known later"])
def test_a_view_of_fastapi_may_have_its_request_annotated(late: bool) -> None:
    def view(request: Annotated[Request, "what was asked"], name: str) -> dict[str, str]:
        return {"hello": name, "path": request.url.path}

    if late:
        view.__annotations__["return"] = "NotYetKnown"
    app = FastAPI()
    app.get("/own", response_model=None)(web.fastapi(view))
    with asgi_server(app) as url:
        answer = httpx.get(f"{url}/own", params={"name": "Ann"})
    assert (answer.status_code, answer.json()) == (200, {"hello": "Ann", "path": "/own"})


async def test_a_view_of_fastapi_that_is_called_by_a_program_needs_no_request_unless_it_is_verified() -> None:
    async def view(name: str) -> dict[str, str]:
        return {"hello": name}

    assert await web.fastapi(view)(name="Ann") == {"hello": "Ann"}
    refused = await web.fastapi(verifier=Verifier({"a": "s" * 40}))(view)(name="Ann")
    assert refused.status_code == 401

"""How a stored transaction shows that it came through dtm's interfaces, also one that an older version stored."""

from __future__ import annotations

import msgspec
import pytest

from tallystick.api.dtm.translate import Trans, prepare_op, read_remark, remark_of, send_ops
from tallystick.core.calls import CallSpec, OutgoingCall
from tallystick.core.dtm_mark import DTM_GROUP, has_dtm_calls, has_dtm_check
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send
from tallystick.core.transaction import Prepared

URL = "http://127.0.0.1:8081/TransIn"
# As versions before the mark wrote them.
OLD = '{"query_prepared":"http://127.0.0.1:8081/QueryPrepared","options":{"timeout_to_fail":3}}'
OLD_JSON_RPC = '{"protocol":"json-rpc","query_prepared":"http://127.0.0.1:8081/QueryPrepared"}'
OLD_SUBMIT = '{"options":{"wait_result":true}}'


def prepared(group: str, remark: str | None, messages: int = 0) -> Prepared:
    pushed = None if remark is None else CallSpec([OutgoingCall(URL)], remark=remark)
    kept = [OutgoingMessage("t", b"v")] * messages
    return Prepared(group, "m", 1, "url", URL, "", 0, 3, "park", 0, kept, pushed)


@pytest.mark.parametrize(
    "trans",
    [
        Trans(gid="g", trans_type="msg"),
        Trans(gid="g", trans_type="msg", query_prepared=URL, protocol="json-rpc"),
        Trans(gid="g", trans_type="msg", wait_result=True, custom_data="{}"),
    ],
)
def test_every_remark_of_dtms_interfaces_is_marked_and_read(trans: Trans) -> None:
    remark = remark_of(trans)
    assert has_dtm_calls(remark)
    assert read_remark(remark).query_prepared == (trans.query_prepared or "")


def test_what_is_sent_and_what_is_prepared_is_marked() -> None:
    steps = msgspec.convert({"steps": [{"action": URL}], "payloads": ["{}"], "query_prepared": URL}, Trans)
    steps.gid, steps.trans_type = "g", "msg"
    (sent,) = send_ops(steps)
    assert isinstance(sent, Send)
    assert has_dtm_calls(sent.remark)
    assert has_dtm_calls(prepare_op(steps).remark)


@pytest.mark.parametrize("remark", [OLD, OLD_JSON_RPC])
def test_an_old_check_back_is_recognized_and_its_branches_keep_the_native_rule(remark: str) -> None:
    assert has_dtm_check(prepared(DTM_GROUP, remark))
    assert not has_dtm_calls(remark)
    assert read_remark(remark).query_prepared.endswith("/QueryPrepared")


def test_an_old_submit_keeps_the_native_rule() -> None:
    assert not has_dtm_calls(OLD_SUBMIT)
    assert read_remark(OLD_SUBMIT).options.wait_result


@pytest.mark.parametrize(
    "record",
    [
        prepared("shop", ""),
        prepared("shop", "why"),
        prepared("shop", OLD),
        prepared(DTM_GROUP, ""),  # tallystick.dtm, with an address in place of a client
        prepared(DTM_GROUP, "a query_prepared of ours"),
        prepared("shop", None),
        prepared(DTM_GROUP, None, messages=1),
    ],
)
def test_native_transactions_are_not_taken_for_dtms(record: Prepared) -> None:
    assert not has_dtm_check(record)


def test_one_without_steps_is_known_by_its_group() -> None:
    assert has_dtm_check(prepared(DTM_GROUP, None))


def test_the_mark_survives_storage() -> None:
    trans = Trans(gid="g", trans_type="msg", query_prepared=URL)
    stored = msgspec.msgpack.encode(prepared(DTM_GROUP, remark_of(trans)))
    assert has_dtm_check(msgspec.msgpack.decode(stored, type=Prepared))

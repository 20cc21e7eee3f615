"""Headers from clients: none can say more than one header, and none can say where a request ends or who it is for."""

from __future__ import annotations

import pytest
from called_services import send
from hypothesis import given
from hypothesis import strategies as st
from inner_broker import inside
from web_sites import site

from tallystick.broker.calls.protocols import make_call
from tallystick.broker.config import LOOPBACK_URLS
from tallystick.broker.outbound.allow_list import AllowedUrls
from tallystick.broker.outbound.headers import header_lines, joined, metadata_of
from tallystick.broker.outbound.outbound import Outbound
from tallystick.client import CheckBack, outgoing_call
from tallystick.client.base.arguments import checked_check
from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import InvalidRequest
from tallystick.core.headers import check_headers

BAD = [
    {"X-A": "b\r\nHost: evil"},
    {"X-A": "b\nc"},
    {"X-A": "b\rc"},
    {"X-A": "b\0c"},
    {"X-A": "\x7f"},
    {"X-A": "\x0b"},
    {"X-A": "\u20ac"},
    {"X-A": "\u010a"},  # whose low byte is an end of line
    {"X-A": "\ud800"},
    {"X-A\r\nHost": "evil"},
    {"X A": "b"},
    {"X-A:": "b"},
    {"X-A\0": "b"},
    {" X-A": "b"},
    {"": "b"},
    {"X-\u00c4": "b"},
    {"Host": "evil"},
    {"hOST": "evil"},
    {"Content-Length": "0"},
    {"Transfer-Encoding": "chunked"},
    {"Connection": "close"},
    {"Expect": "100-continue"},
    {"Upgrade": "h2c"},
    {"TE": "trailers"},
    {"Trailer": "X"},
    {"Keep-Alive": "1"},
    {"Proxy-Connection": "x"},
    {"Tallystick-Gid": "other"},
    {"tallystick-branch": "02"},
]


@pytest.mark.parametrize("headers", BAD, ids=repr)
def test_a_header_that_cannot_be_sent_is_refused_with_its_place(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_headers({"X-Fine": "1", **headers}, "calls[2].headers")
    assert refused.value.field == "calls[2].headers"
    assert "calls[2].headers" in refused.value.detail


def test_what_can_be_sent_is_accepted() -> None:
    check_headers(None, "f")
    check_headers({}, "f")
    check_headers(
        {"X-Tenant": "7", "Authorization": "Bearer a.b-c=", "X-Empty": "", "X-Tab": "a\tb", "X": "\u00e9"}, "f"
    )


def test_too_many_or_too_long_headers_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="65 headers"):
        check_headers({f"X-{number}": "" for number in range(65)}, "f")
    with pytest.raises(InvalidRequest, match="bytes"):
        check_headers({f"X-{number}": "x" * 8_000 for number in range(3)}, "f")


@pytest.mark.parametrize("headers", BAD, ids=repr)
async def test_what_came_past_the_check_is_still_not_sent(headers: dict[str, str]) -> None:
    out = Outbound(AllowedUrls(LOOPBACK_URLS))
    try:
        async with site() as there:
            verdict = await make_call(out, "g", OutgoingCall(there.url, b"{}", headers=headers), 1_000)
            assert (verdict.outcome, verdict.reached) == ("error", False)
            assert there.requests == []
    finally:
        await out.close()


@given(headers=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4))
def test_whatever_is_accepted_gives_one_line_a_header(headers: dict[str, str]) -> None:
    try:
        check_headers(headers, "f")
    except InvalidRequest:
        return
    block = header_lines(joined({}, headers)).encode("latin-1")
    assert block.count(b"\r\n") == block.count(b"\n") == block.count(b"\r") == len(headers)
    assert [line.split(b":")[0].decode() for line in block.splitlines()] == list(headers)


@pytest.mark.parametrize(
    "headers", [*BAD, {"grpc-timeout": "1S"}, {"Dtm-Gid": "x"}, {"X": "\u00e9"}, {":path": "/x"}], ids=repr
)
def test_metadata_is_as_strict(headers: dict[str, str]) -> None:
    """On its way in, natively too, and before it is sent."""
    url = "grpc://127.0.0.1:1/a.B/C"
    with pytest.raises(ValueError, match=r"name|broker|value"):
        metadata_of(headers)
    with pytest.raises(InvalidRequest, match=r"^f: .*(name|broker|value)"):
        check_headers(headers, "f", url)
    with pytest.raises(InvalidRequest, match=r"^headers: "):
        outgoing_call(url, headers=headers)
    with pytest.raises(InvalidRequest, match=r"^check\.headers: "):
        checked_check(CheckBack(url=url, headers=headers))


def test_headers_become_metadata() -> None:
    assert metadata_of({"X-Tenant": "7", "trace-bin": "\xff"}) == [("x-tenant", "7"), ("trace-bin", b"\xff")]


async def test_a_transaction_with_such_headers_is_refused_whole() -> None:
    async with inside() as broker, site() as there:
        with pytest.raises(InvalidRequest) as refused:
            await send(broker, "t", there.url, headers={"X-A": "b\r\nHost: evil"})
        assert refused.value.field == "ops[0].calls[0].headers"
        with pytest.raises(InvalidRequest):
            await broker.prepare("p", via="url", target=there.url, headers={"Host": "evil"})
        assert there.requests == []

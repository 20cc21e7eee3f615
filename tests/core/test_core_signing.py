"""Signatures of requests: what is signed cannot be changed, and who has no key cannot sign."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import ConfigError, Unproven
from tallystick.core.signing import SigningKey, grpc_path, parse_keys, sign, verify

SECRET, OTHER = "s" * 32, "o" * 43
KEYS = parse_keys(f"new {SECRET}\nold {OTHER}")
NOW = 1_790_000_000_000
HOST = "bank.internal:8080"
METHOD, PATH, BODY = "POST", "/trans-in?gid=g1&branch_id=01", b'{"amount":30}'
NONCE = "0123456789abcdef0123"

Verify = Callable[..., Any]


def signed(key: SigningKey = KEYS["new"], at: int = NOW, method: str = METHOD, path: str = PATH) -> str:
    return sign(key, method, HOST, path, at, NONCE, BODY)


def refusal(check: Verify = verify, **changed: Any) -> str | None:
    """Why a request is refused, of which something was changed after it was signed; None if it passes."""
    asked = {"keys": KEYS, "header": signed(), "method": METHOD, "path": PATH, "now_ms": NOW, "body": BODY} | changed
    try:
        check(**asked)
    except Unproven as refused:
        return refused.reason
    return None


def test_a_refusal_is_told_as_401() -> None:
    assert (Unproven.status, Unproven.code, Unproven.retryable) == (401, "unproven", False)


def test_the_form_of_the_header_is_as_documented() -> None:
    text = f"{METHOD}\n{HOST}\n{PATH}\n{NOW}\n{NONCE}\n{hashlib.sha256(BODY).hexdigest()}"
    wanted = hmac.new(SECRET.encode(), text.encode(), "sha256").hexdigest()
    assert signed() == f"t={NOW},n={NONCE},h={HOST},k=new,v1={wanted}"
    assert refusal() is None


CHANGES: dict[str, dict[str, Any]] = {
    "body": {"body": b'{"amount":31}'},
    "no body": {"body": b""},
    "method": {"method": "GET"},
    "case of the method": {"method": "post"},
    "path": {"path": PATH.replace("trans-in", "trans-out")},
    "query": {"path": PATH.replace("g1", "g2")},
    "order of the query": {"path": "/trans-in?branch_id=01&gid=g1"},
    "no query": {"path": "/trans-in"},
    "time": {"header": signed().replace(str(NOW), str(NOW + 1))},
    "nonce": {"header": signed().replace(NONCE, NONCE[::-1])},
    "key of the same name": {"keys": parse_keys(f"new {'x' * 32}")},
    "host": {"header": signed().replace(HOST, "payments.internal:8080")},
    "id of another key": {"header": signed().replace("k=new", "k=old")},
}


def altered_that_pass(check: Verify) -> list[str]:
    return [name for name, changed in CHANGES.items() if refusal(check, **changed) != "altered"]


def test_whatever_was_signed_cannot_be_changed() -> None:
    assert altered_that_pass(verify) == []


@pytest.mark.parametrize(("ignored", "value"), [("body", BODY), ("path", PATH), ("method", METHOD)])
def test_a_verifier_that_ignores_something_is_caught(ignored: str, value: Any) -> None:
    """The negative control of the list above."""
    assert altered_that_pass(lambda **asked: verify(**{**asked, ignored: value}))


@pytest.mark.parametrize("key", ["new", "old"])
def test_each_key_is_believed_while_it_is_there(key: str) -> None:
    assert refusal(header=signed(KEYS[key])) is None
    left = {name: one for name, one in KEYS.items() if name != key}
    assert refusal(header=signed(KEYS[key]), keys=left) == "unknown_key"


@pytest.mark.parametrize("apart", [300_001, -300_001, 10**9, -(10**9)])
def test_a_time_too_far_away_is_refused(apart: int) -> None:
    assert refusal(now_ms=NOW + apart) == "skewed"
    assert refusal(now_ms=NOW + apart, tolerance_ms=abs(apart)) is None


@pytest.mark.parametrize("header", [None, ""])
def test_no_header_is_refused(header: str | None) -> None:
    assert refusal(header=header) == "missing"


@pytest.mark.parametrize(
    "header",
    [
        "x",
        signed() + " ",
        signed() + "\n",
        " " + signed(),
        signed().upper(),
        signed() + "," + signed(),
        signed() + ",v1=" + "0" * 64,
        signed().replace("t=", "t=-"),
        signed().replace(str(NOW), "1" * 30),
        signed().replace(str(NOW), "\uff11\uff17\uff19"),
        signed().replace(NONCE, ""),
        signed().replace(NONCE, "short"),
        signed().replace(f"h={HOST},", ""),
        signed().replace(HOST, ""),
        signed().replace(HOST, "a/b"),
        signed().replace("k=new", "k="),
        signed().replace("v1=", "v2="),
        signed()[:-1],
    ],
)
def test_another_form_is_refused(header: str) -> None:
    assert refusal(header=header) == "malformed"


TEXT = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=60)


def test_what_was_signed_for_another_host_is_refused_where_hosts_are_known() -> None:
    assert refusal(hosts=frozenset({HOST, "bank:80"})) is None
    assert refusal(hosts=frozenset({"payments.internal:8080"})) == "elsewhere"


@given(method=TEXT, path=TEXT, body=st.binary(max_size=200), at=st.integers(0, 10**14), other=st.binary(max_size=200))
def test_every_request_can_be_signed_and_verified(method: str, path: str, body: bytes, at: int, other: bytes) -> None:
    header = sign(KEYS["new"], method, HOST, path, at, NONCE, body)
    verify(KEYS, header, method, path, at, body)
    if other != body:
        with pytest.raises(Unproven):
            verify(KEYS, header, method, path, at, other)


@given(st.text(max_size=200))
def test_no_header_whatever_breaks_the_verification(header: str) -> None:
    assert refusal(header=header) in ("missing", "malformed", "unknown_key", "skewed", "altered")


def test_of_a_call_over_grpc_the_transaction_is_signed_too() -> None:
    metadata = [("dtm-gid", "g/1"), ("x-tenant", "7"), ("dtm-branch_id", "01"), ("dtm-dtm", "")]
    assert grpc_path("/busi.Busi/TransIn", metadata) == "/busi.Busi/TransIn?dtm-branch_id=01&dtm-dtm=&dtm-gid=g%2F1"
    assert grpc_path("/busi.Busi/TransIn", []) == "/busi.Busi/TransIn"


# --- keys ------------------------------------------------------------------------------------------------------------


def test_keys_are_lines_and_the_first_signs() -> None:
    keys = parse_keys(f"# of July\n\n  b {SECRET}  \n#a {SECRET}\na\t{OTHER}\n")
    assert [(one.id, one.secret) for one in keys.values()] == [("b", SECRET.encode()), ("a", OTHER.encode())]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no signing key"),
        ("# nothing\n", "there is no signing key"),
        (f"a {SECRET}\nb {SECRET} more", "line 2: a signing key is a line of two words"),
        (SECRET, "line 1: a signing key is a line of two words"),
        (f"a {SECRET}\na {OTHER}", "line 2: another line has this id already"),
        (f"a {SECRET[:-1]}", "line 1: .* at least 32 characters"),
        (f"ok {SECRET}\n{SECRET} b", "line 2: .* the second word, must have at least 32 characters"),
        (f"{SECRET} {OTHER}\n{SECRET} {OTHER}", "line 2: another line has this id"),
        (f"a {'é' * 40}", "printable ASCII"),
        (f"a,b {SECRET}", "a signing key's id is of letters"),
        (f"{'a' * 65} {SECRET}", "a signing key's id is of letters"),
    ],
)
def test_what_is_no_key_is_refused_and_its_secret_is_not_shown(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        parse_keys(text)
    assert SECRET[:10] not in str(refused.value)
    assert "é" not in str(refused.value)


def test_a_key_does_not_show_its_secret() -> None:
    assert SECRET not in f"{KEYS['new']!r} {KEYS['new']} {KEYS!r}"

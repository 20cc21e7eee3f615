"""From dtm's transaction to the broker's operations: names, units, defaults, and nothing that is stored or asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from tallystick.api.dtm.errors import DtmError, wrong_type
from tallystick.api.serving.problems import DECODING, undecodable
from tallystick.core.calls import PROTOCOLS, CallPolicy, OutgoingCall, Protocol
from tallystick.core.dtm_mark import DTM_GROUP, DTM_TAG, DTM_TAG_FIELD
from tallystick.core.errors import TallystickError
from tallystick.core.message import MAX_TIMEOUT_MS
from tallystick.core.names import HeaderName, HeaderValue, check_gid
from tallystick.core.ops import Check, Commit, Prepare, Send
from tallystick.core.urls import TOPIC_SCHEME

# dtm's own defaults, in seconds. They stand here and not in the broker's configuration: who moves from dtm gets the
# times that dtm documents, and whoever uses the native API gets the broker's.
TIMEOUT_TO_FAIL = 35
RETRY_INTERVAL = 10
REQUEST_TIMEOUT = 3
MOST_CHECKS = (
    10_000  # dtm asks for ever; this is the most a transaction may ask for, and then it is parked, not dropped
)
MOST_REMARK = 8_192
CHECK_FIELD = "query_prepared"

Seconds = Annotated[int, Meta(ge=0, le=366 * 24 * 3600)]
TimeoutSeconds = Annotated[int, Meta(ge=0, le=MAX_TIMEOUT_MS // 1000)]
Address = Annotated[str, Meta(max_length=2048)]

_STRIPPED = str.maketrans("", "", "\r\n;")  # what dtm takes out of a gid
_PROTOCOLS: dict[str, Protocol] = {name: name for name in PROTOCOLS}
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


class Step(Struct):
    """One branch. `data` is how old clients sent the payload."""

    action: Address | None = None
    data: str | None = None


class Trans(Struct):
    """The body of prepare, submit and abort. Unknown fields are ignored, null is as good as nothing."""

    gid: str | None = None
    trans_type: str | None = None
    steps: list[Step | None] | None = None
    payloads: list[str | None] | None = None
    query_prepared: Address | None = None
    custom_data: str | None = None
    protocol: str | None = None
    wait_result: bool | None = None
    timeout_to_fail: Seconds | None = None
    retry_interval: Seconds | None = None
    request_timeout: TimeoutSeconds | None = None
    branch_headers: dict[HeaderName, HeaderValue | None] | None = None
    concurrent: bool | None = None


class BinaryTrans(Trans):
    """A transaction that came by gRPC, whose payloads are bytes."""

    bodies: list[bytes] = []


class DtmOptions(Struct, frozen=True, omit_defaults=True):
    """dtm's column `options`: what a query shows of them."""

    wait_result: bool = False
    timeout_to_fail: int = 0
    request_timeout: int = 0
    retry_interval: int = 0
    branch_headers: dict[str, str] = {}
    concurrent: bool = False


class DtmRemark(Struct, omit_defaults=True, tag_field=DTM_TAG_FIELD, tag=DTM_TAG):
    """What the broker keeps beside the calls because only dtm's protocol has a word for it. Its tag comes first: by it
    the broker knows that dtm's rule counts for the answers."""

    protocol: str = ""
    custom_data: str = ""
    query_prepared: str = ""
    options: DtmOptions = DtmOptions()


_decode = msgspec.json.Decoder(Trans).decode
_encode = msgspec.json.Encoder().encode
_decode_remark = msgspec.json.Decoder(DtmRemark).decode
_EMPTY = DtmRemark()


def decode_trans(body: bytes) -> Trans:
    """A request's body; what is wrong with it is said with its place."""
    try:
        return _decode(body or b"{}")
    except DECODING as error:
        raise DtmError(undecodable(error).detail) from error


def trans_from(fields: Mapping[str, Any], kind: type[Trans] = Trans) -> Trans:
    """The same from fields that came some other way (JSON-RPC's params; a gRPC message, as BinaryTrans)."""
    try:
        return msgspec.convert(fields, kind)
    except DECODING as error:
        raise DtmError(undecodable(error).detail) from error


def gid_of(trans: Trans) -> str:
    return checked_gid(trans.gid)


def checked_gid(gid: str | None) -> str:
    if not gid:
        raise DtmError("gid: a transaction needs one; newGid gives new ones")
    try:
        return check_gid(gid.translate(_STRIPPED))
    except TallystickError as error:
        raise DtmError(error.detail) from error


def known_form(gid: str) -> str | None:
    """A gid to be looked for; None if no transaction can have it."""
    try:
        return checked_gid(gid)
    except DtmError:
        return None


def check_type(trans_type: str | None) -> None:
    if trans_type != "msg":
        raise wrong_type(trans_type)


# --- the parts of an operation -----------------------------------------------------------------------------------


def delay_of(trans: Trans) -> int:
    """Milliseconds that the branches wait, counted from the transaction's creation."""
    if not trans.custom_data:
        return 0
    try:
        custom = msgspec.json.decode(trans.custom_data)
        if not isinstance(custom, dict):
            return 0
        # dtm's decoder does not tell upper case from lower.
        delay = next((value for name, value in custom.items() if name.lower() == "delay"), None)
        return 1000 * msgspec.convert(delay or 0, Seconds)
    except DECODING as error:
        raise DtmError(
            f"custom_data: {undecodable(error).detail}; expected is a JSON object as text, such as "
            '{"delay": 10} with whole seconds'
        ) from error


def headers_of(trans: Trans) -> dict[str, str] | None:
    return {name: value or "" for name, value in trans.branch_headers.items()} if trans.branch_headers else None


def timeout_of(trans: Trans) -> int:
    return 1000 * (trans.request_timeout or REQUEST_TIMEOUT)


def bodies_of(trans: Trans) -> list[bytes]:
    """The payload of each step, those of the old form (`steps[i].data`) after the others, as dtm takes them."""
    if isinstance(trans, BinaryTrans):
        return trans.bodies
    bodies = [(payload or "").encode() for payload in trans.payloads or ()]
    bodies += [step.data.encode() for step in trans.steps or () if step is not None and step.data]
    return bodies


def calls_of(trans: Trans) -> list[OutgoingCall]:
    """One call a step. A step without a URL has nothing to be done for it, as in dtm; the others keep their numbers."""
    steps, bodies = trans.steps or [], bodies_of(trans)
    if len(bodies) < len(steps):
        raise DtmError(f'payloads: {len(bodies)} for {len(steps)} steps; each step needs one, "" if it has no body')
    headers, timeout, delay = headers_of(trans), timeout_of(trans), delay_of(trans)
    calls = []
    for index, step in enumerate(steps):
        if step is not None and step.action:
            protocol = asked_protocol(trans)
            url = url_of(step.action, protocol, f"steps[{index}].action")
            branch = f"{index + 1:02d}"
            calls.append(OutgoingCall(url, bodies[index], headers, protocol, timeout, delay, branch))
    return calls


def url_of(address: str, protocol: Protocol, at: str) -> str:
    """The broker's URL for one of dtm's addresses. How it is called is decided with the call, not here."""
    if address.startswith((TOPIC_SCHEME, "http://", "https://")):
        return address
    if protocol == "grpc" or address.startswith("grpc://"):
        return grpc_url(address, at)
    schemes = "http://, https:// or grpc://" if at == CHECK_FIELD else f"http://, https://, grpc:// or {TOPIC_SCHEME}"
    raise DtmError(f"{at}: unknown scheme (got {address[:200]!r}). Begin it with {schemes}.")


def asked_protocol(trans: Trans) -> Protocol:
    asked = trans.protocol or "http"
    if asked not in _PROTOCOLS:
        raise DtmError(f"protocol: {asked[:40]!r} is none of {', '.join(PROTOCOLS)}")
    return _PROTOCOLS[asked]


def grpc_url(address: str, at: str) -> str:
    """`host:port/package.Service/Method` as a URL."""
    plain = address.removeprefix("grpc://")
    if _SCHEME.match(plain):
        words = f"call dtmdriver.Use() before you use custom scheme for '{address[:200]}'"  # dtm's own
        raise DtmError(f"{at}: {words}; the schemes known here are http, https and grpc, and none is grpc")
    if "/" not in plain:
        raise DtmError(f"bad url: '{address[:200]}'. no '/' found")
    return f"grpc://{plain}"


def subscriber_url(address: str) -> str:
    """A URL of a topic, in the broker's form: dtm writes gRPC methods without a scheme."""
    return address if not address or _SCHEME.match(address) else f"grpc://{address}"


def shown_url(url: str) -> str:
    """A URL as dtm's users wrote it."""
    return url.removeprefix("grpc://")


def call_options_of(trans: Trans) -> CallPolicy:
    return CallPolicy(bool(trans.concurrent), 1000 * retry_seconds(trans))


def retry_seconds(trans: Trans) -> int:
    """As in dtm, a `timeout_to_fail` below the default interval shortens the interval."""
    return trans.retry_interval or min(trans.timeout_to_fail or RETRY_INTERVAL, RETRY_INTERVAL)


def remark_of(trans: Trans) -> str:
    options = DtmOptions(
        bool(trans.wait_result),
        trans.timeout_to_fail or 0,
        trans.request_timeout or 0,
        trans.retry_interval or 0,
        headers_of(trans) or {},
        bool(trans.concurrent),
    )
    protocol = "" if trans.protocol in (None, "http") else trans.protocol or ""
    text: str = _encode(DtmRemark(protocol, trans.custom_data or "", trans.query_prepared or "", options)).decode()
    if len(text) > MOST_REMARK:
        raise DtmError(
            f"custom_data, branch_headers and query_prepared have {len(text)} characters together as JSON; "
            f"the limit is {MOST_REMARK}"
        )
    return text


def read_remark(text: str) -> DtmRemark:
    """What `remark_of` wrote, in older versions without the tag; the calls of a native transaction may have a remark of
    another kind, or none."""
    try:
        return _decode_remark(text) if text else _EMPTY
    except DECODING:
        return _EMPTY


# --- operations --------------------------------------------------------------------------------------------------


def check_of(trans: Trans) -> Check:
    """dtm commits a transaction that names no check-back when its time is up; here the operator must have allowed
    that, or the broker refuses it."""
    after = 1000 * (trans.timeout_to_fail or TIMEOUT_TO_FAIL)
    if not trans.query_prepared:
        return Check(via="none", after_ms=after)
    target = url_of(trans.query_prepared, asked_protocol(trans), CHECK_FIELD)
    if target.startswith(TOPIC_SCHEME):
        raise DtmError("query_prepared: a topic cannot be asked; name one URL")
    return Check(
        via="url",
        target=target,
        after_ms=after,
        max_checks=MOST_CHECKS,
        on_exhausted="park",
        headers=headers_of(trans),
        timeout_ms=timeout_of(trans),
    )


def prepare_op(trans: Trans) -> Prepare:
    gid, check, calls = gid_of(trans), check_of(trans), calls_of(trans)
    return Prepare(gid, DTM_GROUP, [], check, calls=calls, call_options=call_options_of(trans), remark=remark_of(trans))


def commit_op(trans: Trans) -> Commit:
    return Commit(gid_of(trans), delay_ms=delay_of(trans))


def send_ops(trans: Trans) -> list[Prepare | Commit | Send]:
    """A submit without a prepare. One without calls is a transaction that is over at once."""
    gid, calls = gid_of(trans), calls_of(trans)
    if not calls:
        return [Prepare(gid, DTM_GROUP, []), Commit(gid)]
    return [Send([], gid, calls, call_options_of(trans), remark_of(trans))]

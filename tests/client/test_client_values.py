"""What may be the value of a message or the body of a call, and what it can be decoded to."""

from __future__ import annotations

import enum
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from tallystick import Message, UndecodableValue, outgoing, outgoing_call
from tallystick.errors import InvalidRequest

NOON = datetime(2026, 5, 1, 12, 0, 0, 5000, tzinfo=UTC)
NUMBER = UUID("11111111-2222-3333-4444-555555555555")


class Colour(enum.Enum):
    RED = "red"


class Shade(enum.StrEnum):
    DARK = "dark"


class Size(str, enum.Enum):  # noqa: UP042 - older programs have such
    LARGE = "large"


class Line(msgspec.Struct):
    item: str
    price: Decimal
    tags: set[str] = set()


@dataclass
class Order:
    id: UUID
    at: datetime
    lines: list[Line] = field(default_factory=list)
    colour: Colour = Colour.RED


@attrs.define
class Parcel:
    order: Order
    weight: float


class Place(NamedTuple):
    street: str
    number: int


class Address(TypedDict):
    place: Place
    since: date


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    id: int = pydantic.Field(alias="customerId")
    born: date
    limit: Decimal = Decimal("1.50")


class Team(pydantic.BaseModel):
    members: list[Customer]


@pydantic.dataclasses.dataclass
class Stock:
    item: str
    left: pydantic.PositiveInt


@dataclass
class Contract:
    """A dataclass that holds models of pydantic, also inside of its lists and dicts."""

    owner: Customer
    others: list[Customer]
    by_name: dict[str, Customer]


def customer(number: int = 7) -> Customer:
    return Customer(customerId=number, born=date(1990, 1, 2))


ORDER = Order(NUMBER, NOON, [Line("tea", Decimal("2.30"), {"hot"})])

VALUES: list[tuple[Any, Any]] = [
    (Line("tea", Decimal("2.30")), Line),
    (ORDER, Order),
    (Parcel(ORDER, 1.5), Parcel),
    ({"place": Place("Elm", 5), "since": date(2020, 2, 29)}, Address),
    ([ORDER, ORDER], list[Order]),
    ({"a": Line("ink", Decimal(1))}, dict[str, Line]),
    (timedelta(hours=2), timedelta),
    (Colour.RED, Colour),
    (Shade.DARK, Shade),
    (Size.LARGE, Size),
    ([Shade.DARK, Shade.DARK], list[Shade]),
    ("b", Literal["a", "b"]),
    (customer(), Customer),
    (Team(members=[customer(1), customer(2)]), Team),
    ([customer(1)], list[Customer]),
    (Contract(customer(1), [customer(2)], {"three": customer(3)}), Contract),
    (Stock("tea", 3), Stock),
    (17, int),
    (None, None),
    ({"any": ["thing"]}, Any),
    ("no JSON at all", str),
    (b"\xff\x00", bytes),
]


def message_of(value: bytes) -> Message:
    return Message("orders", 0, 3, value, None, None, None, "gid-1", 0, 0, 0, "store", "broker")


@pytest.mark.parametrize(("value", "kind"), VALUES)
def test_a_value_comes_back_as_its_type(value: Any, kind: Any) -> None:
    decoded = message_of(outgoing("orders", value).value).decode(kind)
    assert decoded == value
    assert type(decoded) is type(value)
    assert outgoing_call("http://127.0.0.1/", [value] if value is None else value).body != b""


def test_models_of_pydantic_go_by_their_aliases() -> None:
    assert msgspec.json.decode(outgoing("t", {"who": customer(5)}).value) == {
        "who": {"customerId": 5, "born": "1990-01-02", "limit": "1.50"}
    }


class Opaque:
    pass


@dataclass
class Dangling:
    """Its annotation names something that only a type checker has imported."""

    line: Missing  # type: ignore[name-defined]  # noqa: F821


UNENCODABLE = [
    (Opaque(), "value: cannot be made JSON .*no JSON for Opaque"),
    ({"lines": [1, {"price": 1j}]}, r"value\['lines'\]\[1\]\['price'\]: cannot be made JSON .*no JSON for complex"),
    (Parcel(Order(NUMBER, NOON, [Line("tea", Opaque())]), 1), r"value\.order\.lines\[0\]\.price: "),  # type: ignore[arg-type]
    (Place("Elm", Opaque()), r"value\[1\]: "),  # type: ignore[arg-type]
    ("\ud800", "value: cannot be made JSON or UTF-8"),
]


@pytest.mark.parametrize(("value", "said"), UNENCODABLE)
def test_what_cannot_be_encoded_is_named_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        outgoing("orders", value)
    assert refused.value.field == "value"
    with pytest.raises(InvalidRequest, match=said.replace("value", "body", 1)):
        outgoing_call("http://127.0.0.1/", value)


def test_a_value_that_holds_itself_is_refused() -> None:
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    with pytest.raises(InvalidRequest, match="value: it holds itself"):
        outgoing("orders", round_and_round)


UNDECODABLE = [
    (b'{"item": "tea"}', Line, "Object missing required field `price`"),
    (b'[{"item": 1, "price": "1"}]', list[Line], r"Expected `str`, got `int` - at `\$\[0\].item`"),
    (b'{"id": "x"}', Order, r"Invalid UUID - at `\$.id`"),
    (b"no json", Order, "JSON is malformed"),
    (b"", Order, "truncated"),
    (b"\xff", str, "'utf-8' codec"),
    (b'"\xff"', list[str], "Expected `array`"),
    (b'["\xff"]', list[str], "'utf-8' codec"),
    (b"{}", Customer, r"Field required - at `\$.customerId`; Field required - at `\$.born`"),
    (b'{"members": [{"customerId": "1", "born": "1990-01-02"}]}', Team, r"at `\$.members\[0\].customerId`"),
    (b'[{"customerId": 1, "born": "long ago"}]', list[Customer], r"at `\$.born` - at `\$\[0\]`"),
    (b"no json", Customer, "Invalid JSON"),
    (b'{"item": "tea", "left": -1}', Stock, r"greater than 0 - at `\$.left`"),
]


@pytest.mark.parametrize(("value", "kind", "said"), UNDECODABLE)
def test_what_is_not_of_the_type_is_told_with_its_place(value: bytes, kind: Any, said: str) -> None:
    with pytest.raises(UndecodableValue, match=said) as wrong:
        message_of(value).decode(kind)
    assert str(wrong.value).startswith("message gid-1/0 of orders is not ")
    assert "\n" not in str(wrong.value)


def test_a_value_that_pydantic_refuses_is_not_repeated_in_the_error() -> None:
    with pytest.raises(UndecodableValue) as wrong:
        message_of(b'{"customerId": "secret", "born": "1990-01-02"}').decode(Customer)
    assert "secret" not in str(wrong.value)


def test_unknown_fields_are_up_to_the_type() -> None:
    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        item: str

    class StrictModel(pydantic.BaseModel, extra="forbid"):
        item: str

    more = message_of(b'{"item": "tea", "price": "1", "colour": 1}')
    assert more.decode(Line).item == "tea"
    for kind in (Strict, StrictModel):
        with pytest.raises(UndecodableValue, match="price"):
            more.decode(kind)


def test_a_constraint_is_looked_at() -> None:
    positive = Annotated[int, msgspec.Meta(gt=0)]
    assert message_of(b"1").decode(positive) == 1
    with pytest.raises(UndecodableValue, match="Expected `int` >= 1"):
        message_of(b"0").decode(positive)


@pytest.mark.parametrize("kind", [Opaque, list[Opaque], Dangling, Line | Parcel | Order, "Order"])
def test_a_type_that_cannot_be_decoded_is_refused_as_such(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"type: .* cannot be decoded from JSON"):
        message_of(b"{}").decode(kind)


def test_a_message_without_a_type_has_no_data() -> None:
    with pytest.raises(InvalidRequest, match="subscribe with type=Order"):
        _ = message_of(b"{}").data


def test_pydantic_is_not_imported_for_those_who_do_not_use_it() -> None:
    program = """
import dataclasses, sys, tallystick
@dataclasses.dataclass
class Order:
    item: str
sent = tallystick.outgoing("orders", [Order("tea")])
message = tallystick.Message("orders", 0, 3, sent.value, None, None, None, "gid-1", 0, 0, 0, "store", "broker")
assert message.decode(list[Order]) == [Order("tea")]
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=Path(__file__).parent)


def test_messages_are_still_left_out_of_garbage_collection() -> None:
    assert Message.__struct_config__.gc is False


class Measured(pydantic.BaseModel):
    price: float


@dataclass
class Weighed:
    weight: float
    note: str | None = None


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (float("nan"), "value"),
        ({"prices": [1.0, float("inf")]}, r"value\['prices'\]\[1\]"),
        (Weighed(float("-inf")), r"value\.weight"),
        ([Measured(price=float("nan"))], r"value\[0\]"),
    ],
)
def test_a_number_that_json_does_not_have_is_refused_with_its_place(value: Any, place: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{place}: .*JSON has no number for"):
        outgoing("t", value)


def test_nothing_in_a_value_is_null() -> None:
    assert outgoing("t", Weighed(1.5)).value == b'{"weight":1.5,"note":null}'

"""Limits: the largest that is allowed passes, one more is refused by name."""

from __future__ import annotations

import pytest

from tallystick.core.errors import InvalidRequest, TooLarge
from tallystick.core.limits import MIB, Limits
from tallystick.core.message import OutgoingMessage

LIMITS = Limits(message_bytes=10, transaction_messages=3)


def sized(*sizes: int) -> list[OutgoingMessage]:
    return [OutgoingMessage("orders", b"x" * size) for size in sizes]


def test_the_defaults_are_those_that_are_documented() -> None:
    assert (Limits().message_bytes, Limits().request_bytes) == (4 * MIB, 16 * MIB)
    assert Limits().transaction_messages == 1_000


@pytest.mark.parametrize("sizes", [(), (0,), (10,), (10, 10, 10)])
def test_up_to_the_limit_everything_passes(sizes: tuple[int, ...]) -> None:
    LIMITS.check_messages(sized(*sizes), "messages")


def test_one_message_too_many_is_refused_with_both_numbers() -> None:
    with pytest.raises(TooLarge) as refused:
        LIMITS.check_messages(sized(1, 1, 1, 1), "ops[2].messages")
    assert refused.value.field == "ops[2].messages"
    assert refused.value.detail == "ops[2].messages: 4 messages, the limit is 3"


def test_one_byte_too_many_is_refused_at_its_place() -> None:
    with pytest.raises(TooLarge) as refused:
        LIMITS.check_messages(sized(10, 11, 12), "messages")
    assert refused.value.field == "messages[1].value"
    assert "11 bytes, the limit is 10" in refused.value.detail


def test_a_part_has_a_limit_of_its_own() -> None:
    LIMITS.check_messages(sized(1, 1, 1, 1), "messages", most=4)
    with pytest.raises(TooLarge, match="5 messages, the limit is 4"):
        LIMITS.check_messages(sized(1, 1, 1, 1, 1), "messages", most=4)
    with pytest.raises(TooLarge, match="1 messages, the limit is 0"):
        LIMITS.check_messages(sized(1), "messages", most=0)


def test_headers_are_limited_in_number() -> None:
    def with_headers(count: int) -> list[OutgoingMessage]:
        return [OutgoingMessage("orders", b"", headers={f"h{index}": "" for index in range(count)})]

    LIMITS.check_messages(with_headers(64), "messages")
    with pytest.raises(InvalidRequest) as refused:
        LIMITS.check_messages(with_headers(65), "messages")
    assert refused.value.field == "messages[0].headers"

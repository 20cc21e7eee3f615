"""The grammar of names: what is accepted is exactly what its description says, wherever a name comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from tallystick.core.errors import InvalidRequest
from tallystick.core.names import Gid, GroupName, PartId, TopicName, check_gid, check_name, dead_letter_topic

LETTERS_AND_DIGITS = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")


def is_name(text: str) -> bool:
    """The grammar in words: 1 to 127 of the allowed characters, the first a letter or digit."""
    return 1 <= len(text) <= 127 and text[0] in LETTERS_AND_DIGITS and set(text) <= LETTERS_AND_DIGITS | set("._-")


def is_gid(text: str) -> bool:
    first = LETTERS_AND_DIGITS | set("{}")
    return 1 <= len(text) <= 128 and text[0] in first and set(text) <= first | set("._:@-")


class Named(Struct):
    topic: TopicName
    group: GroupName


class Numbered(Struct):
    gid: Gid
    part: PartId


# Characters on both sides of the border: allowed ones, ASCII neighbours, digits and letters of other scripts,
# what ends a line or a string, what means something in a path, a URL or SQL.
TRICKY = (
    "azAZ09._-{}:@ /\\%'\"`;?#&=+,*~^$|<>()[]!\0\n\r\t\x0b\x1f\x7f\x85\u00a0\u2028"
    "\u00e9\u00df\u0131\u017f\u212a\u0663\u2167\u0430\U0001d7d9\uff41"
)
texts = (
    st.text(alphabet=st.sampled_from(TRICKY), max_size=12)
    | st.text(max_size=12)
    | st.text(alphabet="aZ9._-:{", min_size=120, max_size=135)
    | st.builds(
        str.__add__, st.text(alphabet="aZ9._-{}:@", max_size=5), st.sampled_from(["\n", "\0", "", "\r\n", "\u00e9"])
    )
)
# A lone surrogate is no text: it can come neither as JSON nor as msgpack.
encodable = texts.filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))

EDGES = [
    "",
    "a",
    "a" * 127,
    "a" * 128,
    "a" * 129,
    ".a",
    "-a",
    "_a",
    "a\n",
    "a\0",
    "\na",
    "a\nb",
    "a b",
    "..",
    "a..b",
    "../x",
    "{tag}",
    "}",
    "a:1@h",
    ":a",
    "@a",
    "\u00e9",
    "a\u00e9",
    "\u0663",
    "\uff41",
    "a" * 126 + "\n",
    "a" * 127 + "\n",
]


def accepted(check: Callable[[str], Any], text: str) -> bool:
    try:
        check(text)
    except (InvalidRequest, msgspec.ValidationError):
        return False
    return True


def decoded(kind: type[Struct], fields: list[str], text: str) -> list[bool]:
    """Whether `text` is accepted as each field, by JSON and by msgpack."""
    results = []
    for field in fields:
        body = {**dict.fromkeys(fields, "ok"), field: text}
        for encode, decode in (
            (msgspec.json.encode, msgspec.json.Decoder(kind).decode),
            (msgspec.msgpack.encode, msgspec.msgpack.Decoder(kind).decode),
        ):
            results.append(accepted(lambda sent, decode=decode: decode(sent), encode(body)))  # type: ignore[arg-type]
    return results


def with_edges(test: Callable[[str], None]) -> Callable[[str], None]:
    for text in EDGES:
        test = example(text)(test)
    return test


@with_edges
@given(encodable)
def test_a_name_is_accepted_exactly_if_the_grammar_says_so(text: str) -> None:
    assert accepted(lambda name: check_name(name, "topic"), text) == is_name(text)
    assert decoded(Named, ["topic", "group"], text) == [is_name(text)] * 4


@with_edges
@given(encodable)
def test_a_gid_is_accepted_exactly_if_the_grammar_says_so(text: str) -> None:
    assert accepted(check_gid, text) == is_gid(text)
    assert decoded(Numbered, ["gid", "part"], text) == [is_gid(text)] * 4


@given(st.characters())
def test_no_other_character_slips_in_at_either_end(char: str) -> None:
    assert accepted(lambda name: check_name(name, "topic"), char) == (char in LETTERS_AND_DIGITS)
    assert accepted(lambda name: check_name(name, "topic"), f"a{char}") == is_name(f"a{char}")
    assert accepted(check_gid, f"a{char}") == is_gid(f"a{char}")


def test_each_group_has_a_dead_letter_topic_of_its_own_whose_name_is_valid() -> None:
    groups = [end.rjust(length, "g") for length in (3, 122, 123, 124, 125, 127) for end in ("a", "b", "c")]
    topics = [check_name(dead_letter_topic(group), "topic") for group in groups]
    assert len(set(topics)) == len(groups)
    assert dead_letter_topic("billing") == "dlq.billing"


def test_what_is_accepted_comes_back_unchanged() -> None:
    assert check_name("a.B-c_9", "topic") == "a.B-c_9"
    assert check_gid("{user1}:order@7") == "{user1}:order@7"


@pytest.mark.parametrize("text", ["", "x y", "a\n", "z" * 5_000])
def test_a_refusal_names_the_field_shows_the_value_and_stays_short(text: str) -> None:
    for check, field in ((lambda: check_name(text, "group"), "group"), (lambda: check_gid(text), "gid")):
        with pytest.raises(InvalidRequest) as refused:
            check()
        assert refused.value.field == field
        assert refused.value.detail.startswith(f"{field} {text[:140]!r} is not a valid")
        assert len(refused.value.detail) < 400
        assert "\n" not in refused.value.detail

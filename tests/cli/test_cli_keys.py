"""`tallystick keys`."""

from __future__ import annotations

from command_line import tallystick

from tallystick.core.signing import parse_keys


def test_a_new_key_is_a_line_for_the_file_and_never_the_same() -> None:
    first, second = tallystick("keys", "new"), tallystick("keys", "new")
    assert (first.code, first.err) == (0, "")
    keys = parse_keys(first.out + second.out)
    assert len(keys) == len({key.secret for key in keys.values()}) == 2
    assert all(len(key.secret) == 43 for key in keys.values())

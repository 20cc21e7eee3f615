"""A public class has a name of its own: whoever reads it, or looks for it, need not ask which one is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# The extensions: `from tallystick.flask import Tallystick`, named as those of a framework are.
SAME_ON_PURPOSE = {"Tallystick"}

SOURCE = Path(__file__).parents[2] / "src"


def public_classes() -> Iterator[tuple[str, str]]:
    """Each class of a module that has no underscore, and where it is."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_a_public_class_name_exists_once() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, place in public_classes():
        places[name].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in SAME_ON_PURPOSE} == {}

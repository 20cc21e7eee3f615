"""Tables made from the test kit: its fixtures, the steps of a block, its classes."""

from __future__ import annotations

import ast
import inspect

from doc_tables import first_sentence, table
from doc_tables_api import class_text

from tallystick.testing import CrashAt, MemoryBroker, RecordedCall, SimulatedCrash, plugin
from tallystick.testing.steps import MEANINGS


def fixtures() -> str:
    functions = [node for node in ast.parse(inspect.getsource(plugin)).body if isinstance(node, ast.FunctionDef)]
    rows = [[f"`{one.name}`", first_sentence(ast.get_docstring(one))] for one in functions if one.name[0] != "_"]
    return table(["fixture", "what it is"], rows)


def steps() -> str:
    return table(["step", "the process dies"], [[f"`{step}`", when] for step, when in MEANINGS.items()])


def kit() -> str:
    return "\n".join(class_text(kind) for kind in (MemoryBroker, CrashAt, SimulatedCrash, RecordedCall))

"""Errors of ours that were raised in one of Spark's processes, raised again here as what they are."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tallystick.core.errors import TallystickError

# The last line of a traceback of Python, which Spark hands on as text.
_RAISED = re.compile(r"^(tallystick(?:\.\w+)+)\.(\w+): (.*?)(?:\n *SQLSTATE|\n\tat |\Z)", re.MULTILINE | re.DOTALL)


@contextmanager
def told_by_tasks() -> Iterator[None]:
    """Around actions of Spark: what a task or a reader of ours raised comes out without Spark's wrapping."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        ours = raised_there(str(error))
        if ours is None:
            raise
        raise ours from None


def raised_there(text: str) -> TallystickError | None:
    """The error of ours that a message of Spark holds, if it does."""
    found = _RAISED.findall(text)
    if not found:
        return None
    module, name, detail = found[-1]
    try:
        kind = getattr(importlib.import_module(module), name)
        made = kind(detail)
    except (ImportError, AttributeError, TypeError):
        made = TallystickError(detail)
    return made if isinstance(made, TallystickError) else TallystickError(detail)

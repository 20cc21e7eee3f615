"""The names of a package that are imported at their first use.

A package whose `__init__` imports its own modules can fail when two threads import it at once. One thread holds the
import lock of the package and waits for a module in it. The other one imports that module directly: it holds the lock
of the module and waits for the package. Python breaks this deadlock with a partially initialized module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: Its `__name__`.
        modules: The names that each module in the package defines. A module without names is itself a name.
    """
    defined_in = {name: f"{package}.{module}" for module, names in modules.items() for name in names}
    themselves = {module: f"{package}.{module}" for module, names in modules.items() if not names}

    def __getattr__(name: str) -> Any:
        if name in themselves:
            return import_module(themselves[name])
        if name not in defined_in:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(defined_in[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__

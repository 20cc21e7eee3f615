"""A broker for tests of services, in this process and in memory; and crashes, lost answers and consumers to play.

Nothing is imported before it is used: pytest loads this package in every run, also where the broker's packages are not
installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tallystick.extras import ExtraMissing

if TYPE_CHECKING:
    from tallystick.testing.broker import MemoryBroker
    from tallystick.testing.crashes import CrashAt, SimulatedCrash, crash_at
    from tallystick.testing.steps import STEPS, Step
    from tallystick.testing.view import RecordedCall

__all__ = ["STEPS", "CrashAt", "MemoryBroker", "RecordedCall", "SimulatedCrash", "Step", "crash_at"]

_PLACES = {
    "RecordedCall": "view",
    "CrashAt": "crashes",
    "MemoryBroker": "broker",
    "STEPS": "steps",
    "SimulatedCrash": "crashes",
    "Step": "steps",
    "crash_at": "crashes",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"tallystick.testing.{_PLACES[name]}"), name)
    except ModuleNotFoundError as missing:
        raise ExtraMissing(
            f"{name} needs {missing.name}, which is not installed: pip install 'tallystick[testing]'", name=missing.name
        ) from missing

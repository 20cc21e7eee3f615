"""How long the machine plays, and how it is put on a kind of connection."""

from __future__ import annotations

from typing import Any

from border_kinds import Kind
from border_machine import BorderMachine
from hypothesis import HealthCheck, Phase, settings

from brokers import BrokerProcess

BOUNDED = settings(
    stateful_step_count=16,
    max_examples=12,
    # The same histories in every run. None is made smaller: that would take as long as many new ones.
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    print_blob=False,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
HUNT = settings(BOUNDED, max_examples=60)


def machine_on(broker: BrokerProcess, kind: Kind, **more: Any) -> type[BorderMachine]:
    return type("Machine", (BorderMachine,), {"url": broker.url, "kind": kind, "found": [], **more})

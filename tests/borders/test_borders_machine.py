"""Random histories at the border between the library and its user's database code, on each kind of connection."""

from __future__ import annotations

from typing import Any

import pytest
from border_machine import BorderMachine
from border_kinds import Kind
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from brokers import BrokerProcess

BOUNDED = settings(
    stateful_step_count=12,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
    report_multiple_bugs=False,
    max_examples=40,
    phases=[Phase.generate],
)


def machine_on(broker: BrokerProcess, kind: Kind, **more: Any) -> type[BorderMachine]:
    return type("Machine", (BorderMachine,), {"url": broker.url, "kind": kind, "found": [], **more})


@pytest.mark.slow
def test_rows_and_messages_agree_whatever_the_users_code_does(
    broker: BrokerProcess, any_kind: Kind
) -> None:
    run_state_machine_as_test(machine_on(broker, any_kind), settings=BOUNDED)

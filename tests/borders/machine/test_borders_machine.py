"""Random histories at the border between the library and its user's database code, on each kind of connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from border_hunt import BOUNDED, machine_on
from border_kinds import Kind
from hypothesis.stateful import run_state_machine_as_test

from brokers import BrokerProcess

KINDS = [
    "sqlite",
    pytest.param("psycopg", marks=[pytest.mark.postgresql, pytest.mark.full]),
    pytest.param("psycopg2", marks=[pytest.mark.postgresql, pytest.mark.full]),
    pytest.param("pymysql", marks=[pytest.mark.mariadb, pytest.mark.full]),
    pytest.param("session", marks=[pytest.mark.postgresql, pytest.mark.full]),
]


@pytest.mark.parametrize("name", KINDS)
def test_rows_and_messages_agree_whatever_the_users_code_does(
    name: str, broker: BrokerProcess, kind_named: Callable[[str], Kind]
) -> None:
    run_state_machine_as_test(machine_on(broker, kind_named(name)), settings=BOUNDED)

"""Ends of a block that look like something else: a client that is closed meanwhile, a server that begins anew."""

from __future__ import annotations

import pytest
from borders_support import MODES, Mode, Service

import tallystick


def test_a_client_that_is_closed_before_the_commit_leaves_the_messages_to_others(any_service: Service) -> None:
    """The row is committed, so the block must not say that nothing was; another process of the group sends the rest."""
    with any_service.bank.connection() as connection:
        any_service.block(connection, "closed", lambda _: any_service.ts.close(), MODES["early"])
    assert any_service.bank.notes() == ["closed"]
    with tallystick.Client(any_service.broker.url, group=any_service.group, database=any_service.bank.open) as other:
        other.start()
        any_service.agrees_on("closed")


@pytest.mark.mariadb
@pytest.mark.full
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_server_that_begins_the_next_transaction_by_itself_is_no_failed_commit(
    mariadb_service: Service, mode: Mode
) -> None:
    connection = mariadb_service.bank.open()
    connection.cursor().execute("set session completion_type = 'CHAIN'")
    with pytest.raises(tallystick.OutcomeUnknown, match="completion_type"):
        mariadb_service.block(connection, "chained", mode=mode)
    connection.close()
    mariadb_service.agrees_on("chained")

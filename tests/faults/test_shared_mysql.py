"""A unit that MySQL gets in several packets, cut off at each of them. Everything else is in test_shared_sql."""

from __future__ import annotations

import pytest
from shared_stream import CutOnce, Stream, stored

from cutting_proxy import Cut, cutting_proxy
from servers import Server
from shared_stores import new_number, opener, url_of
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared import mysql, mysql_session

pytestmark = [pytest.mark.mariadb, pytest.mark.fault, pytest.mark.full]


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_connection_cut_at_any_packet_of_a_unit(mariadb: Server, how: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut after the first of them, the server has a transaction open, and the fence's row locked, until it notices."""
    monkeypatch.setattr(mysql, "_ROWS_BYTES", 4_000)
    monkeypatch.setattr(mysql_session, "_HEAD_BYTES", 64 * 1024 * 1024 - 8_000)
    database, number = mariadb.new_database(), new_number()
    with cutting_proxy(mariadb.port) as proxy:
        stream = Stream(opener(url_of(mariadb, database, proxy.port), number)(StoreSettings()))
        before = stream.store.server.trips
        stream.unit("calm", weight=3_000)
        assert stream.store.server.trips - before > 6, "a unit has several packets"
        for piece in range(60):
            cut = CutOnce(piece, how)
            proxy._choose = cut
            stream.unit(f"cut-{piece}", weight=3_000)
            if cut.left > 0:
                break  # the unit was through before it came to that
        else:
            pytest.fail("a unit has fewer packets")
        assert proxy.cut > 6
        stream.store.close()
    again = opener(url_of(mariadb, database), number)(StoreSettings())
    stream.check(again)
    assert set(stored(again)) == stream.told == stream.asked
    again.close()

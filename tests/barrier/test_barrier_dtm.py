"""A database that already has dtm's barrier table: it is used by name, and dtm's clients understand our rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from parties import Place, kind_params

from tallystick.barrier import (
    AlreadyDecided,
    InvalidTableName,
    decide,
    decide_many,
    mark_committed,
)

TABLE = "dtm_barrier.barrier"

# As dtm documents it.
DEFINITIONS = {
    "mysql": [
        "drop database if exists dtm_barrier",  # of other tests on the same server
        "create database dtm_barrier default character set utf8mb4",
        """create table dtm_barrier.barrier(
            id bigint(22) PRIMARY KEY AUTO_INCREMENT,
            trans_type varchar(45) default '',
            gid varchar(128) default '',
            branch_id varchar(128) default '',
            op varchar(45) default '',
            barrier_id varchar(45) default '',
            reason varchar(45) default '' comment 'the branch type who insert this record',
            create_time datetime DEFAULT now(),
            update_time datetime DEFAULT now(),
            key(create_time),
            key(update_time),
            UNIQUE key(gid, branch_id, op, barrier_id)
        ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4""",
    ],
    "postgresql": [
        "create schema dtm_barrier",
        "create sequence dtm_barrier.barrier_seq",
        """create table dtm_barrier.barrier(
            id bigint NOT NULL DEFAULT NEXTVAL ('dtm_barrier.barrier_seq'),
            trans_type varchar(45) default '',
            gid varchar(128) default '',
            branch_id varchar(128) default '',
            op varchar(45) default '',
            barrier_id varchar(45) default '',
            reason varchar(45) default '',
            create_time timestamp(0) with time zone DEFAULT NULL,
            update_time timestamp(0) with time zone DEFAULT NULL,
            PRIMARY KEY(id),
            CONSTRAINT uniq_barrier unique(gid, branch_id, op, barrier_id)
        )""",
    ],
}
DROPS = {"mysql": "drop database dtm_barrier", "postgresql": "drop schema dtm_barrier cascade"}

# What dtm's clients send, for a local transaction and for a check-back.
COLUMNS = "(trans_type, gid, branch_id, op, barrier_id, reason)"
INSERTS = {
    "mysql": "insert ignore into {table}{columns} values('msg','{gid}','00','msg','01','{reason}')",
    "postgresql": (
        "insert into {table}{columns} values('msg','{gid}','00','msg','01','{reason}') "
        "on conflict ON CONSTRAINT uniq_barrier do nothing"
    ),
}

dtm_kinds = pytest.mark.parametrize("kind", kind_params(["psycopg", "core-postgresql", "pymysql", "orm-mysql"]))


def dtm_client_inserts(place: Place, gid: str, reason: str, table: str = TABLE) -> None:
    place.query(INSERTS[place.engine].format(table=table, columns=COLUMNS, gid=gid, reason=reason))


def dtm_client_reads(place: Place, gid: str) -> str:
    where = f"gid = '{gid}' and branch_id = '00' and op = 'msg' and barrier_id = '01'"
    return str(place.query(f"select reason from {TABLE} where {where}")[0][0])


@pytest.fixture
def dtm(place: Place) -> Iterator[Place]:
    for definition in DEFINITIONS[place.engine]:
        place.query(definition)
    yield place
    place.query(DROPS[place.engine])


@dtm_kinds
async def test_our_outcomes_are_rows_that_dtm_understands(dtm: Place, gid: str) -> None:
    party = await dtm.open()
    await party.begin()
    await party.run(mark_committed(gid, table=TABLE))
    await party.commit()
    assert dtm_client_reads(dtm, gid) == "msg"
    assert await party.run(decide(gid, table=TABLE)) == "committed"
    assert await party.run(decide(f"{gid}-absent", table=TABLE)) == "rolled_back"
    assert dtm_client_reads(dtm, f"{gid}-absent") == "rollback"
    assert dtm.query("select * from tallystick_barrier where op = 'msg'") == []
    assert dtm.query(f"select count(*) from {TABLE} where create_time is null") == [(0,)]


@dtm_kinds
async def test_rows_of_dtm_are_outcomes_that_we_understand(dtm: Place, gid: str) -> None:
    dtm_client_inserts(dtm, f"{gid}-1", "msg")
    dtm_client_inserts(dtm, f"{gid}-2", "rollback")
    party = await dtm.open()
    answers = await party.run(decide_many([f"{gid}-1", f"{gid}-2"], table=TABLE))
    assert answers == {f"{gid}-1": "committed", f"{gid}-2": "rolled_back"}
    await party.begin()
    with pytest.raises(AlreadyDecided):
        await party.run(mark_committed(f"{gid}-2", table=TABLE))
    await party.rollback()


@dtm_kinds
async def test_client_of_dtm_may_use_our_table(place: Place, gid: str) -> None:
    dtm_client_inserts(place, gid, "rollback", table="tallystick_barrier")
    dtm_client_inserts(place, gid, "msg", table="tallystick_barrier")
    party = await place.open()
    assert await party.run(decide(gid)) == "rolled_back"


@dtm_kinds
async def test_other_rows_of_the_same_gid_are_not_outcomes(dtm: Place, gid: str) -> None:
    dtm.query(
        f"insert into {TABLE}{COLUMNS} values ('msg','{gid}','01','action','01','action'),"
        f"('msg','{gid}','00','msg','02','msg')"
    )
    party = await dtm.open()
    assert await party.run(decide(gid, table=TABLE)) == "rolled_back"


@pytest.mark.parametrize("kind", kind_params(["pymysql", "core-mysql"]))
async def test_gid_that_differs_only_in_case_is_never_mistaken_for_the_other(dtm: Place, gid: str) -> None:
    # dtm's table compares without case, so the other gid takes the key; ours compares exactly.
    party = await dtm.open()
    await party.begin()
    await party.run(mark_committed(f"A{gid}", table=TABLE))
    await party.run(mark_committed(f"A{gid}"))
    await party.commit()
    assert await party.run(decide(f"a{gid}", table=TABLE, wait=0.1)) == "running"
    assert await party.run(decide(f"a{gid}", wait=0.1)) == "rolled_back"
    await party.begin()
    with pytest.raises(AlreadyDecided) as caught:
        await party.run(mark_committed(f"a{gid}", table=TABLE))
    assert caught.value.outcome is None
    await party.rollback()


@dtm_kinds
async def test_reason_that_nobody_knows_is_never_an_outcome(dtm: Place, gid: str) -> None:
    dtm_client_inserts(dtm, gid, "mystery")
    dtm_client_inserts(dtm, f"{gid}-2", "msg")
    party = await dtm.open()
    answers = await party.run(decide_many([gid, f"{gid}-2"], wait=0.1, table=TABLE))
    assert answers == {gid: "running", f"{gid}-2": "committed"}
    await party.begin()
    with pytest.raises(AlreadyDecided) as caught:
        await party.run(mark_committed(gid, table=TABLE))
    assert caught.value.outcome is None
    await party.rollback()


@pytest.mark.parametrize("kind", ["sqlite3"])
@pytest.mark.parametrize(
    "name", ["", "a b", "a;drop table x", "a.b.c", ".a", "a.", "1a", "a-b", '"a"', "a" * 64, "bär", "a\n", "a--"]
)
async def test_table_name_outside_the_grammar_is_refused(place: Place, gid: str, name: str) -> None:
    party = await place.open()
    with pytest.raises(InvalidTableName, match="table name"):
        await party.run(decide(gid, table=name))

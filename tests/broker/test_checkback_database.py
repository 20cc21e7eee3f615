"""Check-back by database: the broker reads the barrier itself, with nobody of the producer's there."""

from __future__ import annotations

import asyncio
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from inner_broker import Inside, inside, rounds
from web_sites import closed_port, rough_site, silence

from servers import Server
from service_database import Service
from tallystick.barrier import AlreadyDecided
from tallystick.broker.broker import Broker
from tallystick.broker.config import load_config
from tallystick.core.errors import ConfigError, InvalidRequest, NotAllowed
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Check, Prepare
from tallystick.store.memory import open_memory


def reading(service: Service, **more: str) -> dict[str, Any]:
    return {"databases": {"bank": service.url, **more}, "check_timeout": "500ms"}


async def prepare(broker: Inside, *gids: str, name: str = "bank", **rest: Any) -> None:
    check, messages = Check(via="database", target=name, after_ms=0, **rest), [OutgoingMessage("orders", b"v")]
    await broker.door.batch([Prepare(gid, "shop", messages, check) for gid in gids], 100)


# --- the four answers ----------------------------------------------------------------------------------------------


async def test_a_committed_local_transaction_is_committed(service: Service) -> None:
    service.commit("t")
    async with inside(**reading(service)) as broker:
        await prepare(broker, "t")
        view = await broker.becomes("t", state="committed")
        assert view.resolved_by == "check"
        assert broker.visible() == 1
        assert broker.metric("checks_answered_total", via="database", answer="committed") == 1


async def test_a_local_transaction_that_rolled_back_is_rolled_back(service: Service) -> None:
    with service.local_transaction("t"):
        pass
    async with inside(**reading(service)) as broker:
        await prepare(broker, "t")
        await broker.becomes("t", state="rolled_back")
        assert broker.visible() == 0


async def test_one_that_has_not_begun_is_rolled_back_and_fails_if_it_still_comes(service: Service) -> None:
    async with inside(**reading(service)) as broker:
        await prepare(broker, "t")
        await broker.becomes("t", state="rolled_back")
        with pytest.raises(AlreadyDecided) as refused:
            service.commit("t")
        assert refused.value.outcome == "rolled_back"


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
async def test_one_that_is_running_is_waited_for_and_then_told_truly(service: Service, commits: bool) -> None:
    async with inside(**reading(service)) as broker:
        with service.local_transaction("t") as connection:
            await prepare(broker, "t")
            view = await broker.becomes("t", checks=1, state="prepared")
            assert "could not tell" in view.last_error
            assert broker.metric("checks_answered_total", via="database", answer="unknown") == 1
            if commits:
                connection.commit()
        broker.clock.advance(2_000)
        await broker.becomes("t", state="committed" if commits else "rolled_back")


async def test_one_that_commits_while_it_is_waited_for_needs_no_second_check(service: Service) -> None:
    async with inside(**{**reading(service), "check_timeout": "10s"}) as broker:
        with service.local_transaction("t") as connection:
            await prepare(broker, "t")
            await asyncio.sleep(0.5)
            assert (await broker.view("t")).state == "prepared"
            connection.commit()
        view = await broker.becomes("t", state="committed")
        assert view.checks == 1


@pytest.mark.parametrize(
    "place",  # not SQLite, which has one writer: while that is busy, nothing can be decided there
    [
        pytest.param("postgres", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
    indirect=True,
)
async def test_a_running_one_holds_up_no_other_answer_of_the_same_question(service: Service) -> None:
    service.commit("done")
    async with inside(**reading(service)) as broker:
        with service.local_transaction("running"):
            await prepare(broker, "done", "running", "absent")
            await broker.becomes("done", state="committed")
            await broker.becomes("absent", state="rolled_back")
            await broker.becomes("running", checks=1, state="prepared")


async def test_many_are_answered_with_few_questions(service: Service) -> None:
    committed = [f"yes{number}" for number in range(150)]
    absent = [f"no{number}" for number in range(50)]
    service.commit(*committed)
    async with inside(**{**reading(service), "check_timeout": "10s"}) as broker:
        await prepare(broker, *committed, *absent)
        for gid in (*committed, *absent):
            await broker.becomes(gid, state="committed" if gid in committed else "rolled_back")
        questions = broker.broker.metrics.registry.get_sample_value(
            "tallystick_check_seconds_count", {"via": "database"}
        )
        assert questions == 1
        assert broker.metric("checks_sent_total", via="database") == 200


# --- databases that do not answer ----------------------------------------------------------------------------------


async def test_missing_tables_decide_nothing_and_are_told(place: Path | Server) -> None:
    service = Service(place, tables=False)
    async with inside(**reading(service)) as broker:
        await prepare(broker, "t")
        view = await broker.becomes("t", checks=1, state="prepared")
        assert view.last_error.startswith("database bank: ")
        assert broker.metric("checks_failed_total", via="database", kind="error") == 1
        service.create_tables()
        service.commit("t")
        broker.clock.advance(2_000)
        await broker.becomes("t", state="committed")


def unreachable(tmp_path: Path) -> dict[str, str]:
    port = closed_port()
    return {
        "sqlite": f"sqlite://{tmp_path}/missing/service.db",
        "postgresql": f"postgresql://u:hidden@127.0.0.1:{port}/d",
        "mysql": f"mysql://u:hidden@127.0.0.1:{port}/d",
    }


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mysql"])
async def test_a_database_that_cannot_be_reached_is_asked_again_and_decides_nothing(
    engine: str, tmp_path: Path
) -> None:
    async with inside(databases={"bank": unreachable(tmp_path)[engine]}) as broker:
        await prepare(broker, "t", max_checks=3)
        for checks in (1, 2):
            view = await broker.becomes("t", checks=checks, state="prepared")
            assert view.last_error.startswith("database bank: ")
            assert "hidden" not in view.last_error
            assert view.next_check_at > broker.clock.now_ms()
            broker.clock.advance(30_000)
        await broker.becomes("t", state="parked")
        assert broker.visible() == 0


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("postgres", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)
async def test_a_wrong_password_decides_nothing_and_is_not_repeated_to_anybody(
    engine: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(engine)
    url = server.url(server.engine).set(password="hidden").render_as_string(hide_password=False)
    async with inside(databases={"bank": url}) as broker:
        await prepare(broker, "t")
        view = await broker.becomes("t", checks=1, state="prepared")
        assert "hidden" not in view.last_error


async def test_a_dead_database_does_not_delay_another(service: Service) -> None:
    service.commit(*(f"t{number}" for number in range(5)))
    async with rough_site(silence) as address:
        dead = {f"dead{number}": f"mysql://u:p@{address.removeprefix('http://')}/d" for number in range(12)}
        async with inside(**{**reading(service, **dead), "check_timeout": "60s"}) as broker:
            for name in dead:
                await prepare(broker, f"at-{name}", name=name)
            await rounds()
            began = time.monotonic()
            for number in range(5):
                await prepare(broker, f"t{number}")
                await broker.becomes(f"t{number}", state="committed")
            assert time.monotonic() - began < 30
            began = time.monotonic()
        assert time.monotonic() - began < 30, "the end waited for databases that do not answer"


@pytest.mark.full
async def test_a_server_that_takes_connections_and_says_nothing_is_given_up() -> None:
    async with rough_site(silence) as address:
        place = f"u:p@{address.removeprefix('http://')}/d"
        databases = {engine: f"{engine}://{place}" for engine in ("postgresql", "mysql")}
        async with inside(databases=databases, check_timeout="500ms") as broker:
            for engine in databases:
                await prepare(broker, engine, name=engine)
            for engine in databases:
                await broker.becomes(engine, checks=1, state="prepared")


# --- names and addresses -------------------------------------------------------------------------------------------


async def test_a_name_that_is_not_configured_is_refused_at_the_prepare(tmp_path: Path) -> None:
    async with inside(databases={"bank": f"sqlite://{tmp_path}/a", "shop": f"sqlite://{tmp_path}/b"}) as broker:
        with pytest.raises(NotAllowed) as refused:
            await prepare(broker, "t", name="vault")
        assert refused.value.field == "ops[0].check.target"
        assert all(word in refused.value.detail for word in ("'vault'", "bank", "shop"))
        assert await broker.look(lambda store: store.transaction("t")) is None
        with pytest.raises(InvalidRequest, match="needs its database"):
            await prepare(broker, "t", name="")


async def test_a_url_cannot_be_named_in_place_of_a_database(tmp_path: Path) -> None:
    async with inside() as broker:
        with pytest.raises(NotAllowed, match="it has: none"):
            await prepare(broker, "t", name=f"sqlite://{tmp_path}/service.db")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bank.db",
        "sqlite:",
        "sqlite://",
        "sqlite:bank.db",
        "http://h/",
        "oracle://u:hidden@h/d",
        "mysql://u:hidden@h:port/d",
        "mysql://u:hidden@h:99999/d",
        "mysql://u:hidden/@h/d",
        "mysql:u:hidden@h",
        "postgresql:u:hidden@h",
        "postgresql://u:hidden%zz@h/d",
        "postgresql://u:hidden@h/d?no_such_setting=1",
    ],
)
async def test_an_address_that_cannot_be_used_is_refused_at_the_start_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Broker(load_config(flags={"store": "memory", "databases": {"bank": url}}, environ={}))
    assert refused.value.field == "databases"
    assert refused.value.detail.startswith("databases.bank: ")
    assert "hidden" not in "".join(traceback.format_exception(refused.value))


async def test_a_database_file_that_is_missing_is_not_made(tmp_path: Path) -> None:
    async with inside(databases={"bank": f"sqlite://{tmp_path}/missing.db"}) as broker:
        await prepare(broker, "t")
        await broker.becomes("t", checks=1, state="prepared")
    assert not (tmp_path / "missing.db").exists()


async def test_a_database_taken_out_of_the_configuration_decides_nothing(tmp_path: Path) -> None:
    service, store = Service(tmp_path / "service.db"), open_memory()
    async with inside(store, **reading(service)) as broker:
        check = Check(via="database", target="bank", after_ms=60_000)
        await broker.do(Prepare("t", "shop", [OutgoingMessage("orders", b"v")], check))
    async with inside(store) as broker:
        broker.clock.advance(60_000)
        view = await broker.becomes("t", checks=1, state="prepared")
        assert "bank" in view.last_error

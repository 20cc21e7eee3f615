"""What is said of a shared engine that cannot be used: its driver is missing, its address is wrong, it refuses."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from command_line import Done, environment, one_line, tallystick

from servers import PASSWORD, RedisServer, Server
from shared_stores import url_of

SECRET = "hush"
NOBODY = "127.0.0.1:9"
COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "serve": lambda url: ["serve", "--port", "0", "--allow-weak-durability", "--store", url],
    "store copy from": lambda url: ["store", "copy", url, "somewhere"],
    "chaos": lambda url: ["chaos", "--directory", "work", "--store", url],
}
WITHOUT = "import sys; sys.modules[sys.argv.pop(1)] = None; from tallystick.__main__ import main; sys.exit(main())"


def refused(name: str, url: str) -> Done:
    """What a command says, in one line, of an engine that it cannot use."""
    done = tallystick(*COMMANDS[name](url))
    one_line(done.err)
    assert SECRET not in done.err + done.out
    return done


# --- drivers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "module"), [("postgresql", "psycopg"), ("mysql", "pymysql"), ("redis", "redis")])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_driver_that_is_missing_is_told_with_what_to_install(name: str, engine: str, module: str) -> None:
    arguments = COMMANDS[name](f"{engine}://user:{SECRET}@{NOBODY}/0")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, module, *arguments], capture_output=True, text=True, env=environment()
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"is not installed: pip install 'tallystick[{engine}]'" in one_line(done.stderr)
    assert SECRET not in done.stderr


# --- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", list("@/#%?["))
@pytest.mark.parametrize("engine", ["postgresql", "mysql", "redis"])
def test_a_password_that_is_not_percent_encoded_is_told_and_not_shown(engine: str, sign: str) -> None:
    url = f"{engine}://user:{SECRET}{sign}{SECRET}@{NOBODY}/db"
    for name in COMMANDS:
        done = refused(name, url)
        assert (done.code, done.out) == (2, "")
        assert "in a name or a password % @ / ? # [ ] are written as %25 %40 %2F" in done.err


def test_an_address_of_the_environment_is_told_by_its_origin() -> None:
    done = tallystick("serve", TALLYSTICK_STORE=f"postgresql://user:{SECRET}@{SECRET}@host/db")
    assert done.code == 2
    assert "store (environment): not a valid address" in one_line(done.err)
    assert SECRET not in done.err


@pytest.mark.parametrize("engine", ["postgresql", "redis"])
def test_an_option_that_the_driver_does_not_know_is_told_and_not_shown(engine: str) -> None:
    done = refused("serve", f"{engine}://{NOBODY}/0?{SECRET}=2")
    assert (done.code, "does not know" in done.err) == (2, True)


def test_an_option_that_is_almost_one_is_told_as_the_one_that_is_meant() -> None:
    done = refused("serve", f"redis://{NOBODY}/0?wait_replica=1")
    assert (done.code, "is wait_replicas meant?" in done.err) == (2, True)
    assert "meant" not in refused("serve", f"redis://{NOBODY}/0?{SECRET}=1").err


@pytest.mark.parametrize("name", COMMANDS)
def test_the_other_name_of_postgresql_is_taken(name: str, tmp_path: Path) -> None:
    """Somebody is asked, who is not there."""
    done = tallystick(*COMMANDS[name](f"postgres://user:{SECRET}@{NOBODY}/db"), cwd=tmp_path)
    assert "(the shared store cannot be used)" in done.err
    assert SECRET not in done.err + done.out


# --- refusals ----------------------------------------------------------------------------------------------------


def said_first(done: Done, words: str) -> None:
    """What the server says, and not that nobody was reached."""
    assert done.code == 1
    told = one_line(done.err).rstrip()
    assert words in told
    assert told.endswith("(the shared store cannot be used)")
    assert "cannot be reached" not in told
    assert "Traceback" not in done.err


@pytest.mark.postgresql
def test_what_postgresql_refuses_is_told_in_its_words(postgres: Server) -> None:
    right = url_of(postgres, postgres.new_database())
    wrong_word = right.replace(quote(PASSWORD, safe=""), SECRET)
    said_first(refused("serve", wrong_word), 'password authentication failed for user "tally"')
    said_first(refused("serve", url_of(postgres, "elsewhere")), 'database "elsewhere" does not exist')
    database = postgres.new_database()
    postgres.execute(f"create user guest password '{SECRET}'")
    postgres.execute("revoke create on schema public from public", database)
    guest = f"postgresql://guest:{SECRET}@{postgres.host}:{postgres.port}/{database}"
    for name in ("serve", "store copy from"):
        said_first(refused(name, guest), "permission denied" if name == "serve" else "does not exist")
    postgres.execute("alter user guest connection limit 0")
    said_first(refused("serve", guest), 'too many connections for role "guest"')


@pytest.mark.mariadb
def test_what_mariadb_refuses_is_told_in_its_words(mariadb: Server) -> None:
    wrong_word = url_of(mariadb, mariadb.new_database()).replace(quote(PASSWORD, safe=""), SECRET)
    said_first(refused("serve", wrong_word), "1045 Access denied for user 'tally'")
    said_first(refused("serve", url_of(mariadb, "elsewhere")), "1049 Unknown database 'elsewhere'")
    database = mariadb.new_database()
    mariadb.execute(f"create user guest@'127.0.0.1' identified by '{SECRET}'")
    mariadb.execute(f"grant select on {database}.* to guest@'127.0.0.1'")
    guest = f"mysql://guest:{SECRET}@{mariadb.host}:{mariadb.port}/{database}"
    said_first(refused("serve", guest), "1142 CREATE command denied to user 'guest'")
    both = guest.replace(f"{mariadb.host}:", f"localhost:9,{mariadb.host}:")
    said_first(
        refused("serve", both.replace(database, "elsewhere")), "localhost: 111 Connection refused; 127.0.0.1: 10"
    )


def test_what_redis_refuses_is_told_in_its_words(redis: RedisServer) -> None:
    place = f"{redis.host}:{redis.port}"
    said_first(refused("serve", f"redis://user:{SECRET}@{place}/0"), "invalid username-password pair")
    said_first(refused("serve", f"redis://{place}/99"), "DB index is out of range")
    done = tallystick("serve", "--port", "0", "--store", f"redis://{place}/99")  # which asks how durable it is
    said_first(done, "a database that this Redis does not have")


def test_who_refuses_a_server_that_may_lose_something_names_the_option(redis: RedisServer) -> None:
    done = tallystick("serve", "--port", "0", "--store", redis.url)
    assert (done.code, "insist with --allow-weak-durability" in one_line(done.err)) == (2, True)


# --- sessions ----------------------------------------------------------------------------------------------------


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_servers_show_whose_sessions_they_are(postgres: Server, mariadb: Server, redis: RedisServer) -> None:
    from tallystick.store.shared.opening import server_at

    database, other = postgres.new_database(), postgres.new_database()
    urls = [
        url_of(postgres, database),
        f"{url_of(postgres, other)}?application_name=mine",
        url_of(mariadb, mariadb.new_database()),
        redis.url,
        f"{redis.url}?client_name=mine",
    ]
    with contextlib.ExitStack() as stack:
        for url in urls:
            server = server_at(url, 0)
            stack.callback(server.close)
            server.weaknesses()
        names = postgres.execute("select datname, application_name from pg_stat_activity where datname like 'service%'")
        assert {(database, "tallystick"), (other, "mine")} <= set(names)
        client = stack.enter_context(contextlib.closing(redis.connect()))
        assert {"tallystick", "mine"} <= {one["name"] for one in client.client_list()}

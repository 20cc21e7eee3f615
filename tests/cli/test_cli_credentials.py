"""Commands with a token and TLS: options, environment, and words for whoever is refused."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import command, environment, tallystick

from client_certificates import TestAuthority, serving
from eventually import eventually
from keeper import Keeper, doorkeeper
from tallystick.cli import command_line

TOKEN = f"tally_abcdefghijkl_{uuid.uuid4().hex}"


@pytest.fixture
def keeper(url: str) -> Iterator[Keeper]:
    with doorkeeper(url, TOKEN) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return str(path)


COMMANDS = [
    ("topics", "list"),
    ("groups", "list"),
    ("tx", "list"),
    ("calls", "list"),
    ("call-topics", "list"),
    ("cluster",),
    ("send", "some-topic", "hello"),
    ("tail", "some-topic", "--no-follow"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_show_the_token_of_a_file(keeper: Keeper, file: str, words: tuple[str, ...]) -> None:
    tallystick("topics", "create", "some-topic", "--token-file", file, url=keeper.url)
    done = tallystick(*words, "--token-file", file, url=keeper.url)
    assert done.code == 0, done.err
    assert {authorization for path, authorization in keeper.seen if path != "/readyz"} == {f"Bearer {TOKEN}"}


def test_the_options_may_stand_before_the_command_and_the_environment_counts_without_them(
    keeper: Keeper, file: str
) -> None:
    assert tallystick("--token-file", file, "topics", "list", url=keeper.url).code == 0
    assert tallystick("topics", "list", url=keeper.url, TALLYSTICK_TOKEN=TOKEN).code == 0
    assert tallystick("topics", "list", url=keeper.url, TALLYSTICK_TOKEN_FILE=file).code == 0
    assert tallystick("topics", "list", url=keeper.url, TALLYSTICK_TOKEN="another").code == 1
    assert tallystick("topics", "list", "--token-file", file, url=keeper.url, TALLYSTICK_TOKEN="another").code == 0


def test_several_addresses_are_asked_with_the_token(keeper: Keeper, file: str) -> None:
    done = tallystick("topics", "list", "--token-file", file, url=f"http://127.0.0.1:1,{keeper.url}")
    assert done.code == 0, done.err


def test_without_a_token_one_is_told_what_to_do(keeper: Keeper) -> None:
    done = tallystick("topics", "list", url=keeper.url)
    assert done.code == 1
    assert "--token-file" in done.err
    assert "TALLYSTICK_TOKEN" in done.err


def test_every_command_with_an_address_has_the_options_and_none_takes_a_token_itself() -> None:
    def walk(one: object) -> Iterator[object]:
        yield one
        for below in getattr(one, "commands", {}).values():
            yield from walk(below)

    met = 0
    for one in walk(command_line([])):
        names = {flag for parameter in one.params for flag in parameter.opts}  # type: ignore[attr-defined]
        assert "--token" not in names
        if "--url" in names:
            met += 1
            assert {"--token-file", "--ca-file", "--cert-file", "--key-file"} <= names
    assert met > 25


def test_a_token_is_not_among_the_arguments_that_everybody_can_read(keeper: Keeper, file: str) -> None:
    """A command that waits, as others on the machine see it."""
    tallystick("topics", "create", "waited", "--token-file", file, url=keeper.url)
    keeper.seen.clear()
    words = command("--url", keeper.url, "tail", "waited", "--follow", "--token-file", file)
    waiting = subprocess.Popen(
        words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    try:
        eventually(lambda: bool(keeper.seen))
        seen = Path(f"/proc/{waiting.pid}/cmdline").read_bytes()
        assert file.encode() in seen
        assert TOKEN.encode() not in seen
    finally:
        waiting.kill()
        waiting.wait()


def test_tls_is_spoken_with_the_named_ca(url: str, tmp_path: Path) -> None:
    ours = TestAuthority(tmp_path, "ours")
    with doorkeeper(url, tls=serving(ours.sign("broker"), client_ca=ours.file)) as keeper:
        shown = ("--ca-file", str(ours.file), "--cert-file", str(ours.sign("service")))
        assert tallystick("topics", "list", *shown, url=keeper.url).code == 0
        refused = tallystick("topics", "list", url=keeper.url)
    assert refused.code == 4
    assert "--ca-file" in refused.err


# --- doctor -----------------------------------------------------------------------------------------------------


def findings(done: object) -> dict[str, tuple[str, str, str]]:
    return {one["subject"]: (one["status"], one["text"], one["advice"]) for one in done.json()["findings"]}  # type: ignore[attr-defined]


def doctor(url: str, *words: str) -> dict[str, tuple[str, str, str]]:
    return findings(tallystick("doctor", "--no-environment", "--json", *words, url=url))


def test_the_doctor_says_that_the_broker_does_not_know_it(keeper: Keeper, file: str) -> None:
    status, _, advice = doctor(keeper.url)["identity"]
    assert status == "problem"
    assert "--token-file" in advice
    assert doctor(keeper.url, "--token-file", file)["broker"][0] == "ok"


def test_the_doctor_says_what_it_may_not_see(keeper: Keeper, file: str) -> None:
    keeper.judge = lambda path, body: 403 if path.startswith("/v1/groups") else 0
    found = doctor(keeper.url, "--token-file", file)
    assert found["consumers"][0] == "note"
    assert "admin" in found["consumers"][2]
    assert found["broker"][0] == "ok"


def test_the_doctor_tells_of_tls(url: str, tmp_path: Path) -> None:
    with doorkeeper(url, tls=serving(TestAuthority(tmp_path, "others").sign("broker"))) as keeper:
        status, _, advice = doctor(keeper.url)["TLS"]
    assert status == "problem"
    assert "--ca-file" in advice


def test_the_doctor_tells_of_a_certificate_with_which_several_things_are_wrong(url: str, tmp_path: Path) -> None:
    ours = TestAuthority(tmp_path, "ours")
    with doorkeeper(url, tls=serving(ours.sign("old", "elsewhere.example", expired=True))) as keeper:
        status, text, _ = doctor(keeper.url, "--ca-file", str(ours.file))["TLS"]
    assert status == "problem"
    assert "not for 127.0.0.1" in text

"""What `pip install tallystick` brings, what it weighs, and what is said where an extra is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tallystick
from brokers import running_broker
from environments import ROOT, SERVER_ONLY, Environment, closure, extras_of, import_seconds, of_package
from tallystick import extras

USE = "import tallystick; tallystick.Client('http://127.0.0.1:7440', group='x')"
LOADED = f"import json, sys; {USE}; print(json.dumps(sorted(sys.modules)))"
CLIENT = {"httptools", "msgspec"}
MOST_BYTES = 25_000_000
MOST_TIMES_ASYNCIO = 4
"""aiohttp alone would take nine times as long as asyncio; the client takes about twice as long, asyncio included."""
ROUNDS = 7

NO_BROKER = "the broker is not installed: pip install 'tallystick[server]'"
NO_COMMANDS = "the command line is not installed: pip install 'tallystick[cli]'"
NO_SPARK = "Spark is not installed: pip install 'tallystick[spark]'"


def test_the_client_requires_two_packages_and_nothing_of_the_broker(installed: Path) -> None:
    assert closure(of_package(installed)) == CLIENT
    assert closure(of_package(installed, ["server"])) >= SERVER_ONLY - {"aiohttp", "yarl"}


def test_every_other_extra_leaves_the_broker_out(installed: Path) -> None:
    drivers = extras_of(installed) - {"all", "cli", "server", "spark", "testing"}
    assert {"postgresql", "mysql", "sqlalchemy", "redis", "mongodb", "arrow"} <= drivers
    assert not closure(of_package(installed, drivers)) & SERVER_ONLY
    assert not closure(of_package(installed, ["spark"])) & (SERVER_ONLY - {"rich", "typer"})


def test_all_is_every_extra_that_needs_no_compiler(installed: Path) -> None:
    everything = {(one.name, one.specifier) for one in of_package(installed, ["all"])}
    for extra in extras_of(installed) - {"mysqlclient"}:
        assert {(one.name, one.specifier) for one in of_package(installed, [extra])} <= everything, extra


def test_the_page_says_what_every_extra_is_for(installed: Path) -> None:
    page = (ROOT / "docs/how-to/install.md").read_text()
    named = {extra for extra in extras_of(installed) if f"`{extra}`" in page or f"tallystick[{extra}]" in page}
    assert extras_of(installed) - named == set()


def test_the_words_for_an_extra_know_what_it_brings(installed: Path) -> None:
    """`extras.py` cannot read the package's own description: it may be asked where there is none."""
    modules = {"grpcio": "grpc", "grpcio_reflection": "grpc_reflection", "pyjwt": "jwt"}
    for extra, (_, known) in extras.EXTRAS.items():
        alone = {one.name for one in of_package(installed, [extra])} - {one.name for one in of_package(installed)}
        named = {modules.get(name.replace("-", "_"), name.replace("-", "_")) for name in alone}
        # typer and rich come along, and are told of by themselves; protobuf is grpc's own.
        brought = {"rich", "typer", "protobuf"} if extra != "cli" else set()
        assert set(known) == named - brought


def test_a_client_loads_nothing_that_it_does_not_need() -> None:
    """Here, where everything is installed: it is not for want of packages that they are not imported."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)
    loaded = json.loads(done.stdout)
    ours = {"tallystick", *CLIENT}
    # msgspec looks for typing_extensions, Cython's modules (httptools) name themselves.
    theirs = {"typing_extensions", "cython_runtime", "__main__", "__mp_main__"}
    tops = {name.partition(".")[0] for name in loaded}
    at_start = _at_start()
    others = {
        name for name in tops - at_start - sys.stdlib_module_names - ours - theirs if not name.startswith("_cython")
    }
    assert others == set()
    assert not {"email", "http.client", "importlib.resources", "multiprocessing.pool", "tempfile"} & set(loaded)
    assert [
        name for name in loaded if name.startswith(("tallystick.api", "tallystick.broker", "tallystick.store"))
    ] == []


def _at_start() -> set[str]:
    """What an interpreter of this environment loads before anything was asked of it (files with .pth)."""
    code = "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_a_client_weighs_less_than_25_mb(client_only: Environment, record_property: pytest.RecordProperty) -> None:
    record_property("bytes", client_only.size())
    print(f"installed: {client_only.size() / 1e6:.1f} MB")
    assert client_only.names == CLIENT
    assert client_only.size() < MOST_BYTES


@pytest.mark.full
def test_a_client_is_imported_in_a_few_times_what_asyncio_takes(
    client_only: Environment, record_property: pytest.RecordProperty
) -> None:
    """How long that is depends on the machine and on who else uses it: `python -m benchmarks light` measures it. Here
    both are measured by turns, and the best turns are compared."""
    turns = [
        (import_seconds(client_only.python, "import asyncio"), import_seconds(client_only.python, USE))
        for _ in range(ROUNDS)
    ]
    asyncio, client = (min(times) for times in zip(*turns, strict=True))
    record_property("milliseconds", round(client * 1000, 1))
    print(f"asyncio: {asyncio * 1000:.0f} ms; the client: {client * 1000:.0f} ms")
    assert client < MOST_TIMES_ASYNCIO * asyncio


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve"], NO_BROKER),
        (["--url", "http://127.0.0.1:1", "serve", "--port", "7"], NO_BROKER),
        (["demo"], NO_BROKER),
        (["bench"], NO_BROKER),
        (["spark", "reconcile"], NO_SPARK),
        (["topics"], NO_COMMANDS),
        (["--help"], NO_COMMANDS),
        ([], NO_COMMANDS),
    ],
)
def test_a_command_says_what_to_install(client_only: Environment, words: list[str], said: str) -> None:
    done = client_only.run("tallystick", *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"tallystick: {said}\n")
    assert client_only.run("python", "-m", "tallystick", *words).stderr == done.stderr


def test_the_version_is_told_without_any_extra(client_only: Environment) -> None:
    told = client_only.run("python", "-c", "import tallystick; print(tallystick.__version__)").stdout
    assert told.count(".") == 2
    assert client_only.run("tallystick", "--version").stdout == told


@pytest.mark.parametrize("module", ["tallystick.api.server", "tallystick.store.rocksdb"])
def test_an_import_of_the_broker_says_what_to_install(client_only: Environment, module: str) -> None:
    done = client_only.run("python", "-c", f"import {module}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"tallystick.extras.ExtraMissing: {NO_BROKER}"


@pytest.mark.full
def test_the_command_line_alone_does_what_needs_only_a_connection(installed: Path, tmp_path: Path) -> None:
    environment, topic = Environment(tmp_path / "environment", installed, ["cli"]), "orders"
    assert not environment.names & (SERVER_ONLY - {"rich", "typer"})
    with running_broker() as broker:
        url = ("--url", broker.url)
        for words in (
            ["send", topic, '{"n": 1}'],
            ["topics", "show", topic],
            ["tail", topic, "--from", "earliest", "--no-follow"],
            ["tx", "list"],
            ["calls", "list"],
            ["groups", "list"],
            ["doctor", "--no-environment"],
        ):
            done = environment.run("tallystick", *url, *words)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
        with tallystick.Client(broker.url) as ts:
            assert ts.topic(topic).name == topic
    for words, code, said in (
        (["serve"], 2, NO_BROKER),
        (["demo"], 2, NO_BROKER),
        (["bench"], 1, "the benchmarks are not part of the installed package"),
        (["spark", "reconcile", "--help"], 0, ""),
        (["spark", "report"], 2, "pip install 'tallystick[spark]'"),
    ):
        done = environment.run("tallystick", *words)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert said in done.stderr
    said = environment.run("tallystick", "doctor", "--no-broker").stdout
    assert "pip install 'tallystick[server]'" in said

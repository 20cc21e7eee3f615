"""Runs dtm's own Go tests of messages, topics and its HTTP interface against this checkout's broker.

    scripts/test-clients [-run PATTERN]

dtm's module is downloaded by Go, checked against a fixed hash and copied to a temporary directory. There its test
server and its timer are replaced by `tests/clients/go/`, which also holds tests of ours. `dtm_tests.toml` names every
test that does not apply; all others must pass. dtm's tests use the fixed ports in `PORTS`, which must be free.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from brokers import running_broker
from servers import mariadb_server, redis_server

HERE = Path(__file__).parent
MODULE = "github.com/dtm-labs/dtm@v1.19.0"
MODULE_HASH = "h1:TKRf21MkelOR6PPGLT9QzNs0ZJF/RLz+zZPkeOwzPPU="
HTTP_PORT, GRPC_PORT = 36789, 36790  # dtm's
PORTS = (HTTP_PORT, GRPC_PORT, 8081, 58081)  # and those of its test service
LIMIT_SECONDS = 900
BROKER = {
    "port": HTTP_PORT,
    "grpc": True,
    "grpc_port": GRPC_PORT,
    "alert_url": "http://localhost:8081/api/busi/AlertWebHook",
    # `dtm` is the host of the subscribers in dtm's tests of topics; it is never called.
    "allowed_urls": ["http://localhost:*", "grpc://localhost:*", "http://dtm:*"],
    "call_probe": "200ms",
    "log_level": "warning",
}
# What `tests/clients/go` replaces, and imports that are then used no more.
REPLACED = {
    "main_test.go": None,
    "types.go": (("waitTransProcessed", "cronTransOnce"), ("logger.Debugf",)),
    "dtmsvr_test.go": (
        ("getTransStatus", "getBranchesStatus", "TestUpdateBranchAsync"),
        ("time.Second", "config.Redis", "workflow.Register", "assert.Nil", "dtmimp.E2P", "busi.Busi"),
    ),
}
_TEST = re.compile(r"^func (Test\w+)\(t \*testing\.T\)", re.MULTILINE)


class NotRunnable(Exception):
    """The tests could not be run; the text says why."""


class Expectations:
    """Which tests of dtm's apply, from `dtm_tests.toml`."""

    def __init__(self) -> None:
        listed = tomllib.loads((HERE / "dtm_tests.toml").read_text())
        self._files: dict[str, str] = listed["files"]
        self.left_out: dict[str, str] = listed["tests"]

    def reason(self, file: str) -> str | None:
        return next((why for pattern, why in self._files.items() if fnmatch.fnmatch(file, pattern)), None)


def downloaded() -> Path:
    """The directory of dtm's module, as Go keeps it."""
    command = ["go", "mod", "download", "-json", MODULE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tempfile.gettempdir(), timeout=LIMIT_SECONDS)
    found = json.loads(done.stdout or "{}")
    if done.returncode or found.get("Error"):
        raise NotRunnable(f"Go could not download {MODULE}: {found.get('Error') or done.stderr.strip()}")
    if found["Sum"] != MODULE_HASH:
        raise NotRunnable(f"{MODULE}: the hash is {found['Sum']}, expected {MODULE_HASH}. Do not use this download.")
    return Path(found["Dir"])


def copied(module: Path, place: Path, redis_port: int, expected: Expectations) -> tuple[list[str], dict[str, str]]:
    """Copy the module and replace dtm's server; returns the tests that must pass, and the reasons for the others."""
    shutil.copytree(module, place, copy_function=shutil.copyfile)
    for path in [place, *place.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    tests = place / "test"
    wanted: list[str] = []
    left_out = dict(expected.left_out)
    for path in sorted(tests.glob("*_test.go")):
        found = _TEST.findall(path.read_text())
        why = expected.reason(path.name)
        if why is not None:
            left_out |= dict.fromkeys(found, why)
            path.unlink()
        else:
            wanted += [name for name in found if name not in left_out]
    for name, parts in REPLACED.items():
        _replace(tests / name, parts)
    utilities = tests / "busi" / "utils.go"
    utilities.write_text(utilities.read_text().replace("%s:6379", f"%s:{redis_port}"))
    for path in (HERE / "go").glob("*.go"):
        wanted += _TEST.findall(path.read_text())
        shutil.copyfile(path, tests / path.name)
    return wanted, left_out


def _replace(path: Path, parts: tuple[tuple[str, ...], tuple[str, ...]] | None) -> None:
    if parts is None:
        path.unlink()
        return
    functions, imported = parts
    text = path.read_text()
    for name in functions:
        text, count = re.subn(rf"^func {name}\(.*?^}}\n", "", text, flags=re.MULTILINE | re.DOTALL)
        if count != 1:
            raise NotRunnable(f"{path.name}: expected one function {name} (got {count})")
    path.write_text(text + "".join(f"\nvar _ = {one}\n" for one in imported))


def run(
    place: Path, environment: dict[str, str], left_out: dict[str, str], arguments: list[str]
) -> tuple[dict[str, str], str]:
    """The result of each test (pass, fail or skip), and the whole output."""
    # Without inlining: dtm's tests replace methods while they run.
    command = ["go", "test", "-json", "-count=1", "-vet=off", "-gcflags=-l", f"-timeout={LIMIT_SECONDS}s", "./test"]
    command.append(f"-skip=^({'|'.join(left_out)})$")
    done = subprocess.run(
        [*command, *arguments],
        cwd=place,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS + 300,
    )
    results: dict[str, str] = {}
    output: list[str] = []
    for line in done.stdout.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            output.append(line + "\n")
            continue
        output.append(event.get("Output", ""))
        if event.get("Test") and event["Action"] in ("pass", "fail", "skip"):
            results[event["Test"]] = event["Action"]
    return results, "".join(output)


def report(wanted: list[str], left_out: dict[str, str], results: dict[str, str], chosen: bool) -> bool:
    """Print a line for each test; returns whether all that apply have passed."""
    good = True
    for name in wanted:
        result = results.get(name, "not run")
        good &= result == "pass" or (chosen and result == "not run")
        print(f"  {result:8} {name}")
    passed = sum(results.get(name) == "pass" for name in wanted)
    print(f"{passed} of {len(wanted)} tests passed; {len(left_out)} do not apply:")
    for why in dict.fromkeys(left_out.values()):
        names = [name for name, reason in left_out.items() if reason == why]
        print(f"  {names[0] if len(names) == 1 else f'{len(names)} tests'}: {why}")
    return good and bool(passed)


def check_ports(ports: Sequence[int] = PORTS) -> None:
    """Refuse to begin if a port is taken, also by an outgoing connection, to which no probe could connect."""
    taken = [port for port in ports if not _free(port)]
    if taken:
        shown = ", ".join(map(str, taken))
        needed = ", ".join(map(str, ports))
        raise NotRunnable(f"ports: in use (got {shown}). dtm's tests need {needed}; stop the programs that use them.")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed connection is no user
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def main(arguments: list[str]) -> int:
    check_ports()
    module = downloaded()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tallystick-dtm-")))
        bank = stack.enter_context(mariadb_server())
        redis = stack.enter_context(redis_server())
        wanted, left_out = copied(module, scratch / "dtm", redis.port, Expectations())
        broker = stack.enter_context(running_broker(**BROKER))
        environment = {"BANK_PORT": str(bank.port), "BANK_USER": bank.user, "BANK_PASSWORD": bank.password}
        results, output = run(scratch / "dtm", environment, left_out, arguments)
        good = report(wanted, left_out, results, chosen=bool(arguments))
        if not good:
            log = Path(tempfile.mkdtemp(prefix="tallystick-dtm-failed-"))
            (log / "output.txt").write_text(output)
            for path in broker.directory.glob("*.log"):
                shutil.copy(path, log)
            print(f"The output of the tests and the broker's log are in {log}.")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except NotRunnable as error:
        sys.exit(f"test-clients: {error}")

"""`make test-clients` without Go, and what it does with dtm's files. The Go tests themselves need a network."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from go_suite import REPLACED, Expectations, NotRunnable, check_ports, copied, report

SCRIPT = Path(__file__).parents[2] / "scripts" / "test-clients"


def test_without_go_it_says_so_in_one_line(tmp_path: Path) -> None:
    for name in ("bash", "env", "dirname"):
        program = shutil.which(name)
        assert program is not None
        (tmp_path / name).symlink_to(program)
    done = subprocess.run([SCRIPT], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert "Go was not found" in done.stdout


def test_a_port_that_is_taken_is_named_before_anything_begins() -> None:
    """Also one that belongs to an outgoing connection, where nothing listens."""
    with socket.socket() as listening, socket.socket() as outgoing:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        outgoing.connect(listening.getsockname())
        ports = (listening.getsockname()[1], outgoing.getsockname()[1])
        for port in ports:
            with pytest.raises(NotRunnable, match=rf"ports: in use \(got {port}\)"):
                check_ports((port,))
        with pytest.raises(NotRunnable, match=rf"ports: in use \(got {ports[0]}, {ports[1]}\)"):
            check_ports(ports)


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A module with the parts of dtm's that are replaced, read-only as Go's cache is."""
    tests = tmp_path / "module" / "test"
    (tests / "busi").mkdir(parents=True)
    (tests / "busi" / "utils.go").write_text('Addr: fmt.Sprintf("%s:6379", StoreHost)\n')
    for name, parts in REPLACED.items():
        functions = parts[0] if parts else ("TestMain",)
        (tests / name).write_text(
            "".join(f"func {one}() {{\n\tx()\n}}\n\n" for one in functions) + "func kept() {\n}\n"
        )
    for name, test in (("msg_test.go", "TestMsgNormal"), ("saga_test.go", "TestSaga"), ("api_test.go", "TestAPIQuery")):
        (tests / name).write_text(f"func {test}(t *testing.T) {{\n}}\n")
    return tmp_path / "module"


def test_the_server_is_replaced_and_every_test_is_accounted_for(module: Path, tmp_path: Path) -> None:
    wanted, left_out = copied(module, tmp_path / "copy", 7777, Expectations())
    tests = tmp_path / "copy" / "test"
    assert wanted == ["TestAPIQuery", "TestMsgNormal", "TestKilledProducer"]
    assert left_out["TestSaga"] == "sagas"
    assert "7777" in (tests / "busi" / "utils.go").read_text()
    assert {path.name for path in tests.glob("*.go")} == {
        *("types.go", "dtmsvr_test.go", "msg_test.go", "api_test.go", "glue_test.go", "killed_test.go")
    }
    assert "waitTransProcessed" not in (tests / "types.go").read_text()
    assert "func kept" in (tests / "types.go").read_text()


def test_another_version_of_dtm_is_noticed(module: Path, tmp_path: Path) -> None:
    (module / "test" / "types.go").write_text("package test\n")
    with pytest.raises(NotRunnable, match=r"types\.go: expected one function waitTransProcessed \(got 0\)"):
        copied(module, tmp_path / "copy", 7777, Expectations())


def test_a_test_that_fails_or_did_not_run_fails_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["A", "B"], {"C": "why"}, {"A": "pass", "B": "pass"}, chosen=False)
    assert not report(["A", "B"], {}, {"A": "pass", "B": "fail"}, chosen=False)
    assert not report(["A", "B"], {}, {"A": "pass", "B": "skip"}, chosen=False)
    assert not report(["A", "B"], {}, {"A": "pass"}, chosen=False)
    assert report(["A", "B"], {}, {"A": "pass"}, chosen=True)
    assert not report(["A", "B"], {}, {}, chosen=True)
    assert "C: why" in capsys.readouterr().out

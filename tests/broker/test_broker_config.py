"""Configuration: where a setting comes from, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.broker.config import Config, is_duration, load_config
from tallystick.core.durations import milliseconds
from tallystick.core.errors import ConfigError

DAY = 86_400_000


def refusal(path: Path | None = None, flags: dict[str, Any] | None = None, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        load_config(path, flags, environ)
    assert "\n" not in refused.value.detail
    return refused.value


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "broker.toml"


# --- where a setting comes from ------------------------------------------------------------------------------------


def test_without_anything_the_defaults_hold() -> None:
    assert load_config(environ={}) == Config()
    assert (Config().host, Config().port, Config().store) == ("127.0.0.1", 7440, "rocksdb")


def test_a_file_sets_values_of_every_kind(file: Path) -> None:
    file.write_text(
        """
        data_dir = "/var/lib/tallystick"
        port = 7000
        auto_create_topics = false
        check_after = "5s"
        retention = 90
        on_exhausted = "rollback"
        allowed_urls = ["http://*.internal:80", "http://localhost:*"]

        [databases]
        bank = "postgresql://u:p,=@h/bank"
        shop = "sqlite:///shop.db"
        """
    )
    config = load_config(file, environ={})
    assert (config.data_dir, config.port, config.auto_create_topics) == ("/var/lib/tallystick", 7000, False)
    assert (config.check_after, config.retention, config.on_exhausted) == (5_000, 90_000, "rollback")
    assert config.allowed_urls == ["http://*.internal:80", "http://localhost:*"]
    assert config.databases == {"bank": "postgresql://u:p,=@h/bank", "shop": "sqlite:///shop.db"}


def test_variables_set_values_of_every_kind() -> None:
    config = load_config(
        environ={
            "TALLYSTICK_PORT": "7001",
            "TALLYSTICK_AUTO_CREATE_TOPICS": "false",
            "TALLYSTICK_CHECK_TIMEOUT": "250ms",
            "TALLYSTICK_ALLOWED_URLS": " http://a:1 , http://b:2,",
            "TALLYSTICK_DATABASES": "bank=postgresql://u:p@h/d?a=b, shop=sqlite:///s.db",
        }
    )
    assert (config.port, config.auto_create_topics, config.check_timeout) == (7001, False, 250)
    assert config.allowed_urls == ["http://a:1", "http://b:2"]
    assert config.databases == {"bank": "postgresql://u:p@h/d?a=b", "shop": "sqlite:///s.db"}


def test_flags_come_as_text_or_as_what_they_are() -> None:
    assert load_config(flags={"port": "7002", "check_after": "1m"}, environ={}).check_after == 60_000
    assert load_config(flags={"port": 7002, "check_after": 1.5}, environ={}).check_after == 1_500


def test_a_flag_that_was_not_given_sets_nothing() -> None:
    assert load_config(flags={"port": None}, environ={"TALLYSTICK_PORT": "7003"}).port == 7003


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("flag", "environment", "file"), 1),
        (("environment", "file"), 2),
        (("flag", "file"), 1),
        (("file",), 3),
        ((), 7440),
    ],
)
def test_a_flag_wins_over_a_variable_and_that_over_the_file(file: Path, given: tuple[str, ...], expected: int) -> None:
    file.write_text("port = 3\nmax_checks = 33")
    config = load_config(
        file if "file" in given else None,
        {"port": 1} if "flag" in given else None,
        {"TALLYSTICK_PORT": "2"} if "environment" in given else {},
    )
    assert config.port == expected
    # What only the file says holds beside it.
    assert config.max_checks == (33 if "file" in given else 15)


def test_a_stronger_source_does_not_hide_that_a_weaker_one_is_misspelt(file: Path) -> None:
    file.write_text("prot = 3")
    assert refusal(file, {"port": 1}).field == "prot"


def test_variables_of_others_are_left_alone() -> None:
    environ = {
        "TALLYSTICK_URL": "http://x",
        "TALLYSTICK_": "",
        "PORT": "1",
        "tallystick_port": "2",
        "XTALLYSTICK_PORT": "3",
    }
    assert load_config(environ=environ) == Config()


def test_the_environment_is_that_of_the_process_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_PORT", "7004")
    assert load_config().port == 7004


def test_every_setting_can_come_from_each_source(file: Path) -> None:
    for field in msgspec.structs.fields(Config):
        value = getattr(Config(), field.name)
        in_time = is_duration(field.name)
        text = f"{value}ms" if in_time else str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, list | dict):
            text = ",".join(value)
        assert load_config(flags={field.name: text}, environ={}) == Config()
        assert load_config(environ={f"TALLYSTICK_{field.name.upper()}": text}) == Config()
        in_file = f"{value}ms" if in_time else value
        file.write_text(
            f"{field.name} = {msgspec.json.encode(in_file).decode()}" if not isinstance(value, dict) else ""
        )
        assert load_config(file, environ={}) == Config()


# --- what is wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("port", "many", "'many'"),
        ("port", "-1", ">= 0"),
        ("port", "65536", "<= 65535"),
        ("port", "", "''"),
        ("max_message_bytes", "0", ">= 1"),
        ("default_queues", "4097", "<= 4096"),
        ("auto_create_topics", "perhaps", "bool"),
        ("store", "paper", "is none of rocksdb, memory"),
        ("on_exhausted", "commit", "is none of park, rollback"),
        ("log_level", "loud", "is none of debug, info, warning, error"),
        ("check_after", "soon", "250ms"),
        ("check_after", "-5s", "250ms"),
        ("retention", "40000d", "longer than 36500d"),
        ("databases", "bank", "name=value"),
        ("databases", "=x", "name=value"),
    ],
)
def test_a_wrong_value_is_told_with_its_name_and_where_it_came_from(
    name: str, value: str, says: str, file: Path
) -> None:
    file.write_text(f"{name} = {msgspec.json.encode(value).decode()}")
    for error, origin in (
        (refusal(flags={name: value}), "flag"),
        (refusal(**{f"TALLYSTICK_{name.upper()}": value}), "environment"),
        (refusal(file), f"file {file}"),
    ):
        assert error.field == name
        assert error.detail.startswith(f"{name} ({origin}): ")
        assert says in error.detail


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("port = true", "port"),
        ("data_dir = 7", "data_dir"),
        ("allowed_urls = [1]", "allowed_urls"),
        ("databases = [1]", "databases"),
        ("[databases]\nbank = 7", "databases"),
        ("check_after = 2024-01-01", "check_after"),
        ("check_after = true", "check_after"),
        ("check_after = [1]", "check_after"),
        ("check_after = inf", "check_after"),
        ("check_after = nan", "check_after"),
        ("check_after = -1", "check_after"),
    ],
)
def test_a_value_of_the_wrong_kind_in_a_file(file: Path, text: str, name: str) -> None:
    file.write_text(text)
    assert refusal(file).field == name


@pytest.mark.parametrize("text", ['databases = "postgresql://u:secret@h/d"', 'databases = {a = "secret", b = 7}'])
def test_a_refusal_does_not_show_the_passwords_of_databases(file: Path, text: str) -> None:
    file.write_text(text)
    error = refusal(file)
    assert error.field == "databases"
    assert "secret" not in error.detail


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("prot", "; did you mean port?"),
        ("check_intervall", "; did you mean check_interval?"),
        ("max-checks", "; did you mean max_checks?"),
        ("zzz", ""),
    ],
)
def test_an_unknown_setting_is_refused_with_a_hint(file: Path, wrong: str, hint: str) -> None:
    file.write_text(f"{wrong} = 1")
    for error, origin in ((refusal(file), f"file {file}"), (refusal(flags={wrong: "1"}), "flag")):
        assert error.field == wrong
        assert error.detail == f"{wrong} ({origin}): there is no such setting{hint}"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, file: Path) -> None:
    missing = refusal(tmp_path / "missing.toml")
    assert (missing.field, str(tmp_path / "missing.toml") in missing.detail) == ("config", True)
    assert "No such file" in missing.detail
    assert "directory" in refusal(tmp_path).detail
    file.write_text("port = \n")
    assert str(file) in refusal(file).detail
    file.write_bytes(b'data_dir = "\xff"')
    assert str(file) in refusal(file).detail


def test_a_file_is_utf_8_whatever_the_locale_says(file: Path) -> None:
    file.write_bytes('data_dir = "/srv/d\u00e9p\u00f4t"'.encode())
    assert load_config(file, environ={}).data_dir == "/srv/d\u00e9p\u00f4t"


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"max_message_bytes": 2_000, "max_request_bytes": 1_000}, "max_message_bytes"),
        ({"check_interval": "10s", "check_interval_cap": "5s"}, "check_interval"),
        ({"check_timeout": "0s"}, "check_timeout"),
        ({"dedup_retention": "1h"}, "dedup_retention"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags: dict[str, Any], field: str) -> None:
    assert refusal(flags=flags).field == field


def test_what_the_store_is_told_is_what_was_configured() -> None:
    config = load_config(
        flags={
            "check_after": "1s",
            "max_checks": 7,
            "check_interval": "3s",
            "check_interval_cap": "4s",
            "part_ttl": "5s",
        },
        environ={},
    )
    settings = config.store_settings()
    assert (settings.checks.after_ms, settings.checks.max_checks) == (1_000, 7)
    assert (settings.checks.backoff.first_ms, settings.checks.backoff.cap_ms) == (3_000, 4_000)
    assert settings.part_ttl_ms == 5_000
    assert settings.limits == config.limits()


# --- durations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("250ms", 250),
        ("10s", 10_000),
        ("5m", 300_000),
        ("12h", 43_200_000),
        ("7d", 7 * DAY),
        ("1.5s", 1_500),
        ("1.001s", 1_001),
        ("2.3h", 8_280_000),
        ("0.4ms", 0),
        ("0", 0),
        ("90", 90_000),
        (90, 90_000),
        (0.25, 250),
        (" 10 s ", 10_000),
        ("36500d", 36_500 * DAY),
    ],
)
def test_durations_as_people_write_them(text: str | float, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "ms",
        "1 0s",
        "1s1s",
        "1m30s",
        "10S",
        "10 sec",
        "1e3",
        "+5s",
        "-5s",
        ".5s",
        "5.s",
        "inf",
        "nan",
        "0x10",
        "1_000",
        "1,5s",
        "10s\n\nx",
        "\u0663s",
        "9" * 400 + "d",
        "1" * 5_000,
        "36501d",
        "True",
        True,
        None,
        float("inf"),
        -1,
    ],
)
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|is longer than"):
        milliseconds(text)


@given(
    st.integers(0, 36_500 * DAY // 86_400_000), st.sampled_from([("ms", 1), ("s", 1_000), ("m", 60_000), ("d", DAY)])
)
def test_every_whole_number_of_a_unit_is_exact(number: int, unit: tuple[str, int]) -> None:
    assert milliseconds(f"{number}{unit[0]}") == number * unit[1]

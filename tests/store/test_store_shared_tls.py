"""Stores on servers that are reached over TLS: none that is not who it should be, and none without TLS."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from certificates import Authority
from servers import DATABASE, mariadb_server, redis_server
from shared_stores import url_of
from tallystick.core.errors import ConfigError, StorageFailed
from tallystick.local import free_port
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared.opening import open_shared, server_at
from tallystick.store.shared.redis_link import RedisLink

HOST = "127.0.0.1"
MYSQL_FILES = ("ssl_ca", "ssl_cert", "ssl_key")
REDIS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@pytest.fixture(scope="module")
def authority() -> Iterator[Authority]:
    """With files that the users of the servers can read."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Authority(Path(directory))


def issue(authority: Authority, name: str, *hosts: str) -> tuple[Path, Path]:
    made = authority.issue(name, *hosts)
    made[1].chmod(0o644)  # it is nobody's secret here
    return made


@pytest.fixture(scope="module")
def mysql(authority: Authority) -> Iterator[str]:
    certificate, key = issue(authority, "mariadb", HOST)
    files = {"ssl_ca": str(authority.path), "ssl_cert": str(certificate), "ssl_key": str(key)}
    with mariadb_server(require_secure_transport="ON", innodb_flush_method="nosync", **files) as server:
        yield url_of(server, DATABASE)


@pytest.fixture(scope="module")
def rediss(authority: Authority) -> Iterator[str]:
    """A Redis that wants a certificate of its clients, as it does unless it is told otherwise."""
    certificate, key = issue(authority, "redis", HOST)
    port = str(free_port())
    files = {"tls_ca_cert_file": str(authority.path), "tls_cert_file": str(certificate), "tls_key_file": str(key)}
    with redis_server(tls_port=port, **files):
        yield f"rediss://{HOST}:{port}/0"


def trusted(url: str, ca: Path, certificate: tuple[Path, Path] | None = None) -> str:
    """The address with the files that its driver wants."""
    names = REDIS_FILES if url.startswith("redis") else MYSQL_FILES
    return f"{url}?{urlencode(dict(zip(names, (ca, *(certificate or ())), strict=False)))}"


def use(url: str) -> None:
    """What an owner does, and what another one finds after that."""
    for epoch in (1, 2):
        with contextlib.closing(open_shared(url, 1, StoreSettings(), allow_weak_durability=True)) as store:
            assert store.epoch == epoch


def refusal(url: str) -> str:
    with pytest.raises(StorageFailed) as refused:
        open_shared(url, 2, StoreSettings(), allow_weak_durability=True)
    return str(refused.value)


@pytest.mark.full
@pytest.mark.mariadb
class TestMysql:
    def test_it_is_used_over_tls(self, mysql: str, authority: Authority) -> None:
        use(trusted(mysql, authority.path))

    def test_another_ca_is_refused(self, mysql: str, tmp_path: Path) -> None:
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(trusted(mysql, Authority(tmp_path).path))

    def test_another_name_is_refused_unless_the_operator_says_otherwise(self, mysql: str, authority: Authority) -> None:
        elsewhere = trusted(mysql.replace(HOST, "localhost"), authority.path)
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(elsewhere)
        with contextlib.closing(server_at(f"{elsewhere}&ssl_verify_identity=false", 1)) as server:
            server.fence()

    def test_a_server_without_tls_is_refused(self, authority: Authority) -> None:
        with mariadb_server(skip_ssl="1") as server:
            assert "SSL" in refusal(trusted(url_of(server, DATABASE), authority.path))


@pytest.mark.full
class TestRedis:
    def test_it_is_used_over_tls_with_a_certificate(self, rediss: str, authority: Authority) -> None:
        use(trusted(rediss, authority.path, issue(authority, "broker")))

    def test_without_a_certificate_it_is_refused(self, rediss: str, authority: Authority) -> None:
        assert refusal(trusted(rediss, authority.path))

    def test_another_ca_is_refused(self, rediss: str, authority: Authority, tmp_path: Path) -> None:
        told = refusal(trusted(rediss, Authority(tmp_path).path, issue(authority, "broker")))
        assert "CERTIFICATE_VERIFY_FAILED" in told

    def test_another_name_is_refused(self, rediss: str, authority: Authority) -> None:
        elsewhere = rediss.replace(HOST, "localhost")
        told = refusal(trusted(elsewhere, authority.path, issue(authority, "broker")))
        assert "CERTIFICATE_VERIFY_FAILED" in told

    def test_a_server_without_tls_is_refused(self, authority: Authority) -> None:
        with redis_server() as server:
            # It waits for more of what it takes for a command.
            assert "Timeout" in refusal(trusted(f"rediss://{HOST}:{server.port}/0", authority.path))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("ssl_mode=REQUIRED", "no option 'ssl_mode'.* ssl_ca"),
        ("ssl=true", "no option 'ssl'.* ssl_ca"),
        ("SSL_CA=/etc/ca.pem", "no option 'SSL_CA'.* ssl_ca"),
        ("tls=true", "no option 'tls'"),
        ("useSSL=true", "no option 'useSSL'"),
        ("unix_socket=/run/my.sock&sslca=a", "no option 'sslca'"),
        ("ssl_verify_identity=true", "TLS needs ssl_ca"),
        ("ssl_ca=", "TLS needs ssl_ca"),
        ("ssl_cert=a&ssl_key=b", "TLS needs ssl_ca"),
        ("ssl_ca=a&ssl_verify_identity=maybe", "is true or false"),
    ],
)
def test_an_option_of_tls_that_would_do_nothing_is_refused(options: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        server_at(f"mysql://user:hush@{HOST}/db?{options}", 1)
    assert "hush" not in str(refused.value)


def test_a_part_of_a_password_is_not_taken_for_an_option_and_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        server_at("mysql://user:hu?sh=secret@127.0.0.1/db", 1)
    assert not {"hu", "sh", "secret"} & set(re.findall(r"[a-z]+", str(refused.value)))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("rediss://one:1/0", True),
        ("rediss://one:1/0?ssl_ca_certs=a&ssl_cert_reqs=required", True),
        ("rediss://one:1/0?ssl_check_hostname=false", False),
        ("rediss://one:1/0?ssl_cert_reqs=none", None),
        ("redis://one:1/0", None),
    ],
)
def test_the_name_in_a_certificate_is_checked_whatever_the_driver_of_redis_would_do(
    url: str, told: bool | None
) -> None:
    (home,) = RedisLink(url)._homes
    assert home.connection_pool.connection_kwargs.get("ssl_check_hostname") is told

"""Addresses of shared engines: what can be read in one way only, and nothing of a password in what is said."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tallystick.core.store_urls import store_url

SECRET = "hush"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host/db",
        "postgresql:///db?host=/run/postgresql&user=a@b",
        "postgresql://user:word@[::1]:5432,db2:5432/db?options=-csearch_path%3Dshop",
        "postgresql://user:wo:rd@host:5432/db",
        "mysql://user:word@db1:3306,db2/db",
        "redis://:word@node1:6379,node2/0?wait_replicas=1",
        "redis://host",
    ],
)
def test_an_address_that_is_right_stays_as_it_is(url: str) -> None:
    assert store_url(url) == url


@pytest.mark.parametrize("sign", list("%@/?#[]:&=+ ;,$!"))
@pytest.mark.parametrize("engine", ["postgresql", "mysql", "redis"])
def test_every_sign_is_fine_in_a_password_that_is_percent_encoded(engine: str, sign: str) -> None:
    url = f"{engine}://user:{quote(f'a{sign}b', safe='')}@host:1/db"
    assert store_url(url) == url


@pytest.mark.parametrize("password", [f"{SECRET}{sign}{SECRET}" for sign in ["%", "@", "/", "?", "#", "[", "@/", "/@"]])
@pytest.mark.parametrize("engine", ["postgresql", "mysql", "redis"])
def test_a_password_that_is_not_percent_encoded_is_told_without_it(engine: str, password: str) -> None:
    with pytest.raises(ValueError, match="%25 %40 %2F") as told:
        store_url(f"{engine}://user:{password}@host:1/db")
    assert SECRET not in str(told.value)


@pytest.mark.parametrize("rest", ["host:port/db", "host:70000/db", "host:/%zz", "[::1/db", "::1/db", "h]/db", "h/db?x"])
def test_what_is_no_address_is_told(rest: str) -> None:
    with pytest.raises(ValueError, match="not a valid address"):
        store_url(f"mysql://{rest}")


def test_engines_have_one_name() -> None:
    assert store_url("postgres://user@host/db") == "postgresql://user@host/db"
    assert store_url("mariadb://user@host/db") == "mysql://user@host/db"


def test_another_engine_is_told_without_its_address() -> None:
    with pytest.raises(ValueError, match="none of postgresql://") as told:
        store_url(f"oracle://user:{SECRET}@host/db")
    assert SECRET not in str(told.value)

"""Reading the URLs of stores."""

from __future__ import annotations

import traceback
from datetime import timedelta

import pytest

import holdfast
from holdfast.backends.urls import parse_bool, parse_choice, parse_duration, parse_int, redacted_url, split_options
from holdfast.errors import ConfigError

URL = "redis://user:pass@host/0?timeout=5&ssl=true&password=secret"


def test_own_options_are_taken_out_and_the_rest_stays_for_the_driver() -> None:
    url, options = split_options(URL, {"timeout": 0, "prefix": ""}, {"prefix": "p"})
    assert url == "redis://user:pass@host/0?ssl=true&password=secret"
    assert options == {"timeout": "5", "prefix": "p"}


def test_what_is_given_counts_for_more_than_the_query() -> None:
    assert split_options(URL, {"timeout": 0}, {"timeout": 7})[1] == {"timeout": 7}


def test_without_a_query_nothing_is_added() -> None:
    assert split_options("redis://host", {"timeout": 0}, {}) == ("redis://host", {})


def test_an_unknown_option_is_refused_without_showing_the_password() -> None:
    with pytest.raises(ConfigError, match=r"does not accept the option 'patience'.*It takes timeout") as caught:
        split_options(URL, {"timeout": 0}, {"patience": 1})
    assert "pass" not in str(caught.value).replace("takes", "")
    with pytest.raises(ConfigError, match="It takes none"):
        split_options(URL, {}, {"patience": 1})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://app:p%40ss@host:5432/db", "postgresql://app@host:5432/db"),
        (
            "postgresql://host/db?user=app&password=secret&sslmode=require",
            "postgresql://host/db?user=app&sslmode=require",
        ),
        ("s3://bucket/prefix?secret_access_key=x&access_key_id=y&region=eu", "s3://bucket/prefix?region=eu"),
        ("mongodb://a:b@one,two/db?replicaSet=rs0", "mongodb://a@one,two/db?replicaSet=rs0"),
        ("sqlite:///agents.db", "sqlite:///agents.db"),
        ("postgresql://[broken/db?password=x", "postgresql://[broken/db"),
        ("memory:", "memory:"),
        ("redis://u:s3cr?wOrd#x@h:1/0", "redis://u@h:1/0"),
        ("postgresql://me@host/db?user=a%40b", "postgresql://me@host/db?user=a@b"),
        ("redis://u:p/a@ss@host/0", "redis://u@host/0"),
        ("sqlite:///me@home.db", "sqlite:///me@home.db"),
        ("nope:me:s3cret@host/x", "nope:me@host/x"),
        ("nope:s3cret@host/x", "nope:@host/x"),
        ("file:a:b@c", "file:a:b@c"),
        ("retry:?store=redis%3A%2F%2Fu%3As3cret%40h%2F0&attempts=2", "retry:?store=redis://u@h/0&attempts=2"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert redacted_url(url) == shown


def test_numbers() -> None:
    assert [parse_duration(URL, "timeout", value) for value in ("2.5", 2.5, "1.5m", "2h", timedelta(days=1))] == [
        2.5,
        2.5,
        90,
        7200,
        86400,
    ]
    assert parse_int(URL, "pool_size", "4", 1) == 4
    for value in ("many", "-1", None, True, "nan"):
        with pytest.raises(ConfigError, match="timeout cannot be .* It is a duration from 0.*or 90s, 30m"):
            parse_duration(URL, "timeout", value)
    for value in ("2.5", "0", "", True):
        with pytest.raises(ConfigError, match="pool_size cannot be .* It is a whole number from 1"):
            parse_int(URL, "pool_size", value, 1)


def test_switches() -> None:
    assert [parse_bool(URL, "rls", value) for value in (True, "true", "ON", "1", False, "no", 0)] == [True] * 4 + [
        False
    ] * 3
    with pytest.raises(ConfigError, match="rls cannot be 'perhaps'"):
        parse_bool(URL, "rls", "perhaps")


def test_choices() -> None:
    assert parse_choice(URL, "durable", "waitaof", ("server", "waitaof")) == "waitaof"
    with pytest.raises(ConfigError, match="durable cannot be 'no'.* It is one of server, waitaof"):
        parse_choice(URL, "durable", "no", ("server", "waitaof"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresq://user:SECRET@host/db",
        "POSTGRESQL://user:SECRET@host/db",
        "mirorr:?local=a.db&remote=postgresql://user:SECRET@host/db",
        "mirror:?local=sqlite:///a.db&remot=postgresql://user:SECRET@host/db",
        "mirror:?local=sqlite:///a.db&remot=postgresql%3A%2F%2Fuser%3ASECRET%40host%2Fdb",
        "tired:?hot=a.db&cold=cache%3A%3Fstore%3Dredis%3A%2F%2F%3ASECRET%40host",
        "nope://x?password=SECRET",
        "nope://x?pwd=SECRET",
        "nope:user:SECRET@host/db",
        "nope:SECRET@host/db",
        "user:SECRET@host/db",
        "postgres//user:SECRET@host/db",
        "postgresql://user:%SECRET@host/db",
        "postgresql://user:a@SECRET@host/db",
        "sqlite://user:SECRET@host/db",
        "sqlite:user:SECRET@host/db",
        "memory://user:SECRET@host/db",
        "file://user:SECRET@host/db",
        "s3://user:SECRET@bucket/x",
        "redis://user:12/SECRET@host/0",
        "mongodb://user:a#SECRET@host/db",
    ],
)
def test_no_password_is_in_an_error_about_a_wrong_url(url: str) -> None:
    assert "SECRET" in url
    with pytest.raises(ConfigError) as caught:
        holdfast.open(url)
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


def test_a_path_that_cannot_be_looked_up_is_no_error_of_the_system() -> None:
    with pytest.raises(ConfigError, match="cannot be opened"):
        holdfast.open("x" * 5000)

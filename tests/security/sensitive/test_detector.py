"""Detection: recall on samples from the providers' documents, false positives on ordinary messages, linear time."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest

from holdfast.errors import InvalidError
from holdfast.security.sensitive.credential_check import noticed_formats
from holdfast.security.sensitive.detector import Detector, SensitiveSpan, find, parse_formats
from holdfast.security.sensitive.formats import is_secret_name
from tests.security.sensitive.samples import (
    BASE62,
    CARRIERS,
    CREDENTIALS,
    PERSONAL,
    github_token,
    ordinary_messages,
    split_sample,
)
from tests.support.cases import case
from tests.support.nightly import mostly_nightly


def _redacted(detector: Detector, text: str) -> str:
    for found in reversed(detector.find(text)):
        text = text[: found.start] + "***" + text[found.end :]
    return text


def _recall(detector: Detector, name: str, samples: int = 50) -> float:
    """The share of samples of whose secrets nothing is left that is worth having."""
    make, random, hits = (CREDENTIALS | PERSONAL)[name], Random(f"recall {name}"), 0
    for number in range(samples):
        sample, secret = split_sample(make(random))
        left = _redacted(detector, CARRIERS[number % len(CARRIERS)].format(sample))
        hits += not any(secret[start : start + 6] in left for start in range(max(len(secret) - 6, 1)))
    return hits / samples


@pytest.mark.parametrize("samples", mostly_nightly([20, 500], daily=[20]))
def test_recall_of_every_format(subtests: pytest.Subtests, samples: int) -> None:
    detector = Detector()
    for name in [*CREDENTIALS, *PERSONAL]:
        with case(subtests, name):
            assert _recall(detector, name, samples) >= 0.95


def test_recall_needs_the_formats() -> None:
    """The control: without the formats of credentials, the same samples are not found."""
    assert _recall(Detector(parse_formats("personal")), "github_token") == 0


@pytest.mark.parametrize("count", mostly_nightly([1_000, 50_000], daily=[1_000]))
def test_ordinary_messages_have_no_findings(count: int) -> None:
    """At most one in 10,000 messages has one."""
    detector, found = Detector(), []
    for text in ordinary_messages(Random("ordinary"), count):
        found += [(each.format, text[each.start : each.end]) for each in detector.find(text)]
    assert len(found) <= count / 10_000, found


def test_ordinary_messages_with_a_secret_have_one() -> None:
    """The control: a secret in an ordinary message is found."""
    random, detector = Random("control"), Detector()
    for text in ordinary_messages(random, 200):
        assert detector.find(f"{text} {CREDENTIALS['github_token'](random)} {text}")


HOSTILE = (
    "a",
    "=",
    ":",
    "=a1",
    " is ",
    "-",
    "+",
    "@",
    "a@",
    "a.",
    "a@a.",
    "1",
    "1 ",
    "1-",
    "+1",
    "1.",
    "2001:",
    ":",
    "eyJ",
    "eyJa.",
    "://",
    "a://a:",
    "sk-",
    "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY----- -----END ",
    "AKIA",
    "ghp_a",
    "xox",
    "SG.a",
    "password=a1",
    "token: a1 ",
    "bearer ",
    "bearer a1",
    "A1b2",
    "A1b2/",
    "GB82 ",
    "GB82WEST",
    "MTE.",
    "\x1f",
    "\n",
    "é",
    "[redacted:",
    '{"password": ',
    "4 1",
    "AIza-",
    "1//0a",
    "hooks.slack.com/services/",
    "Q~a8Q~",
    "?sv=1&sig=",
    "&sig=a",
    "?sig=" + "a" * 43 + "&",
    "password=aB",
)


def test_hostile_text_takes_linear_time(subtests: pytest.Subtests) -> None:
    """Eight times the text takes about eight times as long, and not sixty-four times."""
    detector = Detector()

    def seconds(text: str) -> float:
        """The least of three times of this thread: a collection of garbage may come between, and others work, too."""
        taken = []
        for _ in range(3):
            start = time.thread_time()
            detector.find(text)
            taken.append(time.thread_time() - start)
        return min(taken)

    for piece in HOSTILE:
        with case(subtests, piece):
            short, long = (piece * (size // len(piece)) for size in (4_000, 32_000))
            assert seconds(long) < 24 * seconds(short) + 0.05


def test_names_of_fields(subtests: pytest.Subtests) -> None:
    for name in [
        "password",
        "DB_PASSWORD",
        "apiKey",
        "api_key",
        "x-api-key",
        "client_secret",
        "accessToken",
        "token",
        "hf_token",
        "Authorization",
        "connectionString",
        "private_key",
        "aws_secret_access_key",
        "Set-Cookie",
        "user.password",
    ]:
        with case(subtests, name):
            assert is_secret_name(name)
    for name in [
        "max_tokens",
        "token_count",
        "next_page_token",
        "eos_token",
        "key",
        "keys",
        "secretary",
        "passenger",
        "author",
        "content",
        "signature",
        "tokens",
        "completion_tokens",
        "tokenizer",
        "primary_key",
        "pinned",
        "",
    ]:
        with case(subtests, name):
            assert not is_secret_name(name)


def test_text_of_secret_fields(subtests: pytest.Subtests) -> None:
    detector = Detector()
    assert detector.find_in_field("password", "hunter2")[0].format == "field"
    for placeholder in ["", "***", "<password>", "${DB_PASSWORD}", "your-password-here", "None", "xxxxxxxx"]:
        with case(subtests, placeholder):
            assert detector.find_in_field("password", placeholder) == []
    assert detector.find_in_field("comment", "hunter2") == []
    assert Detector(parse_formats("personal")).find_in_field("password", "hunter2") == []


def test_formats_are_named(subtests: pytest.Subtests) -> None:
    assert "email" in parse_formats(["personal", "aws-access-key-id"])
    assert "field" in parse_formats("credentials")
    assert parse_formats("all") > parse_formats("credentials")
    wrong: list[Any] = ["emails", [], 7, ["email", "x"]]
    for bad in wrong:
        with case(subtests, bad), pytest.raises(InvalidError):
            parse_formats(bad)


def test_secrets_that_text_names(subtests: pytest.Subtests) -> None:
    detector = Detector()
    for text in (
        "password=hunter2!x9",
        '{"password": "hunter2!x9"}',
        '{\\"password\\": \\"hunter2!x9\\"}',
        "DB_PASSWORD = 'hunter2!x9'",
        "?page=1&api_key=hunter2!x9&sort=desc",
        "my password is hunter2!x9, do not tell",
        "Token => hunter2!x9",
    ):
        with case(subtests, text):
            assert [text[each.start : each.end] for each in detector.find(text)] == ["hunter2!x9"]


@pytest.mark.parametrize("count", mostly_nightly([300, 5_000], daily=[300]))
def test_short_secrets_directly_behind_their_names(subtests: pytest.Subtests, count: int) -> None:
    """Of twelve random letters and digits, 19 of 20 are found, and without the name, none."""
    detector, random = Detector(noticed_formats()), Random("short")
    for form in ("password={}", "my password is {}", '{{"token": "{}"}}', "api_key: {}", "Authorization: Bearer {}"):
        with case(subtests, form):
            values = ["".join(random.choices(BASE62, k=12)) for _ in range(count)]
            missed = [value for value in values if not detector.find(f"use {form.format(value)} now")]
            assert len(missed) <= 0.08 * count, missed
            assert not any(detector.find(f"use {value} now") for value in values)  # the control


def test_passwords_that_people_choose(subtests: pytest.Subtests) -> None:
    for text, secret in (
        ("password=hunter2hunter2", "hunter2hunter2"),
        ("Password: Summer2024", "Summer2024"),
        ("my password is now harbour2024", "harbour2024"),
    ):
        with case(subtests, text):
            assert [text[each.start : each.end] for each in find(text, "named-secret")] == [secret]
    for text in ("password = getpass2()", "password=dbPassword2", "token=harbour2024", "password: required"):
        with case(subtests, text):
            assert find(text, "credentials") == []


def test_signatures_of_azure_have_other_parameters(subtests: pytest.Subtests) -> None:
    signature = "".join(Random("sas").choices(BASE62, k=43)) + "%3D"
    for text in (
        f"https://a.blob.core.windows.net/c?sv=2022-11-02&se=2030-01-01&sp=r&sig={signature}",
        f"https://a.blob.core.windows.net/c?sig={signature}&spr=https&sv=2022-11-02",
        f"SharedAccessSignature sr=https%3A%2F%2Fa&sig={signature}&se=1900000000&skn=Root",
        f"BlobEndpoint=https://a.example.org;SharedAccessSignature=sp=r&sig={signature};",
    ):
        with case(subtests, text):
            assert [text[each.start : each.end] for each in find(text, "azure-sas")] == [signature]
    for text in (f"https://example.org/a?sig={signature}", f"https://example.org/a?w=9&sig={signature}&Expires=17"):
        with case(subtests, text):
            assert find(text, noticed_formats()) == []


def test_the_whole_secret_is_found() -> None:
    """Findings that overlap become one, so that no part of a secret is left."""
    detector = Detector()
    text = "token: sk-ant-api03-" + "aB3" * 31 + "AA"
    (found,) = detector.find(text)
    assert (found.format, text[: found.start]) == ("anthropic-key", "token: ")
    assert found.end == len(text)


def test_other_ways_to_write_the_same(subtests: pytest.Subtests) -> None:
    """Characters that look like others, or are not seen at all; and forms with which people write numbers."""
    token = github_token(Random("same"))
    card = "4111 1111 1111 1111"
    texts = {
        "lower-case IBAN": ("iban", "de89370400440532013000"),
        "lower-case IBAN in groups": ("iban", "de89 3704 0044 0532 0130 00"),
        "IBAN": ("iban", "DE89 3704 0044 0532 0130 00"),
        "00 in place of +": ("phone", "0049 30 1234567"),
        "e-mail with accents": ("email", "jürgen@exämple.de"),
        "e-mail in Cyrillic": ("email", "иван@пример.рф"),
        "spaces that do not break": ("card", card.replace(" ", "\u00a0")),
        "full width": ("card", "".join(chr(ord(each) + 0xFEE0) if each != " " else each for each in card)),
        "en dashes": ("card", card.replace(" ", "\u2013")),
        "digits of Arabic": ("phone", "+٤٩٣٠١٢٣٤٥٦٧"),
        "zero width": ("github-token", "\u200b".join(token)),
        "soft hyphen": ("github-token", token[:9] + "\u00ad" + token[9:]),
    }
    for name, (format_, text) in texts.items():
        with case(subtests, name):
            for whole in (text, f"Über\u00a0{text}, naïve"):
                at = whole.index(text)
                assert find(whole) == [SensitiveSpan(at, at + len(text), format_)]
    for text in ("invoice 0012345678 of 2024", "DE89 3704 0044 0532 0130 01", "l’été – 12 à 14 h", "de12 is not one"):
        assert find(text) == []

"""Measure how many credentials the check of every store notices, and how much else it takes for one.

`python -m tools.credential_rates` writes the table in docs/guides/redaction.md, between its markers. With `--check` it
writes nothing, and fails if the table there says anything else. The examples are generated, from a fixed seed: 200 that
have a credential, in the forms that providers document, and 2,000 that have none and look like it.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

from holdfast.security.sensitive.credential_check import noticed_formats
from holdfast.security.sensitive.detector import Detector
from holdfast.security.sensitive.markers import ANY_MARKER
from holdfast.security.sensitive.protector import find_text
from tests.security.sensitive import samples
from tests.security.sensitive.samples import BASE62, CARRIERS, DIGITS, HEX, LOWER, UPPER, split_sample

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "redaction.md"
BEGIN, END = "<!-- from here on by tools/credential_rates.py -->", "<!-- until here -->"

TRUE, FALSE = 200, 2_000

Make = Callable[[Random], str]


def _text(random: Random, alphabet: str, length: int) -> str:
    return "".join(random.choices(alphabet, k=length))


def _bearer(random: Random) -> str:
    return f"Authorization: Bearer {samples.mark(_text(random, BASE62, random.randint(24, 64)))}"


def _assigned(name: str, between: str) -> Make:
    def make(random: Random) -> str:
        return f"{name}{between}{samples.mark(_text(random, BASE62 + '-_', random.randint(20, 40)))}"

    return make


def _short(before: str, after: str = "") -> Make:
    """Return what makes a secret of twelve letters and digits, directly behind its name."""
    return lambda random: f"{before}{samples.mark(_text(random, BASE62, 12))}{after}"


def _password(random: Random) -> str:
    word = random.choice(["kelp", "Tide", "harbour", "Anchor"])
    return (
        f"password: {samples.mark(word + _text(random, DIGITS, 3) + random.choice('!?$#') + _text(random, BASE62, 4))}"
    )


def _url(scheme: str) -> Make:
    def make(random: Random) -> str:
        return f"{scheme}://app:{samples.mark(_text(random, BASE62, random.randint(8, 24)))}@db.example.org/main"

    return make


CREDENTIALS: Mapping[str, Make] = {
    "AWS access key id": samples.aws_access_key_id,
    "AWS secret access key": lambda random: (
        f"aws_secret_access_key = {samples.mark(samples.aws_secret_access_key(random))}"
    ),
    "GitHub": samples.github_token,
    "GitHub, fine-grained": samples.github_fine_grained,
    "OpenAI": samples.openai_key,
    "Anthropic": samples.anthropic_key,
    "Google": samples.gcp_api_key,
    "Slack": samples.slack_token,
    "Stripe": samples.stripe_key,
    "Hugging Face": samples.huggingface_token,
    "npm": samples.npm_token,
    "JSON Web Token": samples.jwt,
    "private key in PEM": samples.private_key,
    "password in a URL of PostgreSQL": _url("postgresql"),
    "password in a URL of Redis": _url("redis"),
    "`Authorization: Bearer`": _bearer,
    "`api_key=`": _assigned("api_key", "="),
    '`"token": "…"`': _assigned('"token', '": "'),
    "`password:`": _password,
    "name and password after `Basic`": samples.basic_authorization,
    "`password=`, 12 letters and digits": _short("password="),
    "`my password is`, 12 letters and digits": _short("my password is "),
    "`api_key=`, 12 letters and digits": _short("api_key="),
    '`"token": "…"`, 12 letters and digits': _short('"token": "', '"'),
    "`Bearer`, 12 letters and digits": _short("Authorization: Bearer "),
}


def _base64(random: Random, least: int, most: int) -> str:
    return base64.b64encode(random.randbytes(random.randint(least, most))).decode()


def _image(random: Random) -> str:
    kind = random.choice(["png", "jpeg", "webp"])
    return f"data:image/{kind};base64,{_base64(random, 60, 3000)}"


def _placeholder(random: Random) -> str:
    sk, aws = "sk" + "-", "AK" + "IA"
    return random.choice(
        [
            f"{sk}{'x' * random.randint(4, 48)}",
            f"{sk}{'*' * random.randint(4, 48)}",
            f"{sk}...{_text(random, LOWER, 4)}",
            "OPENAI_API_KEY=YOUR_API_KEY",
            "api_key=<your-api-key>",
            "token: ${TOKEN}",
            'password = os.environ["DB_PASSWORD"]',
            f"{aws}{'X' * 16}",
            "Authorization: Bearer <token>",
            "Authorization: Bearer $ACCESS_TOKEN",
            "password: ********",
            "api_key: changeme",
            "secret=example-secret-for-the-docs",
        ]
    )


def _documented(random: Random) -> str:
    """The examples of providers' documents, which say so themselves."""
    aws, words = "AK" + "IA", "EXAMPLE"
    return random.choice(
        [
            f"{aws}IOSFODNN7{words}",
            f"{aws}{_text(random, UPPER, 9)}{words}",
            f"wJalrXUtnFEMI/K7MDENG/bPxRfiCY{words}KEY",
            "gh" + "p_" + "x" * 36,
            "eyJ" + "xxxxxxxxxx.yyyyyyyyyy.zzzzzzzzzz",
            f"xoxb-your-token-{words.lower()}",
            "sk_" + "test_" + "x" * 24,
        ]
    )


def _connection(random: Random) -> str:
    host = random.choice(["localhost", "db.example.org:5432", "127.0.0.1"])
    return random.choice(
        [
            f"postgresql://app@{host}/main",
            f"redis://{host}/0",
            f"mongodb+srv://{host}/?retryWrites=true",
            f"postgresql://app:${{DB_PASSWORD}}@{host}/main",
            f"postgresql://user:password@{host}/main",
            f"amqp://{host}//",
            f"https://{host}/a:b@c",
        ]
    )


def _order(random: Random) -> str:
    return random.choice(
        [
            f"order {random.randint(10**9, 10**12)}",
            f"ORD-{random.randint(2020, 2030)}-{_text(random, DIGITS, 8)}",
            f"tracking number 1Z{_text(random, UPPER + DIGITS, 16)}",
            f"invoice INV{_text(random, DIGITS, 10)}, SKU {_text(random, UPPER, 3)}-{_text(random, DIGITS, 5)}",
            f"IMEI {_text(random, DIGITS, 15)}",
        ]
    )


def _ids(random: Random) -> str:
    return random.choice(
        [
            f"toolu_01{_text(random, BASE62, 22)}",
            f"call_{_text(random, BASE62, 24)}",
            f"chatcmpl-{_text(random, BASE62, 29)}",
            f"msg_{_text(random, BASE62, 24)}",
            f"cus_{_text(random, BASE62, 14)}",
            _text(random, "0123456789ABCDEFGHJKMNPQRSTVWXYZ", 26),
            _text(random, BASE62 + "-_", 21),
        ]
    )


def _usage(random: Random) -> str:
    return json.dumps(
        {"max_tokens": random.randint(1, 9999), "token_count": random.randint(1, 10**6), "next_page_token": None}
    )


def _message(random: Random) -> str:
    return next(samples.ordinary_messages(random, 1))


def _public_key(random: Random) -> str:
    return random.choice(
        [
            f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{_base64(random, 33, 33)} ada@example.org",
            f"-----BEGIN PUBLIC KEY-----\n{_base64(random, 120, 120)}\n-----END PUBLIC KEY-----",
            f"-----BEGIN CERTIFICATE-----\n{_base64(random, 600, 600)}\n-----END CERTIFICATE-----",
        ]
    )


def _signed_url(random: Random) -> str:
    """A URL with a signature that is no key: links to files, images and maps have such."""
    end = random.choice(["", f"&Expires={random.randint(10**9, 2 * 10**9)}", "&w=640&h=480"])
    return f"https://example.org/files/{_text(random, BASE62, 22)}?sig={_text(random, BASE62, 43)}{end}"


def _cursor(random: Random) -> str:
    names = ["next_page_token", "nextPageToken", "page_token", "next_token", "continuationToken", "cursor"]
    return json.dumps({random.choice(names): _text(random, BASE62, random.randint(16, 60))})


def _named_in_code(random: Random) -> str:
    """Code and settings where a name, and no secret, follows the name of one."""
    return random.choice(
        [
            "token = OAuth2Token.from_response(response)",
            "auth=HTTPBasicAuth2(user)",
            "token: GPT2TokenizerFast",
            "token_type: HS256Signature",
            "secret: XMLHttpRequest2",
            "api_key=settings.OPENAI_API_KEY_2",
            "credentials=DefaultAzureCredential()",
            "token = tokenizer.encode_plus2(text)",
            "password = getpass2()",
            "password=self.password2",
            "password: step2_password",
            "secret_key: base64UrlEncoded",
            "access_key=minio-admin-key-2",
            f"token: text-embedding-{random.randint(2, 9)}-small",
            f"auth: oauth2-client-{random.randint(2, 9)}",
            f"secret: projects/main/secrets/db-{random.randint(2, 9)}/versions/latest",
        ]
    )


def _told(random: Random) -> str:
    """What people write about passwords, tokens and secrets."""
    return random.choice(
        [
            "please reset my password tomorrow",
            "Password: required",
            "my password is not working since Monday",
            f"password: at least {random.randint(8, 20)} characters",
            "the token is expired",
            "token: the smallest unit of text",
            "The secret is simplicity",
            "secret: see the vault",
            f"the password is set to expire in {random.randint(2, 90)} days",
            "Authorization: Bearer authentication",
            "the bearer of good news",
            "passwd: files systemd",
            f"API key: see page {random.randint(2, 90)} of the manual",
        ]
    )


def _model(random: Random) -> str:
    name = random.choice(["gpt-4o-mini-2024-07-18", "claude-3-5-sonnet-20241022", "o3-mini-2025-01-31"])
    return f"model={name}, key: {name}, auth: v{random.randint(1, 3)}beta{random.randint(1, 9)}"


def _version(random: Random) -> str:
    return (
        f"Mozilla/5.0 (X11; Linux x86_64) Chrome/{random.randint(90, 140)}.0.{random.randint(0, 9999)}.0 Safari/537.36"
    )


HARMLESS: Mapping[str, Make] = {
    "UUIDs": lambda random: str(uuid.UUID(int=random.getrandbits(128), version=4)),
    "SHA-256": lambda random: _text(random, HEX, 64),
    "MD5 and other digests": lambda random: f"{random.choice(['md5', 'etag', 'sha1'])}: {_text(random, HEX, 32)}",
    "commits of git": lambda random: f"commit {_text(random, HEX, 40)}",
    "integrity of packages": lambda random: f"integrity sha512-{_base64(random, 64, 64)}",
    "images in base64": _image,
    "short base64": lambda random: _base64(random, 12, 40),
    "long base64": lambda random: _base64(random, 200, 4000),
    "text in base64": lambda random: base64.b64encode(_message(random).encode()).decode(),
    "placeholders": _placeholder,
    "keys of documents": _documented,
    "connections without a password": _connection,
    "orders, invoices, parcels": _order,
    "ids of messages and calls": _ids,
    "numbers of tokens": _usage,
    "public keys, certificates": _public_key,
    "versions of browsers": _version,
    "code": samples._code,
    "URLs": samples._url,
    "signed URLs": _signed_url,
    "cursors of pages": _cursor,
    "names after names of secrets": _named_in_code,
    "words about passwords and tokens": _told,
    "names of models": _model,
    "messages": _message,
}


class Rate(NamedTuple):
    """How many examples of a kind there are, and how many of them have a finding."""

    kind: str
    found: int
    examples: int


def measure() -> tuple[list[Rate], list[Rate]]:
    """Return the rates of examples with a credential, and of those without."""
    detector = Detector(noticed_formats())

    def is_found(text: str, start: int, end: int) -> bool:
        return any(each.start < end and start < each.end for each in find_text(detector, "content", text, ANY_MARKER))

    true, false = [], []
    for kind, make in CREDENTIALS.items():
        random, found = Random(f"credential {kind}"), 0
        for number in range(TRUE // len(CREDENTIALS)):
            sample, secret = split_sample(make(random))
            text = CARRIERS[number % len(CARRIERS)].format(sample)
            found += is_found(text, text.index(secret), text.index(secret) + len(secret))
        true.append(Rate(kind, found, TRUE // len(CREDENTIALS)))
    for kind, make in HARMLESS.items():
        random, found = Random(f"harmless {kind}"), 0
        for number in range(FALSE // len(HARMLESS)):
            text = CARRIERS[number % len(CARRIERS)].format(make(random))
            found += is_found(text, 0, len(text))
        false.append(Rate(kind, found, FALSE // len(HARMLESS)))
    return true, false


def describe() -> str:
    """Return the table for the guide."""
    true, false = measure()
    lines = []
    for title, rates in (("with a credential", true), ("without one", false)):
        found, count = sum(each.found for each in rates), sum(each.examples for each in rates)
        lines += [f"| {count:,} examples {title} | noticed: {found:,} |", "|---|---|"]
        lines += [f"| {each.kind} | {each.found} of {each.examples} |" for each in rates]
        lines.append("")
    return "\n".join(lines).rstrip("\n")


def main(arguments: list[str] | None = None) -> int:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the table is another")
    given = parser.parse_args(arguments)
    table = describe()
    print(table)
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{PAGE.name} lacks its markers")
    page = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    if given.check:
        return int(page != PAGE.read_text("utf-8"))
    PAGE.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

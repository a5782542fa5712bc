"""Samples of sensitive data, built from what providers document of their formats, and not from the patterns that find
them; and ordinary messages that have none."""

# ruff: noqa: E501, SIM905 - tables

from __future__ import annotations

import base64
import hashlib
import json
import uuid
import zlib
from collections.abc import Callable, Iterator
from random import Random

DIGITS = "0123456789"
LOWER = "abcdefghijklmnopqrstuvwxyz"
UPPER = LOWER.upper()
BASE62 = DIGITS + UPPER + LOWER
URL_SAFE = BASE62 + "-_"
HEX = DIGITS + "abcdef"


def mark(secret: str) -> str:
    """Mark the part of a sample that is secret, where that is not all of it."""
    return f"\x02{secret}\x03"


def split_sample(sample: str) -> tuple[str, str]:
    """Return the text of a sample, and its secret."""
    if "\x02" not in sample:
        return sample, sample
    before, _, rest = sample.partition("\x02")
    secret, _, after = rest.partition("\x03")
    return before + secret + after, secret


def _text(random: Random, alphabet: str, length: int, longest: int = 0) -> str:
    return "".join(random.choices(alphabet, k=random.randint(length, max(length, longest))))


def _base62(number: int, width: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 62)
        digits = BASE62[digit] + digits
    return digits.rjust(width, "0")


def _with_crc(random: Random, prefix: str, length: int) -> str:
    """GitHub and npm end their tokens with the CRC-32 of the rest, in base 62."""
    body = _text(random, BASE62, length)
    return f"{prefix}{body}{_base62(zlib.crc32(body.encode()), 6)}"


def _base64(random: Random, size: int, *, url_safe: bool = False, pad: bool = True) -> str:
    encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
    text = encode(random.randbytes(size)).decode()
    return text if pad else text.rstrip("=")


def _json64(random: Random, value: dict[str, object]) -> str:
    value = {**value, "n": random.randint(0, 10**9)}
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def aws_access_key_id(random: Random) -> str:
    return random.choice(["AKIA", "ASIA"]) + _text(random, UPPER + "234567", 16)


def aws_secret_access_key(random: Random) -> str:
    return _text(random, BASE62 + "+/", 40)


def gcp_api_key(random: Random) -> str:
    return "AIza" + _text(random, URL_SAFE, 35)


def gcp_oauth_token(random: Random) -> str:
    return "ya29.a0" + _text(random, URL_SAFE, 120, 210)


def gcp_client_secret(random: Random) -> str:
    return "GOCSPX-" + _text(random, URL_SAFE, 28)


def azure_client_secret(random: Random) -> str:
    return (
        _text(random, BASE62, 3)
        + random.choice("78")
        + "Q~"
        + _text(random, BASE62 + "_~.-", 33)
        + _text(random, BASE62, 1)
    )


def azure_storage_key(random: Random) -> str:
    key, name = _base64(random, 64), _text(random, LOWER, 8)
    return f"DefaultEndpointsProtocol=https;AccountName={name};AccountKey={mark(key)};EndpointSuffix=core.windows.net"


def azure_openai_key(random: Random) -> str:
    return _text(random, BASE62, 52) + "JQQJ99" + _text(random, UPPER + DIGITS, 22) + _text(random, BASE62, 4)


def github_token(random: Random) -> str:
    return _with_crc(random, random.choice(["ghp_", "gho_", "ghu_", "ghs_", "ghr_"]), 30)


def github_fine_grained(random: Random) -> str:
    return f"github_pat_11{_text(random, UPPER + DIGITS, 20)}_{_text(random, BASE62, 59)}"


def gitlab_token(random: Random) -> str:
    classic = random.choice(["glpat-", "gldt-", "glrt-", "glptt-"]) + _text(random, URL_SAFE, 20)
    routable = f"glpat-{_base64(random, 27, url_safe=True, pad=False)}.{_text(random, HEX, 2)}.{_text(random, LOWER + DIGITS, 9)}"
    return random.choice([classic, routable])


def slack_token(random: Random) -> str:
    team, app = _text(random, DIGITS, 11, 13), _text(random, DIGITS, 11, 13)
    return random.choice(
        [
            f"xoxb-{team}-{app}-{_text(random, BASE62, 24)}",
            f"xoxp-{team}-{app}-{app}-{_text(random, HEX, 32)}",
            f"xapp-1-A{_text(random, UPPER + DIGITS, 10)}-{app}-{_text(random, HEX, 64)}",
            f"xoxe.xoxp-1-{_base64(random, 120, pad=False).replace('+', 'a').replace('/', 'b')}",
        ]
    )


def slack_webhook(random: Random) -> str:
    ids = f"T{_text(random, UPPER + DIGITS, 10)}/B{_text(random, UPPER + DIGITS, 10)}"
    return "https://hooks.slack.com/services/" + mark(f"{ids}/{_text(random, BASE62, 24)}")


def stripe_key(random: Random) -> str:
    return random.choice(["sk_live_51", "sk_test_51", "rk_live_51"]) + _text(random, BASE62, 97)


def stripe_webhook_secret(random: Random) -> str:
    return "whsec_" + _text(random, BASE62, 32)


def openai_key(random: Random) -> str:
    part = _text(random, URL_SAFE, 74)
    return random.choice(
        [
            f"sk-proj-{part}T3BlbkFJ{part}",
            f"sk-svcacct-{part}T3BlbkFJ{part}",
            f"sk-{part[:0]}{_text(random, BASE62, 48)}",
        ]
    )


def anthropic_key(random: Random) -> str:
    return f"sk-ant-{random.choice(['api03', 'admin01', 'oat01'])}-{_text(random, URL_SAFE, 93)}AA"


def huggingface_token(random: Random) -> str:
    return "hf_" + _text(random, LOWER + UPPER, 34)


def npm_token(random: Random) -> str:
    return _with_crc(random, "npm_", 30)


def pypi_token(random: Random) -> str:
    """A macaroon: its location is pypi.org."""
    macaroon = b"\x02\x01\x08pypi.org\x02" + bytes([36]) + str(uuid.UUID(int=random.getrandbits(128))).encode()
    return "pypi-" + base64.urlsafe_b64encode(macaroon + random.randbytes(64)).decode().rstrip("=")


def sendgrid_key(random: Random) -> str:
    return f"SG.{_base64(random, 16, url_safe=True, pad=False)}.{_base64(random, 32, url_safe=True, pad=False)}"


def twilio_key(random: Random) -> str:
    return "SK" + _text(random, HEX, 32)


def telegram_token(random: Random) -> str:
    return f"{random.randint(10**8, 10**10 - 1)}:AA{_text(random, URL_SAFE, 33)}"


def discord_token(random: Random) -> str:
    user = base64.b64encode(str(random.randint(10**17, 13 * 10**17)).encode()).decode().rstrip("=")
    return f"{user}.{_text(random, URL_SAFE, 6)}.{_text(random, URL_SAFE, 38)}"


def jwt(random: Random) -> str:
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    return f"{header}.{_json64(random, {'sub': 'alice'})}.{_base64(random, 32, url_safe=True, pad=False)}"


def private_key(random: Random) -> str:
    kind = random.choice(["RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED ", "DSA "])
    body = _base64(random, random.randint(100, 1600))
    wrapped = "\n".join(body[start : start + 64] for start in range(0, len(body), 64))
    pem = f"-----BEGIN {kind}PRIVATE KEY-----\n{wrapped}\n-----END {kind}PRIVATE KEY-----\n"
    return random.choice([pem, pem.replace("\n", "\\n"), pem.replace("\n", "\r\n")])


def connection_string(random: Random) -> str:
    scheme = random.choice(["postgresql", "mysql", "mongodb+srv", "redis", "amqps", "https"])
    password = _text(random, BASE62 + "!$*_-", 8, 24)
    return f"{scheme}://{random.choice(['app', 'root', ''])}:{mark(password)}@db.internal.net:5432/main"


def high_entropy_token(random: Random) -> str:
    return _base64(random, random.choice([24, 32, 48]), url_safe=random.random() < 0.5, pad=random.random() < 0.5)


def named_secret(random: Random) -> str:
    name = random.choice(
        ["password", "DB_PASSWORD", "api_key", "apiKey", "client_secret", "access-token", "SECRET_KEY"]
    )
    value = random.choice(
        [_text(random, HEX, 32), _text(random, BASE62, 24), _text(random, BASE62 + "!@#$%^*", 12, 20) + "7a!"]
    )
    return random.choice(
        [f"{name}={mark(value)}", f'"{name}": "{mark(value)}"', f"{name}: {mark(value)}", f"my {name} is {mark(value)}"]
    )


def email(random: Random) -> str:
    local = random.choice(["alice", "bob.smith", "o_connor", "team+news", "x", "j.r.r", "user123"])
    return f"{local}@{_text(random, LOWER, 3, 12)}.{random.choice(['com', 'org', 'de', 'co.uk', 'io', 'museum'])}"


def phone(random: Random) -> str:
    line = f"{random.randint(200, 999)}-{_text(random, DIGITS, 4)}"
    area = random.randint(200, 999)
    german = f"{random.choice(['30', '40', '89', '171'])} {_text(random, DIGITS[1:], 7, 8)}"
    return random.choice(
        [
            f"({area}) {line}",
            f"{area}-{line}",
            f"+1 {area}-{line}",
            f"+49 {german}",
            f"+44 20 {_text(random, DIGITS, 4)} {_text(random, DIGITS, 4)}",
            f"+33{_text(random, DIGITS[1:], 9)}",
            f"+91 {_text(random, DIGITS[6:], 5)} {_text(random, DIGITS, 5)}",
        ]
    )


def _luhn(body: str) -> str:
    for digit in DIGITS:
        total = 0
        for place, each in enumerate(reversed(body + digit)):
            number = int(each) * (1 + place % 2)
            total += number - 9 * (number > 9)
        if total % 10 == 0:
            return body + digit
    raise AssertionError


def card(random: Random) -> str:
    prefix, length = random.choice(
        [("4", 16), ("51", 16), ("2221", 16), ("34", 15), ("6011", 16), ("3528", 16), ("36", 14), ("62", 16)]
    )
    number = _luhn(prefix + _text(random, DIGITS, length - 1 - len(prefix)))
    grouped = " ".join(number[start : start + 4] for start in range(0, length, 4))
    return random.choice([number, grouped, grouped.replace(" ", "-")])


def iban(random: Random) -> str:
    country, length, letters = random.choice(
        [("DE", 22, 0), ("GB", 22, 4), ("FR", 27, 0), ("NL", 18, 4), ("CH", 21, 0), ("MT", 31, 4)]
    )
    account = _text(random, UPPER, letters) * bool(letters) + _text(random, DIGITS, length - 4 - letters)
    number = int("".join(str(int(each, 36)) for each in account + country + "00"))
    plain = f"{country}{98 - number % 97:02}{account}"
    grouped = " ".join(plain[start : start + 4] for start in range(0, length, 4))
    return random.choice([plain, grouped])


def ip(random: Random) -> str:
    four = f"{random.choice([8, 23, 52, 81, 93, 185, 203])}.{random.randint(1, 255)}.{random.randint(0, 255)}.{random.randint(1, 254)}"
    six = f"2001:4860:{random.randint(1, 0xFFFF):x}::{random.randint(1, 0xFFFF):x}"
    return random.choice([four.replace("203.0.113.", "203.1.113."), six])


def aws_session_token(random: Random) -> str:
    return "IQoJb3JpZ2luX2Vj" + _base64(random, random.randint(250, 700))


def aws_bedrock_key(random: Random) -> str:
    return "ABSK" + _base64(random, 96)


def connection_settings(random: Random) -> str:
    """libpq's form, that of JDBC and that of ADO.NET: a password need not have a digit."""
    password = mark(_text(random, random.choice([LOWER, UPPER + LOWER, BASE62]), 8, 20))
    return random.choice(
        [
            f"host=db.internal user=app password={password} dbname=main",
            f"password={password} host=db.internal",
            f"jdbc:mysql://db:3306/main?user=app&password={password}",
            f"jdbc:postgresql://db/main?password={password}&user=app",
            f"Server=tcp:x.database.windows.net;User ID=sa;Password={password};Encrypt=true",
            f"Data Source=db;Pwd={password};Uid=sa",
        ]
    )


def basic_authorization(random: Random) -> str:
    pair = f"{random.choice(['app', 'aladdin', 'user@example.com'])}:{_text(random, LOWER, 6, 24)}"
    return f"Authorization: Basic {mark(base64.b64encode(pair.encode()).decode())}"


def long_token(random: Random) -> str:
    return _base64(random, random.randint(100, 1000), url_safe=random.random() < 0.5)


def assigned_token(random: Random) -> str:
    name = random.choice(["X", "VALUE_2", "thing", "x-custom"])
    return f"{name}{random.choice(['=', ':'])}{mark(_base64(random, random.choice([32, 48, 150])))}"


def prefixed_token(random: Random) -> str:
    """The formats of further services."""
    id = "-".join(_text(random, HEX, length) for length in (8, 4, 4, 4, 12))
    return random.choice(
        [
            f"ATATT3xFfGF0{_text(random, URL_SAFE, 170)}={_text(random, HEX.upper(), 8)}",
            f"sntrys_eyJ{_text(random, BASE62, 120)}=_{_text(random, BASE62, 43)}",
            f"sntryu_{_text(random, HEX, 64)}",
            f"NRAK-{_text(random, UPPER + DIGITS, 27)}",
            f"{_text(random, HEX, 36)}NRAL",
            f"key-{_text(random, HEX, 32)}",
            f"dp.pt.{_text(random, BASE62, 43)}",
            f"dp.st.dev.{_text(random, BASE62, 43)}",
            f"pat-na1-{id}",
            f"pat{_text(random, BASE62, 14)}.{_text(random, HEX, 64)}",
            f"{_text(random, BASE62, 14)}.atlasv1.{_text(random, URL_SAFE, 67)}",
            f"sk.eyJ{_text(random, BASE62, 70)}.{_text(random, URL_SAFE, 22)}",
            f"sl.{_text(random, URL_SAFE, 140)}",
            f"FlyV1 fm2_{_base64(random, 200)}",
            f"rubygems_{_text(random, HEX, 48)}",
            f"lin_api_{_text(random, BASE62, 40)}",
            f"dckr_pat_{_text(random, URL_SAFE, 27)}",
            f"glsa_{_text(random, BASE62, 32)}_{_text(random, HEX, 8)}",
        ]
    )


CREDENTIALS: dict[str, Callable[[Random], str]] = {
    each.__name__: each
    for each in (
        aws_access_key_id, aws_secret_access_key, gcp_api_key, gcp_oauth_token, gcp_client_secret, azure_client_secret,
        azure_storage_key, azure_openai_key, github_token, github_fine_grained, gitlab_token, slack_token, slack_webhook,
        stripe_key, stripe_webhook_secret, openai_key, anthropic_key, huggingface_token, npm_token, pypi_token,
        sendgrid_key, twilio_key, telegram_token, discord_token, jwt, private_key, connection_string,
        high_entropy_token, named_secret, aws_session_token, aws_bedrock_key, connection_settings, basic_authorization,
        long_token, assigned_token, prefixed_token,
    )
}  # fmt: skip
PERSONAL: dict[str, Callable[[Random], str]] = {each.__name__: each for each in (email, phone, card, iban, ip)}

CARRIERS = (
    "{}",
    "Here it is: {}",
    "please use {} for the demo, and tell nobody",
    "({})",
    "Use {}, then restart.",
    'export VALUE="{}"',
    '{{"name": "x", "value": "{}"}}',
    "first line\n{}\nlast line",
    "`{}`",
    "Ändere «{}» bitte",
)

# Ordinary messages ---------------------------------------------------------------------------------------------------

_WORDS = (
    "the a of to and in that it is was for on are with as they be at this have from or had by but what some we can out"
    " other were all there when up use your how said an each she which do their time if will way about many then them"
    " write would like so these her long make thing see him two has look more day could go come did number sound no most"
    " people my over know water than call first who may down side been now find any new work part take get place made"
    " password token key secret authentication credential signature account card phone address email deploy kubernetes"
    " function variable returns error exception database schema migration checkpoint agent tool message graph straße"
    " naïve façade 日本語 привет"
).split()


def _sentence(random: Random) -> str:
    """A colon after `token` would name what follows a secret: no ordinary message any more."""
    end = random.choice([".", "?", "!", " below:"])
    return " ".join(random.choices(_WORDS, k=random.randint(4, 25))).capitalize() + end


def _identifier(random: Random) -> str:
    words = random.choices([word for word in _WORDS if word.isascii() and len(word) > 2], k=random.randint(2, 7))
    camel = words[0] + "".join(map(str.capitalize, words[1:]))
    return random.choice(
        [camel, "_".join(words), "-".join(words), f"{camel}{random.randint(1, 99)}", "_".join(words).upper()]
    )


def _code(random: Random) -> str:
    name, other = _identifier(random).replace("-", "_"), _identifier(random).replace("-", "_")
    return random.choice(
        [
            f"def {name}(token: str, key: int = 0) -> None:\n    return {other}(token, key={random.randint(0, 9999)})",
            f"const {name} = await client.{other}({{ maxTokens: {random.randint(1, 8192)}, model: 'gpt-4o-2024-08-06' }});",
            f"password = getpass.getpass('Password: ')\n{name} = os.environ['{other.upper()}']",
            f"token: ${{{{ secrets.{name.upper()} }}}}\napi_key: ${{API_KEY}}\nsecret: <your-secret-here>",
            f"assert {name}['{other}'] == {random.random()}",
            f"SELECT {name}, count(*) FROM {other} WHERE id = {random.randint(1, 10**9)} -- key lookup",
            f"std::vector<{name}> abc::def = {other}::make(0x{random.getrandbits(64):016x});",
            f"max_tokens={random.randint(1, 9999)}, next_page_token=None, eos_token='</s>'",
            f"docker run -p 127.0.0.1:8080:80 -v /var/lib/{name}:/data registry.local/{other}:1.{random.randint(0, 99)}.{random.randint(0, 99)}",
            f"psycopg.connect(host=host, user=user, password={name}, dbname='{other}')  # the basic {name} of {other}",
            f"the secret key is Ctrl+Shift+F{random.randint(1, 12)}, and the access key: Alt+{random.randint(0, 9)}",
            f"auth = {name}.{other}; key = lambda row: row.{other}; token = tokens[{random.randint(0, 99)}]",
        ]
    )


def _url(random: Random) -> str:
    path = "/".join(_identifier(random) for _ in range(random.randint(1, 4)))
    document = _text(random, URL_SAFE, 44)
    return random.choice(
        [
            f"https://www.{_text(random, LOWER, 4, 12)}.com/{path}?page={random.randint(1, 999)}&sort=desc",
            f"https://docs.google.com/document/d/{document}/edit",
            f"https://youtu.be/{_text(random, URL_SAFE, 11)}?t={random.randint(0, 999)}",
            f"https://github.com/{_text(random, LOWER, 6)}/{_text(random, LOWER, 8)}/blob/{_text(random, HEX, 40)}/src/{path}.py#L{random.randint(1, 999)}",
            f"git@github.com:{_text(random, LOWER, 6)}/{_text(random, LOWER, 8)}.git",
            f"http://localhost:{random.randint(1024, 65535)}/{path}",
            f"s3://bucket-{_text(random, LOWER + DIGITS, 8)}/{path}/part-{random.randint(0, 99999):05}.parquet",
        ]
    )


def _hash(random: Random) -> str:
    data = random.randbytes(16)
    return random.choice(
        [
            hashlib.sha256(data).hexdigest(),
            hashlib.sha1(data).hexdigest(),
            hashlib.md5(data).hexdigest(),
            f"sha256:{hashlib.sha256(data).hexdigest()}",
            f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}",
            f'integrity="sha384-{base64.b64encode(hashlib.sha384(data).digest()).decode()}"',
            str(uuid.UUID(int=random.getrandbits(128))),
            f"chatcmpl-{_text(random, BASE62, 29)}",
            f"toolu_01{_text(random, BASE62, 22)}",
            f"run--{uuid.UUID(int=random.getrandbits(128))}-0",
            f"msg_{_text(random, BASE62, 24)}",
            _text(random, "0123456789ABCDEFGHJKMNPQRSTVWXYZ", 26),
            _text(random, URL_SAFE, 21),
            f"commit {_text(random, HEX, 40)}\nAuthor: somebody",
            base64.b64encode(_sentence(random).encode()).decode(),
            f"data:image/webp;base64,{base64.b64encode(random.randbytes(random.randint(60, 600))).decode()}",
        ]
    )


def _number(random: Random) -> str:
    return random.choice(
        [
            str(random.random()),
            str(random.randint(0, 10**12)),
            f"{random.randint(1, 10**9):,}",
            f"{random.randint(0, 99)}.{random.randint(0, 99)}.{random.randint(0, 999)}",
            f"Chrome/{random.randint(80, 140)}.0.0.0 Safari/537.36",
            f"20{random.randint(10, 30)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}T{random.randint(0, 23):02}:30:00+02:00",
            str(random.randint(1_600_000_000_000_000_000, 1_800_000_000_000_000_000)),
            str(random.randint(1_600_000_000_000, 1_800_000_000_000)),
            f"{random.randint(10**17, 14 * 10**17)}",
            f"+{random.random() * 100:.2f}% and -{random.randint(1, 99)}",
            f"10.{random.randint(0, 255)}.{random.randint(0, 255)}.{random.randint(0, 255)}, 192.168.0.{random.randint(0, 255)}",
            f"{random.randint(1, 12)}:{random.randint(0, 59):02}:{random.randint(0, 59):02}",
            f"{random.randint(0, 255):02x}:{random.randint(0, 255):02x}:{random.randint(0, 255):02x}:aa:bb:cc",
            f"ISBN 978-3-16-{random.randint(100000, 999999)}-{random.randint(0, 9)}",
        ]
    )


def ordinary_messages(random: Random, count: int) -> Iterator[str]:
    """Yield messages of prose, code, URLs, hashes, ids and numbers."""
    for _ in range(count):
        parts = [_sentence(random)]
        for _ in range(random.randint(0, 4)):
            parts.append(random.choice([_sentence, _sentence, _code, _url, _hash, _number, _identifier])(random))
        yield random.choice([" ", "\n", "\n\n"]).join(parts)

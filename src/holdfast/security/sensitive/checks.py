"""Checks that a match is what its format says: checksums, ranges, and whether text looks random."""

# ruff: noqa: SIM905 - tables

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from itertools import pairwise
from math import log2

_DIGITS = re.compile(r"\D")

_CARD_LENGTHS = (
    (re.compile(r"4"), (16, 19)),
    (re.compile(r"5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720"), (16,)),
    (re.compile(r"3[47]"), (15,)),
    (re.compile(r"6011|65|64[4-9]"), (16, 19)),
    (re.compile(r"35(?:2[89]|[3-8])"), (16, 19)),
    (re.compile(r"3(?:0[0-5]|095|[689])"), (14, 16, 19)),
    (re.compile(r"62|81"), (16, 19)),
)
"""The prefixes of card numbers and their lengths: Visa, Mastercard, Amex, Discover, JCB, Diners, UnionPay."""

_IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29,
    "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29,
    "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28,
    "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20,
    "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19,
    "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29,
    "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24,
    "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
    "YE": 30,
}  # fmt: skip

_CALLING_CODES = frozenset(
    "1 7 20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 66 81 82 84 86"
    " 90 91 92 93 94 95 98 211 212 213 216 218 220 221 222 223 224 225 226 227 228 229 230 231 232 233 234 235 236 237"
    " 238 239 240 241 242 243 244 245 246 248 249 250 251 252 253 254 255 256 257 258 260 261 262 263 264 265 266 267"
    " 268 269 290 291 297 298 299 350 351 352 353 354 355 356 357 358 359 370 371 372 373 374 375 376 377 378 380 381"
    " 382 383 385 386 387 389 420 421 423 500 501 502 503 504 505 506 507 508 509 590 591 592 593 594 595 596 597 598"
    " 599 670 672 673 674 675 676 677 678 679 680 681 682 683 685 686 687 688 689 690 691 692 850 852 853 855 856 880"
    " 886 960 961 962 963 964 965 966 967 968 970 971 972 973 974 975 976 977 992 993 994 995 996 998".split()
)

_NOT_DOMAINS = frozenset(
    "png jpg jpeg gif svg webp ico css js mjs ts tsx jsx json py md txt html htm xml yaml yml toml rs go java rb sh log"
    " csv pdf service socket target timer mount slice scope local localdomain internal lan invalid".split()
)
"""Endings of files, of units of systemd and of private networks: `icon@2x.png` and `getty@tty1.service` are no
addresses."""

_PLACEHOLDER = re.compile(
    r"[<\[(][A-Za-z_.: -]*[>\])]|\$?\{[\w.: -]*\}|\$?\{\{[\w.: -]*\}\}|\$[A-Z_][A-Z0-9_]*|%[A-Z_]+%|(.)\1*"
    r"|(?:your|my|the|some|example|sample|dummy|fake|test|change|insert|replace|redacted"
    r"|placeholder|secret|password|none|null|undefined|true|false|todo|n/?a)(?:[-_ .].*|me|here)?|.*(?:\.\.\.|…).*"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}.*|[a-z][a-z0-9+.-]*://.*|[.~]{0,2}/.*"
    r"|(?:ctrl|control|alt|option|shift|cmd|command|meta|super|win|fn)\+.*"
    r"|(?:os|env|process|config|settings|self|cfg|args|vault|secrets|var|local)[.\[(:].*",
    re.IGNORECASE | re.DOTALL,
)
"""Values that stand for a secret and are none: `<token>`, `${TOKEN}`, `your-api-key`, `xxxx`, `os.environ[…]`."""

_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
"""A name in code, `settings.api_token_2`: looked at part by part."""

_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")


def is_card(text: str) -> bool:
    """Whether digits are the number of a card: of a known issuer, of its length, with the right Luhn digit."""
    digits = _DIGITS.sub("", text)
    if not any(prefix.match(digits) and len(digits) in lengths for prefix, lengths in _CARD_LENGTHS):
        return False
    doubled = sum(sum(divmod(2 * int(each), 10)) for each in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + doubled) % 10 == 0 and len(set(digits)) > 1


def is_iban(text: str) -> bool:
    """Whether text is an IBAN of its country's length, with the right check digits."""
    plain = "".join(text.split()).upper()
    if _IBAN_LENGTHS.get(plain[:2]) != len(plain):
        return False
    return int("".join(str(int(each, 36)) for each in plain[4:] + plain[:4])) % 97 == 1


def is_public_ip(text: str) -> bool:
    """Whether text is an IP address that is routed in the internet: others belong to nobody."""
    try:
        return (IPv6Address if ":" in text else IPv4Address)(text).is_global
    except AddressValueError:
        return False


def is_phone(text: str) -> bool:
    """Whether text that starts with `+` is a phone number, by its calling code and its number of digits."""
    digits = _DIGITS.sub("", text)
    if not 8 <= len(digits) <= 15:
        return False
    if digits[0] == "1":
        return len(digits) == 11 and digits[1] in "23456789" and digits[4] in "23456789"
    return any(digits[:length] in _CALLING_CODES for length in (1, 2, 3))


def is_dialled(text: str) -> bool:
    """Whether text that starts with `00` is a phone number."""
    return is_phone(_DIGITS.sub("", text)[2:])


def is_foreign_email(text: str) -> bool:
    """Whether text of that form is an address of e-mail with letters that are not of ASCII."""
    return not text.isascii() and not text[-1].isdigit() and is_email(text)


def is_email(text: str) -> bool:
    """Whether text of that form is an address of e-mail, and not the name of a file or of a repository."""
    local, _, domain = text.rpartition("@")
    return local != "git" and domain.rpartition(".")[2].lower() not in _NOT_DOMAINS and ".." not in text


def is_value(text: str) -> bool:
    """Whether text is a value, and not a placeholder for one."""
    return len(text) >= 4 and _PLACEHOLDER.fullmatch(text[:200]) is None


_SPECIMEN = re.compile(r"([B-Za-z0-9*])\1{7}|EXAMPLE|example")
"""Text in place of keys in documents. Runs of `A` and `/` are zeros and ones in base64: real keys have them, too."""


def is_genuine(text: str) -> bool:
    """Whether text in the format of a key is one, and not a specimen from a document."""
    return _SPECIMEN.search(text) is None


_PUBLIC_ID = re.compile(
    r"(?:chatcmpl|cmpl|msg|run|call|toolu|srvtoolu|resp|req|thread|asst|file|vs|fs|rs|fc|ws|batch|ftjob|gen|item|evt|cus"
    r"|pi|ch|in|sub|prod|price|sha(?:1|256|384|512))[-_]|AAAA[BCE]|iVBORw0KGgo|/9j/|R0lGOD|JVBERi0|UEsDB|H4sI"
)
"""The start of ids that models and services give to what they return, of hashes, of public keys and of files."""


def is_token(text: str) -> bool:
    """Whether text without a name looks like a secret: random, and not one of the random texts that are none."""
    return _PUBLIC_ID.match(text) is None and is_random(text) and not _is_encoded_text(text)


def is_basic(text: str) -> bool:
    """Whether the word after `Basic` is a name and a password."""
    name, between, password = _decode_text(text).partition(":")
    return bool(between and (name or password))


_WORDS = re.compile(r"[\s:;,=\"'&?]+")


def _is_encoded_text(text: str) -> bool:
    """Whether text is the base64 of text that has no secret."""
    decoded = _decode_text(text)
    return bool(decoded) and not any(len(word) >= 8 and is_password(word) for word in _WORDS.split(decoded))


def _decode_text(text: str) -> str:
    """Return the text that is encoded as base64; none if it is none."""
    try:
        padded = text.rstrip("=")
        decoded = urlsafe_b64decode(padded.translate(_URL_SAFE) + "=" * (-len(padded) % 4)).decode()
    except ValueError:
        return ""
    return decoded if all(map(_is_printed, decoded)) else ""


_URL_SAFE = str.maketrans("+/", "-_")


def _is_printed(each: str) -> bool:
    return each.isprintable() or each.isspace()


def is_bearer(text: str) -> bool:
    """Whether the word after `Bearer` is a token: a long one with letters and digits, or one that looks like a
    password."""
    return is_password(text) or (len(text) >= 16 and _is_mixed(text) and is_value(text))


def _is_mixed(text: str) -> bool:
    return any(map(str.isdigit, text)) and any(map(str.isalpha, text))


def is_random(text: str) -> bool:
    """Whether letters and digits look random: their kinds follow each other as they hardly do in names such as
    `parseHttp2Header` or `MAX_SIZE_64`."""
    if text.islower() or text.isupper():
        return False
    kinds = "".join("d" if each.isdigit() else "u" if each.isupper() else "l" for each in text if each.isalnum())
    if "d" not in kinds or "u" not in kinds or "l" not in kinds:
        return False
    odd = sum(pair in _ODD_PAIRS for pair in pairwise(kinds))
    return odd >= max(2, 0.17 * len(kinds)) and entropy(text) >= min(3.5, 0.7 * log2(len(text)))


_ODD_PAIRS = frozenset({("u", "u"), ("u", "d"), ("d", "l"), ("d", "u")})


def is_password(text: str) -> bool:
    """Whether text that is named a secret in running text is one: a mixture that no word is."""
    if not is_value(text):
        return False
    if _ATTRIBUTE.fullmatch(text):
        text = max(text.split("."), key=len)
    if _HEX.fullmatch(text):
        return len(text) >= 16 and not text.isdigit()
    if not any(map(str.isalpha, text)):
        return False
    if _is_mixed(text) and any(each in "!@#$%^&*?~+" for each in text):
        return True
    # Digits at the end alone are also those of names.
    return _count_odd(text) >= max(2 if _is_mixed(text.rstrip("0123456789")) else 3, 0.12 * len(text))


_CAMEL = re.compile(r"[A-Za-z][a-z]+[0-9]?[A-Z][a-z]{2,}")


def is_chosen_password(text: str) -> bool:
    """Whether text that is named a password is one, also one that is easy to remember: `harbour2024`, and no name in
    code."""
    if is_password(text):
        return True
    return text.isalnum() and _is_mixed(text) and is_value(text) and not (_HEX.fullmatch(text) or _CAMEL.search(text))


def _count_odd(text: str) -> int:
    """Return how many pairs of characters follow each other as they hardly do in names such as `parseHttp2Header`:
    letters after digits, digits after single capitals, and pairs of letters that words do not have."""
    count = 0
    for part in _PARTS.findall(text):
        before = "A"
        for first, second in pairwise(part):
            if first.isdigit() or second.isdigit():
                count += not second.isdigit() or (first.isupper() and not before.isupper())
            elif first.isupper() or second.islower():
                count += (first + second).lower() in _RARE
            before = first
    return count


_PARTS = re.compile(r"[A-Za-z0-9]+")
_RARE = frozenset(
    each[0] + second
    for each in "ajoq bfhknqvwxz cbgjnqvwxz dhjkqwxz ej fbhjkmnpqvwxz gbdfjkpqtvwxyz hbcdfghjkpqvwxz ihijquwy"
    " jbcdfghijklmnpqrstvwxyz kbcdfghjkmpqtvxyz lhjqwxz mcfghjkqrvwxz njqxz ohjqz pbjkmnqvwxz"
    " qabcdefghijklmnopqrstvwxyz rhjqxz sbjqxz tgjkqx uhjkquvwxyz vbcdfghjklmnpqrstuvwxyz wbcdfgjkmpqtuvwxyz"
    " xbghjklmnoqrsuvwyz ybdfghjkquvwxyz zbcdfghjklmnpqrstuvwxyz".split()
    for second in each[1:]
)
"""Pairs of letters of which there are fewer than 20 in 100,000 in the words of documents and programs: each word here
is a letter, and those that hardly follow it."""


@lru_cache(1024)
def entropy(text: str) -> float:
    """Return the bits of information in a character, by the frequencies of characters in the text."""
    size = len(text)
    return -sum((count / size) * log2(count / size) for count in map(text.count, set(text)))

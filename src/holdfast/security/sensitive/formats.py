"""The formats that are detected: one row each, in the form that the provider documents.

A pattern is only tried on text that contains one of its `anchors`, and a word of the length that it needs: ordinary
prose costs little. All quantifiers that could overlap with what follows are possessive, or bounded: the time is linear
in the length of the text. Texts are joined by `BETWEEN`, which no pattern matches.
"""

# ruff: noqa: E501 - a row is a line

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from holdfast._named_tuple import NamedTuple
from holdfast.security.sensitive import checks

CREDENTIALS: Final = "credentials"
PERSONAL: Final = "personal"
GROUPS: Final = (CREDENTIALS, PERSONAL)

FIELD: Final = "field"
"""The format of text in a field that is named like a secret."""

BY_NAME: Final = frozenset({FIELD, "high-entropy", "named-secret"})
"""Formats that nothing but a name tells from random text."""

BETWEEN: Final = "\x1f"
"""Separates texts that are searched together. It counts as white space."""

LONG: Final = 12
"""Words of fewer characters have no credential."""

BEFORE: Final = 48
"""How many characters before a match are searched for a word that names a secret."""

_START, _END = r"(?<![A-Za-z0-9_])", r"(?![A-Za-z0-9])"

Check = Callable[[str], bool]


class Format(NamedTuple):
    """A format of sensitive data."""

    name: str
    group: str
    pattern: re.Pattern[str]
    """If it has a group, that is the sensitive part."""
    anchors: tuple[str, ...]
    """Texts of which one is in every match; none, if every text is searched. In lower case for `folded` formats."""
    check: Check | None = None
    folded: bool = False
    """Whether the anchors are compared with the text in lower case."""
    in_word: bool = False
    """Whether every match is in one word: in a text of at least `LONG` characters without white space."""
    min_digits: int = 0
    """How many digits the text has at least."""
    before: re.Pattern[str] | None = None
    """Found in the `BEFORE` characters before a match, in lower case."""


def _credential(
    name: str,
    pattern: str,
    *anchors: str,
    check: Check | None = None,
    bare: bool = False,
    folded: bool = False,
    in_word: bool = True,
    before: str = "",
) -> Format:
    """`bare` patterns have their own limits; others are not part of a longer word."""
    if check is None and in_word:
        check = checks.is_genuine
    whole = re.compile(pattern if bare else f"{_START}(?:{pattern}){_END}", re.IGNORECASE if folded else 0)
    named = re.compile(before) if before else None
    return Format(name, CREDENTIALS, whole, anchors, check, folded, in_word, 0, named)


def _personal(name: str, pattern: str, *anchors: str, check: Check | None = None, min_digits: int = 0) -> Format:
    return Format(name, PERSONAL, re.compile(pattern), anchors, check, min_digits=min_digits)


_WS = r"[ \t\r\n]"
_LETTERS = r"A-Za-z0-9\u00c0-\u024f\u0370-\u052f"
"""Latin letters, also those with accents; Greek and Cyrillic ones; and digits."""

_NAMING = ("pass", "pwd", "secret", "token", "key", "auth", "credential")
_NAMED = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|secret|(?<!page)(?<!page[-_ ])(?<!next[-_ ])(?<!continuation)token|(?:api|access|private|secret|account|auth|signing)[-_ ]?key"
    r"|authorization|auth|credential)s?(?:[-_0-9][a-z0-9_-]{0,20})?\\?[\"'`]?[ \t]{0,4}\Z"
)
_NAMED_AS_PASSWORD = r"(?:password|passwd|passphrase|passcode|pwd)s?\\?[\"'`]?[ \t]{0,4}\Z"  # noqa: S105 - a pattern
_VALUE = (
    r"[ \t]{0,4}(?:now |set to )?\\?[\"'`]?(?=[^0-9\s]{0,60}[0-9]|(?-i:\S{0,60}?[a-z][A-Z]))"
    r"([^\s\"'`,;&<>()\[\]{}\\=:]{8,4096}+={0,2})"
)
"""A value that may be a secret: it has a digit, or a capital after another letter, and nothing that starts another."""

_SAS = "(?:s[vepr]|skn|skoid)"
"""The other parameters of a signature of Azure: versions, times, rights, resources and names of keys."""

_SETTING = r"(?:user(?:name| ?id)?|uid|host|server|dbname|database|data ?source|port)[ ]?="
_CONNECTION_NAME = r"(?:password|passwd|pwd)[ ]?=[ ]?[\"']?"
_OPAQUE = r"((?:[^\s;&#\"'<>(){},]|,(?!\s)){4,256}+)"
"""A setting of a connection beside a password, the name of the latter, and the value, which need not look random."""

_BESIDE_NAME = r"(?:(?<![=:])|(?<![a-z0-9_/?&#.%@:=+-])[a-z_][a-z0-9_.-]{0,40}[=:])\Z"
"""Nothing that names a value, or a name of its own: no part of a URL."""

FORMATS: Final = (
    _credential("aws-access-key-id", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}", "AKIA", "ASIA", "ABIA", "ACCA"),
    _credential("aws-session-token", r"(?:IQoJb3JpZ2lu|FwoGZXIvYXdz)[A-Za-z0-9+/%]{80,}+={0,2}", "IQoJb3JpZ2lu", "FwoGZXIvYXdz"),
    _credential("aws-bedrock-key", r"(?:ABSK|bedrock-api-key-)[A-Za-z0-9+/]{80,}+={0,2}", "ABSK", "bedrock-api-key-"),
    _credential("gcp-api-key", r"AIza[A-Za-z0-9_-]{35}", "AIza"),
    _credential("gcp-oauth-token", r"ya29\.[A-Za-z0-9_.-]{20,}+", "ya29."),
    _credential("gcp-client-secret", r"GOCSPX-[A-Za-z0-9_-]{20,}+", "GOCSPX-"),
    _credential("gcp-refresh-token", r"1//0[A-Za-z0-9_-]{30,}+", "1//0"),
    _credential("azure-client-secret", r"[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}", "Q~"),
    _credential("azure-key", r"(?:Account|SharedAccess)Key=([A-Za-z0-9+/]{40,88}+={0,2})", "AccountKey=", "AccessKey="),
    _credential("azure-key", r"[A-Za-z0-9]{52}JQQJ99[A-Za-z0-9]{18,26}(?:={0,2})", "JQQJ99"),
    _credential("azure-sas", rf"[?&;= ]{_SAS}=[^\s\"'<>]{{1,600}}?[&;]sig=([A-Za-z0-9%+/]{{40,100}}+={{0,2}})", "sig=", bare=True, in_word=False, check=checks.is_genuine),
    _credential("azure-sas", rf"[?&; ]sig=([A-Za-z0-9%+/]{{40,100}}+={{0,2}})(?=[&;](?:[^\s\"'<>]{{0,600}}?[&;])?{_SAS}=)", "sig=", bare=True, in_word=False, check=checks.is_genuine),
    _credential("github-token", r"gh[pousr]_[A-Za-z0-9_]{36,}+(?:\.[A-Za-z0-9_-]++){0,2}", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    _credential("github-token", r"github_pat_[A-Za-z0-9_]{22,}+", "github_pat_"),
    _credential(
        "gitlab-token", r"gl(?:pat|dt|rt|rtr|ptt|ft|imt|agent|oas|soat|cbt|ffct|wt)-[A-Za-z0-9_-]{20,}+(?:\.[A-Za-z0-9_-]++){0,2}",
        "glpat-", "gldt-", "glrt-", "glrtr-", "glptt-", "glft-", "glimt-", "glagent-", "gloas-", "glsoat-", "glcbt-", "glffct-", "glwt-",
    ),
    _credential("slack-token", r"xox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}+|xapp-[0-9]-[A-Za-z0-9-]{10,}+", "xox", "xapp-"),
    _credential("slack-webhook", r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{40,}+", "hooks.slack.com"),
    _credential("stripe-key", r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}+|whsec_[A-Za-z0-9+/]{24,}+={0,2}", "k_live_", "k_test_", "whsec_"),
    _credential("openai-key", r"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}+|sk-[A-Za-z0-9]{32,}+", "sk-"),
    _credential("anthropic-key", r"sk-ant-[a-z0-9]{3,10}-[A-Za-z0-9_-]{20,}+", "sk-ant-"),
    _credential("openrouter-key", r"sk-(?:or|lf)-[A-Za-z0-9_-]{20,}+", "sk-or-", "sk-lf-"),
    _credential("huggingface-token", r"(?:hf_|api_org_)[A-Za-z0-9]{30,}+", "hf_", "api_org_"),
    _credential("npm-token", r"npm_[A-Za-z0-9]{36}", "npm_"),
    _credential("pypi-token", r"pypi-AgE[A-Za-z0-9_-]{50,}+", "pypi-AgE"),
    _credential("sendgrid-key", r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{30,64}", "SG."),
    _credential("twilio-key", r"SK[0-9a-f]{32}", "SK"),
    _credential("telegram-token", r"[0-9]{8,12}:AA[A-Za-z0-9_-]{32,34}", ":AA"),
    _credential("discord-token", r"[MNO][A-Za-z0-9_-]{22,28}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}", "MT", "Mj", "Mz", "ND", "NT", "Nj", "Nz", "OD", "OT"),
    _credential("discord-webhook", r"discord(?:app)?\.com/api/webhooks/[0-9]{17,20}/[A-Za-z0-9_-]{60,}+", "/api/webhooks/"),
    _credential("groq-key", r"gsk_[A-Za-z0-9]{30,}+", "gsk_"),
    _credential("xai-key", r"xai-[A-Za-z0-9]{30,}+", "xai-"),
    _credential("langsmith-key", r"lsv2_(?:pt|sk)_[a-f0-9]{32}[a-z0-9_]*+", "lsv2_"),
    _credential("replicate-token", r"r8_[A-Za-z0-9]{37,40}", "r8_"),
    _credential("nvidia-key", r"nvapi-[A-Za-z0-9_-]{40,}+", "nvapi-"),
    _credential("tavily-key", r"tvly-[A-Za-z0-9_-]{24,}+", "tvly-"),
    _credential("perplexity-key", r"pplx-[A-Za-z0-9]{40,}+", "pplx-"),
    _credential("digitalocean-token", r"do[opr]_v1_[a-f0-9]{64}", "_v1_"),
    _credential("databricks-token", r"dapi[a-f0-9]{32}(?:-[0-9])?", "dapi"),
    _credential("shopify-token", r"shp(?:at|ca|pa|ss|tka)_[a-fA-F0-9]{32}", "shp"),
    _credential("vault-token", r"hv[sb]\.[A-Za-z0-9_-]{24,}+", "hvs.", "hvb."),
    _credential("supabase-key", r"(?:sbp_[a-f0-9]{40}|sb_secret_[A-Za-z0-9_-]{20,}+)", "sbp_", "sb_secret_"),
    _credential("atlassian-token", r"AT[AC]TT3[A-Za-z0-9_=-]{60,}+|ATBB[A-Za-z0-9]{32}", "ATATT3", "ATCTT3", "ATBB"),
    _credential("sentry-token", r"sntrys_[A-Za-z0-9+/=_-]{40,}+|sntryu_[a-f0-9]{64}", "sntrys_", "sntryu_"),
    _credential("newrelic-key", r"NRAK-[A-Z0-9]{27}|NRII-[A-Za-z0-9_-]{32}|[a-f0-9x]{36}NRAL", "NRAK-", "NRII-", "NRAL"),
    _credential("mailgun-key", r"key-[a-f0-9]{32}", "key-"),
    _credential("doppler-token", r"dp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{1,40}\.)?[A-Za-z0-9]{40,44}", "dp."),
    _credential("hubspot-token", r"pat-[a-z]{2}[0-9]-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "pat-"),
    _credential("airtable-token", r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}", "pat"),
    _credential("terraform-token", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{60,}+", ".atlasv1."),
    _credential("mapbox-token", r"[st]k\.eyJ[A-Za-z0-9_-]{20,}+\.[A-Za-z0-9_-]{20,}+", "k.eyJ"),
    _credential("dropbox-token", r"sl\.(?:u\.)?[A-Za-z0-9_-]{120,}+", "sl."),
    _credential("fly-token", r"(?:FlyV1 )?fm[12][a-z]?_[A-Za-z0-9+/_-]{80,}+={0,2}(?:,fm[12][a-z]?_[A-Za-z0-9+/_-]{80,}+={0,2}){0,9}|fo1_[A-Za-z0-9_-]{40,}+", "fm1", "fm2", "fo1_"),
    _credential("rubygems-key", r"rubygems_[a-f0-9]{48}", "rubygems_"),
    _credential("linear-key", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}+", "lin_api_", "lin_oauth_"),
    _credential("notion-token", r"ntn_[A-Za-z0-9]{40,}+", "ntn_"),
    _credential("docker-token", r"dckr_[po]at_[A-Za-z0-9_-]{27,}+", "dckr_"),
    _credential("grafana-token", r"glsa_[A-Za-z0-9]{32}_[a-f0-9]{8}|glc_eyJ[A-Za-z0-9+/]{40,}+={0,2}", "glsa_", "glc_eyJ"),
    _credential("pinecone-key", r"pcsk_[A-Za-z0-9]{4,8}_[A-Za-z0-9]{50,}+", "pcsk_"),
    _credential("figma-token", r"fig[dor]_[A-Za-z0-9_-]{38,}+", "figd_", "figo_", "figr_"),
    _credential("postman-key", r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}", "PMAK-"),
    _credential("brevo-key", r"xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}", "xkeysib-"),
    _credential("planetscale-token", r"pscale_(?:tkn|oauth|pw)_[A-Za-z0-9_.-]{32,}+", "pscale_"),
    _credential("jwt", r"eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]{4,}+){2,4}", "eyJ"),
    _credential(
        "private-key",
        r"-----BEGIN (?:[A-Z0-9]++ ){0,4}?PRIVATE KEY(?: BLOCK)?-----(?:(?!-----)[^\x1f]){0,16384}+(?:-----END [A-Z0-9 ]{1,60}-----)?",
        "PRIVATE KEY", bare=True, in_word=False,
    ),
    _credential("private-key", r"AGE-SECRET-KEY-1[A-Z0-9]{58}|PuTTY-User-Key-File-[0-9]: [^\x1f]{0,16384}+", "AGE-SECRET-KEY-", "PuTTY-User-Key-File", bare=True, in_word=False),
    _credential("connection-string", _START + r"[A-Za-z][A-Za-z0-9+.-]{1,30}://[^\s/?#@:'\"<>]{0,256}:([^\s/?#@'\"<>]{1,256}+)@", "://", check=checks.is_value, bare=True, in_word=False),
    _credential("connection-string", rf"[?&]{_CONNECTION_NAME}{_OPAQUE}", "password=", "passwd=", "pwd=", check=checks.is_value, bare=True, folded=True, in_word=False),
    _credential("connection-string", _START + _CONNECTION_NAME + _OPAQUE, "password", "passwd", "pwd", check=checks.is_value, bare=True, folded=True, in_word=False, before=_SETTING + r"[^,]{1,46}[;& ]\Z"),
    _credential("connection-string", rf"{_START}{_CONNECTION_NAME}{_OPAQUE}(?=[\"']?[; ]{_SETTING})", "password", "passwd", "pwd", check=checks.is_value, bare=True, folded=True, in_word=False),
    _credential("bearer-token", _START + rf"basic{_WS}{{1,4}}([A-Za-z0-9+/_-]{{8,4096}}+={{0,2}})", "basic ", check=checks.is_basic, bare=True, folded=True, in_word=False),
    _credential("bearer-token", _START + rf"bearer{_WS}{{1,4}}([A-Za-z0-9+/_.~-]{{8,4096}}+={{0,2}})", "bearer ", check=checks.is_bearer, bare=True, folded=True, in_word=False),
    _credential("named-secret", rf"(?:[=:]>?| is )(?={_VALUE})", *_NAMING, check=checks.is_password, bare=True, folded=True, in_word=False, before=_NAMED),
    _credential("named-secret", rf"(?:[=:]>?| is )(?={_VALUE}(?![(\[]))", "pass", "pwd", check=checks.is_chosen_password, bare=True, folded=True, in_word=False, before=_NAMED_AS_PASSWORD),
    _credential("high-entropy", r"(?<![A-Za-z0-9+/_.%@#?&-])(?<!base64,)[A-Za-z0-9+/_-]{32,2048}+={0,2}(?![A-Za-z0-9+/_=%@:-]|\.[A-Za-z0-9])", check=checks.is_token, bare=True, before=_BESIDE_NAME),
    _personal("email", r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9_%+-](?:[A-Za-z0-9._%+-]{0,63})@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9-])", "@", check=checks.is_email),
    _personal("email", rf"(?<![{_LETTERS}._%+-])[{_LETTERS}_%+-](?:[{_LETTERS}._%+-]{{0,63}})@(?:[{_LETTERS}-]{{1,63}}\.){{1,8}}[{_LETTERS}]{{2,24}}(?![{_LETTERS}-])", "@", check=checks.is_foreign_email),
    _personal("phone", r"(?<![\w+.])\+[1-9](?:[ ().-]{0,2}[0-9]){7,14}(?![\w-])", "+", check=checks.is_phone, min_digits=8),
    _personal("phone", r"(?<![\w+./-])(?<![0-9] )00[1-9][0-9]{0,2}[ /.-]{1,2}\(?[0-9](?:[ ()./-]{0,2}[0-9]){5,12}(?![\w-])", "00", check=checks.is_dialled, min_digits=10),
    _personal("phone", r"(?<![\w.+/-])(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[.-][0-9]{4}(?![\w-]|\.[0-9])", "-", ".", min_digits=10),
    _personal("card", r"(?<![\w.+-])[2-68](?:[ -]?[0-9]){12,18}(?![\w-]|\.[0-9])", check=checks.is_card, min_digits=14),
    _personal("iban", r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,30}(?![A-Za-z0-9])", check=checks.is_iban, min_digits=10),
    _personal("iban", r"(?<![A-Za-z0-9])[a-z]{2}[0-9]{2}(?:[a-z0-9]{11,30}+|(?: [a-z0-9]{4}){2,7}(?: [a-z0-9]{1,3})?)(?![A-Za-z0-9])", check=checks.is_iban, min_digits=10),
    _personal("ip", r"(?<![\w.-])(?<![^/]/)(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w-]|\.[0-9])", ".", check=checks.is_public_ip, min_digits=4),
    _personal("ip", r"(?<![\w:.])[23][0-9a-fA-F]{3}:[0-9a-fA-F:]{2,34}(?![\w:])", ":", check=checks.is_public_ip, min_digits=4),
)  # fmt: skip
"""All formats; where two match the same text, the first one counts."""

NAMES: Final = (*dict.fromkeys(each.name for each in FORMATS), FIELD)

_SEPARATORS = re.compile(r"[-_. ]+")
_SECRET_NAME = re.compile(
    r"(?:.*(?:password|passwd|passphrase|passcode|secret|apikey|secretkey|privatekey|accesskey|accountkey|signingkey"
    r"|encryptionkey|masterkey|clientkey|sharedkey|authkey|connectionstring|credentials?)|pwd|.*[a-z]pwd|authorization"
    r"|proxyauthorization|xapikey|cookies?|setcookie|(?:.*(?:access|auth|bearer|refresh|session|api|id|bot|personal"
    r"|deploy|private|secret|csrf|jwt|hf|gh|npm|pypi|slack|user|app|service|device|push|webhook|security|reset))?token"
    r"|secrets|passwords|apikeys|cvv|cvc|otp|totpsecret|recoverycodes?|mnemonic|seedphrase)"
)


@lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Whether a field of this name has a secret: `password`, `apiKey`, `DB_PASSWORD`, `x-api-key`, `authorization`."""
    return len(name) <= 100 and _SECRET_NAME.fullmatch(_SEPARATORS.sub("", name).lower()) is not None


CONTAINERS: Final = frozenset({"secrets", "credentials", "passwords", "api_keys", "apiKeys"})
"""The names of dicts in which every text is a secret, whatever its own name."""

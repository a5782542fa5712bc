"""Code in colours: comments, strings, numbers and the words of the language, found by one expression."""

from __future__ import annotations

import re
from functools import cache

from markupsafe import Markup, escape

_HASH, _SLASHES, _DASHES = r"#[^\n]*", r"//[^\n]*|/\*[\s\S]*?\*/", r"--[^\n]*"
_STRING = r"""\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`"""
_WORDS = {
    "python": "and as assert async await break class continue def del elif else except finally for from global if "
    "import in is lambda None nonlocal not or pass raise return True False try while with yield match case",
    "script": "abstract async await break case catch class const continue default do else enum export extends false "
    "finally for from function if implements import in interface let new null of private public return static super "
    "switch this throw true try type typeof undefined var void while yield",
    "c": "auto bool break case catch char class const continue default defer do double else enum extern false final "
    "float fn for func go goto if impl import int interface let long loop match mod mut namespace new nil null package "
    "private protected pub public return self short signed sizeof static string struct switch template this throw "
    "trait true try type typedef union unsigned use using var virtual void volatile while",
    "sql": "add all alter and as asc between by case create cross delete desc distinct drop else end exists from full "
    "group having if in index inner insert into is join key left like limit not null on or order outer primary "
    "references right select set table then union unique update values view when where with",
    "shell": "case do done elif else esac exit export fi for function if in local return then until while",
    "data": "true false null yes no on off",
}
_LANGUAGES = {
    **dict.fromkeys(("python", "py", "python3", "pycon"), ("python", _HASH)),
    **dict.fromkeys(("javascript", "js", "jsx", "typescript", "ts", "tsx", "json5"), ("script", _SLASHES)),
    **dict.fromkeys(
        ("c", "cpp", "c++", "cs", "csharp", "go", "java", "kotlin", "rust", "rs", "swift", "scala", "php", "css"),
        ("c", _SLASHES),
    ),
    **dict.fromkeys(("sql", "postgres", "postgresql", "sqlite", "mysql"), ("sql", _DASHES)),
    "lua": ("c", _DASHES),
    **dict.fromkeys(("bash", "sh", "shell", "zsh", "console", "ruby", "rb"), ("shell", _HASH)),
    **dict.fromkeys(("yaml", "yml", "toml", "ini"), ("data", _HASH)),
    "json": ("data", _SLASHES),
}
_LONGEST = 50_000


@cache
def _expression(words: str, comment: str) -> re.Pattern[str]:
    flags = re.IGNORECASE if words == "sql" else re.NOFLAG
    names = "|".join(_WORDS[words].split())
    numbers = r"\b\d[\w.]*"
    return re.compile(rf"(?P<c>{comment})|(?P<s>{_STRING})|(?P<k>\b(?:{names})\b)|(?P<n>{numbers})", flags)


def colored_code(code: str, language: str) -> Markup:
    """Return code with its parts marked, as far as the language is known: `hc`, `hs`, `hk` and `hn` are the classes of
    comments, strings, words of the language and numbers."""
    known = _LANGUAGES.get(language.lower())
    if known is None or len(code) > _LONGEST:
        return escape(code)
    parts: list[Markup] = []
    at = 0
    for match in _expression(*known).finditer(code):
        parts += [
            escape(code[at : match.start()]),
            Markup('<span class="h{}">{}</span>').format(match.lastgroup, match[0]),
        ]
        at = match.end()
    return Markup("").join([*parts, escape(code[at:])])

"""A model of search: the same checkpoints in plain Python, and a naive evaluation of queries."""

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from holdfast import Store
from holdfast.history.query import And, Field, MatchAll, Not, Or, Query, TextTerm, walk


@dataclass
class Told:
    """A checkpoint as the test knows it: `texts` are channel, role and text of what it brought."""

    thread: str
    id: str
    step: int
    kind: str
    tags: list[str]
    metadata: dict[str, Any]
    texts: list[tuple[str, str, str]] = field(default_factory=list)


def brings(text: str, said: TextTerm) -> bool:
    """Whether a text has another one in it, character by character."""
    where, what = folded(text), folded(said.text)
    parts = what.split()
    for start in range(len(where) + 1):
        end: int | None = start
        for number, part in enumerate(parts):
            assert end is not None
            if number:
                gap = end
                while end < len(where) and where[end].isspace():
                    end += 1
                if end == gap:
                    break
            if not where.startswith(part, end):
                break
            end += len(part)
        else:
            assert end is not None
            if not inside_word(where, start, parts[0][0], before=True) and (
                said.prefix or not inside_word(where, end, parts[-1][-1], before=False)
            ):
                return True
    return False


def folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def is_cjk(char: str) -> bool:
    return "\u3040" <= char <= "\u30ff" or "\u4e00" <= char <= "\u9fff"


def inside_word(text: str, place: int, edge: str, *, before: bool) -> bool:
    """Whether a place is between two characters of one word."""
    other = text[place - 1 : place] if before else text[place : place + 1]
    return bool(other) and other.isalnum() and edge.isalnum() and not is_cjk(other) and not is_cjk(edge)


def naive(query: Query, told: Told, where: tuple[tuple[Field, bool], ...] = ()) -> bool:
    """Whether a checkpoint matches."""
    match query:
        case MatchAll():
            return True
        case Not(inner):
            return not naive(inner, told, where)
        case Or(inner):
            return any(naive(each, told, where) for each in inner)
        case And(inner):
            text = any(isinstance(each, TextTerm) for each in walk(query))
            plain = [each for each in inner if isinstance(each, Field) and each.name in ("role", "channel")]
            negated = [
                each.query
                for each in inner
                if isinstance(each, Not) and isinstance(each.query, Field) and each.query.name in ("role", "channel")
            ]
            where = (*where, *((each, True) for each in plain), *((each, False) for each in negated))
            left = [each for each in inner if not (text and isinstance(each, Not) and each.query in negated)]
            return all(naive(each, told, where) for each in left)
        case TextTerm():
            return any(
                brings(text, query)
                for channel, role, text in told.texts
                if all(same(each, channel if each.name == "channel" else role) is wanted for each, wanted in where)
            )
        case Field("role"):
            return any(same(query, role) for _, role, _ in told.texts if role)
        case Field("channel"):
            return any(same(query, channel) for channel, _, _ in told.texts)
        case Field("label"):
            return any(same(query, tag) for tag in told.tags)
        case Field("thread" | "kind" as name):
            return same(query, getattr(told, name))
        case Field("step", operator, value):
            tests = {":": told.step == int(value), ">": told.step > int(value), "<=": told.step <= int(value)}
            return tests[operator] if operator in tests else told.step != int(value)
        case Field("meta", operator, value, (key,)):
            return str(told.metadata.get(key)) == value
    raise AssertionError(query)


def same(asked: Field, value: str) -> bool:
    wanted = {"human": "user", "ai": "assistant"}.get(asked.value, asked.value) if asked.name == "role" else asked.value
    return re.fullmatch(re.escape(wanted).replace(r"\*", ".*"), value) is not None


def everything(store: Store, query: str, limit: int = 7) -> list[tuple[str, str]]:
    """All that matches, page by page: threads and ids."""
    found: list[tuple[str, str]] = []
    after = None
    while True:
        page = store.search(query, limit=limit, cursor=after)
        assert page.unreadable == 0
        found += ((match.thread, match.id) for match in page)
        after = page.next
        if after is None:
            return found
        assert len(page) == limit

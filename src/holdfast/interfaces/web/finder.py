"""The search of the palette: views, threads, agents and scopes by their names, and checkpoints by words in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from holdfast.errors import HoldfastError
from holdfast.history.query import Field
from holdfast.interfaces.cli.formatting import plural
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import search
from holdfast.interfaces.web.page_renderer import segment

_EACH = 6
_FIRST = 100
"""In a store with at most so many threads, they are found by their names in small or capital letters."""

_SCANNED = 100
"""How many checkpoints are read where there is no index: each key that is typed searches, and the page of the search
goes on."""

FoundLink = tuple[str, str, str]
"""An address, its text, and a detail."""


def find_values(call: Call, query: str, views: Sequence[tuple[str, str]]) -> list[tuple[str, list[FoundLink]]]:
    """Return what matches a text, in groups."""
    word = query.casefold()
    groups = [
        ("Views", iter([(address, name, "") for address, name in views if word in name.casefold()])),
        ("Threads", _threads(call, query)),
        ("Agents", _agents(call, query)),
        ("State", _scopes(call, query)),
        ("Checkpoints", _checkpoints(call, query)),
    ]
    found = [(title, _first(links)) for title, links in groups]
    return [(title, links) for title, links in found if links]


def _first(links: Iterator[FoundLink]) -> list[FoundLink]:
    """Return the first links of a group; none where the query is no query, or the caller may not see them."""
    try:
        return list(islice(links, _EACH))
    except HoldfastError:
        return []


def _threads(call: Call, query: str) -> Iterator[FoundLink]:
    found = list(call.store.threads(prefix=query, limit=_EACH))
    if query and len(found) < _EACH:
        first = call.store.threads(limit=_FIRST)
        within = [each for each in first if query.casefold() in each.name.casefold()]
        if first.next is not None:
            within = call.store.threads(where=str(Field("thread", ":", f"*{query}*")), limit=_EACH)
        seen = {each.thread for each in found}
        found += [each for each in within if each.thread not in seen]
    for each in found:
        yield f"/threads/{segment(each.thread)}", each.name, plural(each.steps, "step")


def _agents(call: Call, query: str) -> Iterator[FoundLink]:
    for each in call.store.agents.list(prefix=query, limit=_EACH):
        yield f"/agents/{segment(each.id)}", each.id, each.status


def _scopes(call: Call, query: str) -> Iterator[FoundLink]:
    for each in call.store.scopes(query, limit=_EACH):
        scope = str(each.scope) or "global"
        yield f"/state/{segment(scope)}", scope, f"{each.keys} keys"


def _checkpoints(call: Call, query: str) -> Iterator[FoundLink]:
    if not query:
        return
    for each in search(call, query=query, limit=_EACH, scan_limit=_SCANNED).items:
        excerpt = each.hits[0].excerpt if each.hits else f"{each.thread} #{each.step}"
        yield f"/threads/{segment(each.thread)}/{segment(each.id)}", excerpt, f"{each.thread} #{each.step}"
    yield f"/search?q={segment(query)}", f"All checkpoints with {query}", ""

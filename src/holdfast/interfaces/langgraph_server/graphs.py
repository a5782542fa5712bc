"""The graphs that are served, by the names under which clients and workers know them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from langgraph.pregel import Pregel

from holdfast.errors import ConfigError, InvalidError, NotFoundError
from holdfast.interfaces.langgraph.item_store import HoldfastStore
from holdfast.interfaces.langgraph.replayer import load_graph
from holdfast.interfaces.langgraph.saver import HoldfastSaver
from holdfast.store.identity_view import IdentityView
from holdfast.store.store import Store

_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The namespace in which LangGraph's own server makes the ids of assistants from the names of graphs."""


class ServedGraphs:
    """Graphs by name, each of which reads and saves through the view of whoever calls."""

    def __init__(self, graphs: Mapping[str, Pregel[Any, Any, Any, Any]], *known: str) -> None:
        """Graphs that are served, and the names of those that workers elsewhere have."""
        self._graphs = dict(graphs)
        self._items = next((each.store for each in graphs.values() if isinstance(each.store, HoldfastStore)), None)
        self.names = [*graphs, *known]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def of(self, name: str, view: Store | IdentityView) -> Pregel[Any, Any, Any, Any]:
        """Return a graph over a store as a caller sees it. `NotFoundError` if none of the name is served."""
        found = self._graphs.get(name)
        if found is None:
            raise NotFoundError(
                "no graph of this name is served", where=repr(name)[:80], hint=f"There are: {', '.join(self._graphs)}"
            )
        return found.copy(update={"checkpointer": HoldfastSaver(view)})

    def items(self, view: Store | IdentityView) -> HoldfastStore:
        """Return the store of items of the graphs as a caller sees it: with the index, the times to live and the
        namespaces of users of the first graph that has one of this store."""
        return HoldfastStore(view) if self._items is None else self._items.seen_by(view)


def assistant_id(graph: str) -> str:
    """Return the id of the assistant that every graph has."""
    return str(uuid5(_NAMESPACE, graph))


def load_graphs(store: Store, places: Iterable[tuple[str, str, Any]]) -> dict[str, Pregel[Any, Any, Any, Any]]:
    """Return graphs by name, of a name, where it is, and what was found there. One without a name has that with which
    it was compiled, if that is its own, or that of its variable."""
    found: dict[str, Pregel[Any, Any, Any, Any]] = {}
    saver, items = HoldfastSaver(store), HoldfastStore(store)
    for given, place, code in places:
        graph = load_graph(place, code, saver)
        if graph.store is None:
            graph = graph.copy(update={"store": items})
        own = str(graph.name or "")
        name = given or (own if own not in ("", "LangGraph") else place.rpartition(":")[2])
        if name in found:
            raise InvalidError(f"two graphs have the name {name!r}", hint="Name them: --graph support=app.py:graph")
        found[name] = graph
    return found


def places_in(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return names and places of graphs: `support=app.py:graph`, `app.py:graph`, or those in a `langgraph.json`."""
    found: list[tuple[str, str]] = []
    for text in texts:
        if text.endswith(".json"):
            found += _declared(Path(text))
            continue
        name, equals, place = text.partition("=")
        found.append((name, place) if equals else ("", text))
    return found


def _declared(file: Path) -> list[tuple[str, str]]:
    try:
        graphs = json.loads(file.read_text())["graphs"]
        places = {name: each if isinstance(each, str) else each["path"] for name, each in graphs.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the file names no graphs: {error}", where=str(file), hint='{"graphs": {"support": "./app.py:graph"}}'
        ) from error
    return [
        (name, str(file.parent / place) if place.partition(":")[0].endswith(".py") else place)
        for name, place in places.items()
    ]

"""The nodes of a graph that a migration renames."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import InvalidError


def require_nodes(nodes: object, where: str) -> dict[str, str]:
    """Require the new names of nodes by the old ones, each once. Raises `InvalidError`."""
    if nodes is None:
        return {}
    if not isinstance(nodes, Mapping) or not all(
        isinstance(each, str) and each for pair in nodes.items() for each in pair
    ):
        raise InvalidError(
            "nodes is a dict with the new names of nodes by the old ones",
            where=where,
            hint='Write nodes={"old": "new"}',
        )
    twice = {new for new in nodes.values() if list(nodes.values()).count(new) > 1}
    if twice:
        raise InvalidError(
            f"two nodes are renamed to {min(twice)!r}, and a downgrade could not tell them apart",
            where=where,
            hint="Give each its own name, or leave out one that is gone",
        )
    return dict(nodes)

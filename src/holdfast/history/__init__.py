"""Seeing history: revisions, differences, blame, merges, queries, search."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.paths import parse_path as parse_path
    from holdfast.engine.paths import path_text as path_text
    from holdfast.history.blame import BlameEntry as BlameEntry
    from holdfast.history.blame import CheckpointRef as CheckpointRef
    from holdfast.history.blame import ValueChange as ValueChange
    from holdfast.history.diff_result import ChannelChanges as ChannelChanges
    from holdfast.history.diff_result import Diff as Diff
    from holdfast.history.diff_result import DiffSide as DiffSide
    from holdfast.history.merge import MergeConflict as MergeConflict
    from holdfast.history.query import has_text as has_text
    from holdfast.history.search import SearchHit as SearchHit
    from holdfast.history.search import SearchMatch as SearchMatch
    from holdfast.history.search import SearchPage as SearchPage
    from holdfast.history.step_summary import tool_calls as tool_calls

_EXPORTS = {
    "BlameEntry": "holdfast.history.blame",
    "ChannelChanges": "holdfast.history.diff_result",
    "CheckpointRef": "holdfast.history.blame",
    "Diff": "holdfast.history.diff_result",
    "DiffSide": "holdfast.history.diff_result",
    "MergeConflict": "holdfast.history.merge",
    "SearchHit": "holdfast.history.search",
    "SearchMatch": "holdfast.history.search",
    "SearchPage": "holdfast.history.search",
    "ValueChange": "holdfast.history.blame",
    "has_text": "holdfast.history.query",
    "parse_path": "holdfast.engine.paths",
    "path_text": "holdfast.engine.paths",
    "tool_calls": "holdfast.history.step_summary",
}

__all__ = [*_EXPORTS]  # noqa: PLE0604 - strings all of them

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __getattr__ = exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)

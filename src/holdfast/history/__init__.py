"""Seeing history: revisions, differences, blame, merges, queries, search."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.model.missing import MISSING as MISSING
    from holdfast.engine.paths import parse_path as parse_path
    from holdfast.engine.paths import path_text as path_text
    from holdfast.engine.types import SCAN_LIMIT as SCAN_LIMIT
    from holdfast.history.blame import BlameEntry as BlameEntry
    from holdfast.history.blame import CheckpointRef as CheckpointRef
    from holdfast.history.blame import ValueChange as ValueChange
    from holdfast.history.diff_result import ChannelChanges as ChannelChanges
    from holdfast.history.diff_result import Diff as Diff
    from holdfast.history.diff_result import DiffSide as DiffSide
    from holdfast.history.diff_text import Change as Change
    from holdfast.history.merge import UNRESOLVED as UNRESOLVED
    from holdfast.history.merge import MergeConflict as MergeConflict
    from holdfast.history.merge import Resolve as Resolve
    from holdfast.history.query import has_text as has_text
    from holdfast.history.search import SearchHit as SearchHit
    from holdfast.history.search import SearchMatch as SearchMatch
    from holdfast.history.search import SearchPage as SearchPage
    from holdfast.history.step_summary import tool_calls as tool_calls

_MODULES = {
    "holdfast.engine.model.missing": ("MISSING",),
    "holdfast.engine.paths": ("parse_path", "path_text"),
    "holdfast.engine.types": ("SCAN_LIMIT",),
    "holdfast.history.blame": ("BlameEntry", "CheckpointRef", "ValueChange"),
    "holdfast.history.diff_result": ("ChannelChanges", "Diff", "DiffSide"),
    "holdfast.history.diff_text": ("Change",),
    "holdfast.history.merge": ("MergeConflict", "Resolve", "UNRESOLVED"),
    "holdfast.history.query": ("has_text",),
    "holdfast.history.search": ("SearchHit", "SearchMatch", "SearchPage"),
    "holdfast.history.step_summary": ("tool_calls",),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)

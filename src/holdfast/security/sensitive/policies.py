"""Policies: what is done with sensitive data of which formats, in which scopes and keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import msgspec

from holdfast.engine.events import place_of
from holdfast.engine.namespaces import is_thread, line_kind, root_of
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line
from holdfast.errors import InvalidError
from holdfast.security.sensitive.detector import Detector, Recognizer
from holdfast.security.sensitive.formats import BY_NAME
from holdfast.security.sensitive.markers import Markers

Action: TypeAlias = Literal["tokenise", "redact", "refuse", "encrypt", "allow"]
ACTIONS: tuple[Action, ...] = get_args(Action)

_SHARED = ("topic:", "requests:", "pipeline:", "document:")
"""A part of the names of lines with messages between agents."""

_STEPS = "/steps:main"
"""The end of the names of lines with durable steps of agents."""

_STEP_VALUES, _STEP_RECORDS = ("step/", "result/", "signal/", "wait/"), ("timer/",)
"""Their content: values of users, and records with keys and tokens of the store's own besides."""


class SensitivePolicy(msgspec.Struct, frozen=True):
    """A policy."""

    name: str
    action: Action
    formats: frozenset[str]
    scope: str
    """A pattern of scopes, and of the names of threads."""
    key: str
    """A pattern of keys, and of channels of threads."""
    markers: Markers | None = None
    recognizers: Sequence[Recognizer] = ()


def check_action(action: object) -> Action:
    """Return the action that a caller names. `InvalidError` if there is no such action."""
    for each in ACTIONS:
        if each == action:
            return each
    raise InvalidError(f"the action must be one of {', '.join(ACTIONS)}, not {ascii(action)[:80]}")


class ChannelRules:
    """The policies of one channel: a detector of all that they name, and the policy for each format."""

    def __init__(self, policies: Sequence[SensitivePolicy], *, is_internal: bool) -> None:
        """`policies` are in the order of their priority."""
        formats = frozenset().union(*(each.formats for each in policies)) - (BY_NAME if is_internal else set())
        recognizers = [recognizer for each in policies for recognizer in each.recognizers]
        self.detector: Detector = Detector(formats, recognizers)
        self.is_internal = is_internal
        """Whether the channel has records of the store, whose `bytes` are contents of artifacts."""
        self._policies = tuple(policies)

    def policy(self, format_: str) -> SensitivePolicy:
        """Return the policy for a format: the first that names it. What a recognizer found belongs to its policy."""
        for each in self._policies:
            if format_ in each.formats:
                return each
        return next(each for each in self._policies if each.recognizers)


class PolicySet:
    """The policies of a store, in the order in which they were added: later ones go before earlier ones."""

    def __init__(self, policies: Sequence[SensitivePolicy] = ()) -> None:
        self.policies: tuple[SensitivePolicy, ...] = tuple(policies)
        self.markers: list[Markers] = [each.markers for each in policies if each.markers is not None]
        self.find: Callable[[Line, str], ChannelRules | None] = lru_cache(4096)(self._find)

    def _find(self, line: Line, channel: str) -> ChannelRules | None:
        """Return the rules of a channel; None if it has none."""
        if not is_covered(line.name, channel):
            return None
        matching = self._matching(line, channel)
        if not matching or all(each.action == "allow" for each in matching):
            return None
        return _rules(matching, is_internal(line.name, channel))

    def _matching(self, line: Line, channel: str) -> tuple[SensitivePolicy, ...]:
        place = root_of(line).name if is_thread(line.name) else place_of(line.name)
        return tuple(
            each for each in reversed(self.policies) if matcher(each.scope)(place) and matcher(each.key)(channel)
        )

    def allows(self, line: Line, channel: str, format_: str) -> bool:
        """Whether the policy that decides about a format in a channel leaves it as it is."""
        deciding = next((each for each in self._matching(line, channel) if format_ in each.formats), None)
        return deciding is not None and deciding.action == "allow"

    @property
    def everything(self) -> ChannelRules | None:
        """The rules of records about changes, wherever these are."""
        active = tuple(each for each in reversed(self.policies) if each.action != "allow")
        return _rules(active, False) if active else None


@lru_cache(256)
def _rules(policies: tuple[SensitivePolicy, ...], is_internal: bool) -> ChannelRules:
    return ChannelRules(policies, is_internal=is_internal)


def is_covered(name: str, channel: str) -> bool:
    """Whether a channel holds what users put in. Other lines have the rights, the audit, and contents of artifacts."""
    if channel.startswith("\0") or (channel == "__checkpoint__" and is_thread(name)):
        return False
    if line_kind(name) in ("thread", "agent", "scope", "session"):
        return True
    place = place_of(name)
    if place.endswith(_STEPS):
        return not channel or channel.startswith((*_STEP_VALUES, *_STEP_RECORDS))
    return place in ("sessions", "artifacts") or any(part in place for part in _SHARED)


def is_internal(name: str, channel: str) -> bool:
    """Whether a channel has records with ids, names of fields and contents of the store's own besides what users put
    in: all of artifacts, and some of the durable steps of agents."""
    place = place_of(name)
    return place == "artifacts" or (place.endswith(_STEPS) and channel.startswith(_STEP_RECORDS))


def domain_of(line: Line) -> str:
    """Return the name that tokens of a line are bound to: that of its thread, or of its scope."""
    return root_of(line).name

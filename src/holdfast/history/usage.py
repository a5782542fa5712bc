"""Usage: the tokens that models took, as the messages of a state say, summed over the checkpoints that added them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from holdfast._fields import Label
from holdfast._structs import convert
from holdfast.backends.interface import Get
from holdfast.backends.tables import LINES, STEPS
from holdfast.codec.plain_json import to_plain
from holdfast.engine.checked_rows import read_despite_damage
from holdfast.engine.engine import Engine
from holdfast.engine.guard import Visible
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.operations import EditMap, Operation, Set
from holdfast.engine.model.packed_state import as_items, as_map, flatten
from holdfast.engine.model.steps import Step
from holdfast.engine.namespaces import split_name
from holdfast.engine.row_format import MERGE, Line, StepRef, info_of, open_step
from holdfast.engine.subject_names import subject_of_name, subjects_in
from holdfast.engine.types import SCAN_LIMIT, Progress, to_datetime
from holdfast.errors import CorruptError, InvalidError, NotFoundError, TooDeepError
from holdfast.history.query import Field, every, parse
from holdfast.history.search import SearchRun
from holdfast.history.step_summary import USERS, added_items
from holdfast.time_parser import Time, parse_time

UsageKey: TypeAlias = Literal["day", "thread", "user", "agent", "model", "checkpoint"]
"""What usage is summed by. Days are those of UTC."""

KEYS: tuple[UsageKey, ...] = get_args(UsageKey)

_MILLION = 1_000_000
_MARK = b"_token"
"""Is in every message that says how many tokens it took."""

_AGENTS = ("agent", "agent_id", "agent_name", "lc_agent_name")
"""The entries of metadata that say which agent saved a checkpoint."""

_REPEATING = (MERGE, "restore", "switch")
"""Kinds of checkpoints that may add messages that were there before."""

_DEPTH = 8
"""How deep in nested dicts messages are looked for."""


class TokenPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a million tokens of a model cost, in any currency. Without `cached`, those from a cache cost the same."""

    input: Annotated[float, msgspec.Meta(ge=0)]
    output: Annotated[float, msgspec.Meta(ge=0)]
    cached: Annotated[float, msgspec.Meta(ge=0)] | None = None


class UsageSum(msgspec.Struct, frozen=True):
    """The tokens of some messages. `cached` counts those of the input that came from a cache. `cost` is what those
    took whose model has a price."""

    key: str
    messages: int
    input: Annotated[int, Label("input tokens")]
    cached: int
    output: Annotated[int, Label("output tokens")]
    cost: float


class Usage(msgspec.Struct, frozen=True):
    """The tokens of the messages that matching checkpoints added, and what they cost."""

    sums: list[UsageSum]
    """By `key`: days in order, all else by cost and then by tokens, the most first."""
    total: UsageSum
    unpriced: list[str]
    """The models that have no price; empty stands for messages that do not name one."""
    examined: int
    """How many checkpoints were read."""
    stopped: bool
    """Whether there were more checkpoints than `scan_limit`: then these are not all."""
    unreadable: int
    """How many checkpoints could not be read: see `holdfast verify`."""


class Tokens(msgspec.Struct, frozen=True):
    """The tokens that a message took."""

    input: int
    output: int
    cached: int
    """Of the input, from a cache."""


def tokens_of(message: Mapping[str, Any]) -> Tokens | None:
    """Return the tokens that a message took, in the form of LangChain, of a provider, or of another framework."""
    said = _dict(message.get("response_metadata"))
    own = (message.get(name) for name in ("usage_metadata", "usage", "usage_details"))
    for found in (*own, said.get("token_usage"), said.get("usage")):
        usage = _dict(found)
        given = [_count(*map(usage.get, names)) for names in _NAMES]
        if any(given):
            details = _dict(usage.get("input_token_details")) or _dict(usage.get("prompt_tokens_details"))
            cached = _count(details.get("cache_read"), details.get("cached_tokens"), *map(usage.get, _CACHED))
            return Tokens(given[0], given[1], cached)
    return None


def model_of(message: Mapping[str, Any]) -> str:
    """Return the name of the model that a message is of; empty if it does not say."""
    said = _dict(message.get("response_metadata"))
    places = ((said, "model_name"), (said, "model"), (message, "model"), (message, "model_name"))
    return next((str(found) for place, name in places if (found := place.get(name))), "")


_NAMES = (
    ("input_tokens", "prompt_tokens", "prompt_token_count", "input_token_count"),
    ("output_tokens", "completion_tokens", "candidates_token_count", "output_token_count"),
)
"""What providers and frameworks call the tokens of the input, and of the output."""

_CACHED = ("cache_read_tokens", "cache_read_input_tokens", "cached_content_token_count")


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(*values: Any) -> int:
    return next((each for each in values if type(each) is int and 0 < each < 1 << 53), 0)


# Sums -------------------------------------------------------------------------------------------------------------


def parse_prices(prices: object, where: str = "prices") -> dict[str, TokenPrice]:
    """Return prices by the names of models. `InvalidError` if they are none."""
    try:
        return convert(prices, dict[str, TokenPrice])
    except msgspec.ValidationError as error:
        raise InvalidError(
            f"prices are given by model, each for a million tokens: {error}",
            where=where,
            hint='For example {"gpt-5": {"input": 1.25, "cached": 0.125, "output": 10}}',
        ) from None


def price_of(model: str, prices: Mapping[str, TokenPrice]) -> TokenPrice | None:
    """Return the price of a model: its own, or that of the longest name that it continues, as `gpt-5-2025-08-07` does
    `gpt-5`."""
    if model in prices:
        return prices[model]
    longest = max(
        (name for name in prices if model.startswith((f"{name}-", f"{name}:", f"{name}@"))), key=len, default=""
    )
    return prices.get(longest) if longest else None


def query_of(where: str, pattern: str) -> str:
    """Return the query for what matches another one in the threads whose names match a pattern; empty for all."""
    return str(every([parse(where), *([Field("thread", ":", pattern)] if pattern else [])]))


class _Sums:
    """Messages and tokens by key, and in these by model."""

    def __init__(self, prices: Mapping[str, TokenPrice]) -> None:
        self._prices = prices
        self._counts: dict[str, dict[str, list[int]]] = {}
        self._total: dict[str, list[int]] = {}

    def add(self, key: str, model: str, tokens: Tokens) -> None:
        for counts in (self._counts.setdefault(key, {}), self._total):
            numbers = counts.setdefault(model, [0, 0, 0, 0])
            for place, more in enumerate((1, tokens.input, tokens.cached, tokens.output)):
                numbers[place] += more

    def total(self) -> UsageSum:
        return self._sum("", self._total)

    def all(self) -> list[UsageSum]:
        return [self._sum(key, counts) for key, counts in self._counts.items()]

    def unpriced(self) -> list[str]:
        return sorted(model for model in self._total if price_of(model, self._prices) is None)

    def _sum(self, key: str, counts: Mapping[str, Sequence[int]]) -> UsageSum:
        messages, given, cached, output = (
            (sum(each) for each in zip(*counts.values(), strict=True)) if counts else (0,) * 4
        )
        cost = sum(self._cost(model, numbers) for model, numbers in counts.items())
        return UsageSum(key, messages, given, cached, output, round(cost, 6))

    def _cost(self, model: str, numbers: Sequence[int]) -> float:
        price = price_of(model, self._prices)
        if price is None:
            return 0.0
        _, given, cached, output = numbers
        from_cache = min(cached, given)
        rate = price.input if price.cached is None else price.cached
        return ((given - from_cache) * price.input + from_cache * rate + output * price.output) / _MILLION


# Checkpoints ------------------------------------------------------------------------------------------------------


class _Message(NamedTuple):
    """What a message says of a call of a model. `id` identifies it in its thread; empty if it has none."""

    id: str
    model: str
    tokens: Tokens


class _Step(NamedTuple):
    """A checkpoint that added messages, and who saved it."""

    point: StepRef
    metadata: Any
    actor: str
    messages: Sequence[_Message]


async def sum_usage(
    engine: Engine,
    tenant: str,
    *,
    by: UsageKey = "day",
    where: str = "",
    since: Time | None = None,
    until: Time | None = None,
    prices: Mapping[str, TokenPrice],
    scan_limit: int | None = SCAN_LIMIT,
    progress: Progress | None = None,
    visible: Visible | None = None,
) -> Usage:
    """Return the usage of the messages that matching checkpoints of threads added. A message counts once in a thread,
    at the first of the checkpoints that added it."""
    if by not in KEYS:
        raise InvalidError(f"usage is summed by {', '.join(KEYS[:-1])} or {KEYS[-1]}, not {ascii(by)[:80]}")
    now, limits = datetime.now(UTC), []
    if since is not None:
        start = parse_time(since, now).isoformat()
        limits += [f"time>={start}", f"updated>={start}"]
    if until is not None:
        limits += [f"time<{parse_time(until, now).isoformat()}"]
    query = every(map(parse, [where, *limits]))
    run = SearchRun(engine, tenant, query, scan_limit=scan_limit, visible=visible)
    sums, seen, thread, stopped, done = _Sums(prices), set[str](), "", False, 0
    async for summary in run.candidates():
        if stopped := scan_limit is not None and run.examined >= scan_limit:
            break
        line = summary.line
        if (owner := split_name(line.name)[0]) != thread:
            thread, seen = owner, set()  # else it is a subgraph, which returns its messages to the graph that called it
        steps, stopped = await _read_line(engine, run, line, scan_limit)
        for step in reversed(steps):
            for message in step.messages:
                if message.id not in seen:
                    sums.add(_key(by, line, step, message.model), message.model, message.tokens)
            seen.update(message.id for message in step.messages if message.id)
        done += 1
        if progress is not None:
            progress(done, None, line.name)
        if stopped:
            break
    ordered = sorted(sums.all(), key=lambda each: each.key)
    if by != "day":
        ordered.sort(key=lambda each: (-each.cost, -each.input - each.output))
    return Usage(ordered, sums.total(), sums.unpriced(), run.examined, stopped, run.unreadable)


async def _read_line(engine: Engine, run: SearchRun, line: Line, scan_limit: int | None) -> tuple[list[_Step], bool]:
    """Return the matching checkpoints of a line that added messages that say which tokens they took, the latest first;
    and whether there are more than may be read."""
    found: list[_Step] = []
    points, before = await run.points(line)
    while before:
        keys = [(*line, *point[:2]) for point in points]
        queries = [Get(STEPS, keys), Get(LINES, [tuple(line)])]
        rows, infos = await read_despite_damage(engine.context.backend, queries)
        pruned = bool(infos and info_of(infos[0]).pruned)
        by_key = {row.key: row for row in rows}
        for point, key in zip(points, keys, strict=True):
            if key not in by_key:
                continue  # deleted meanwhile
            try:
                step = open_step(line, by_key[key], engine.context.max_bytes)
                is_gap = pruned and not any((*line, *parent[:2]) in by_key for parent in step.header.parents[:1])
                edit = await engine.indexer.edit(line, point, step, pruned=is_gap)
                if messages := await _messages(engine, line, step, edit):
                    header = step.header
                    metadata = engine.context.codec.unpack(header.metadata)
                    found.append(_Step(point, metadata, header.origin.actor, messages))
            except (CorruptError, NotFoundError):  # or it was pruned meanwhile
                run.unreadable += 1
        if scan_limit is not None and run.examined >= scan_limit:
            (more,) = await engine.lines.pages([(line, before)], 1)
            return found, bool(more)
        points, before = await run.points(line, before)
    return found, False


async def _messages(engine: Engine, line: Line, step: Step, edit: EditMap) -> list[_Message]:
    """Return the messages that a step added and that say which tokens they took."""
    values = [value for _, operation in edit.put for value in _added(operation)]
    if pointers := [value for value in values if is_pointer(value)]:
        loaded = await engine.states.load_large(line, pointers)
        values = [loaded.get(value, value) for value in values]
    found = [message for value in values for message in _messages_in(value, _DEPTH)]
    return [each for each in found if each.id] if step.header.kind in _REPEATING else found


def _added(operation: Operation) -> Iterator[bytes]:
    """Yield the packed values that an operation adds: items of lists, and values."""
    if isinstance(operation, EditMap):
        for _, below in operation.put:
            yield from _added(below)
    else:
        items = added_items(operation)
        yield from items
        if not items and isinstance(operation, Set):
            yield flatten(operation.packed)


def _messages_in(packed: bytes, depth: int) -> Iterator[_Message]:
    """Yield the messages in a packed value: it may be one, or have them in lists and dicts."""
    if _MARK not in packed or not depth:
        return
    try:
        plain = to_plain(packed)
    except TooDeepError:
        return
    tokens = tokens_of(plain) if isinstance(plain, dict) else None
    if tokens is not None:
        id = plain.get("id")
        yield _Message(id if isinstance(id, str) else "", model_of(plain), tokens)
        return
    below = as_items(packed)
    if below is None:
        entries = as_map(packed)
        below = [] if entries is None else [flatten(value) for value in entries.values()]
    for each in below:
        yield from _messages_in(each, depth - 1)


def _key(by: UsageKey, line: Line, step: _Step, model: str) -> str:
    """Return what a message is summed by."""
    if by == "day":
        return f"{to_datetime(step.point.time):%Y-%m-%d}"
    if by == "thread":
        return split_name(line.name)[0]
    if by == "checkpoint":
        return f"{line.name} {step.point.id}"
    if by == "model":
        return model
    if by == "user":
        return next(iter(subjects_in(step.metadata, USERS)), "") or subject_of_name(step.actor)
    return next(iter(subjects_in(step.metadata, _AGENTS)), "") or _agent_of(step.actor)


def _agent_of(actor: str) -> str:
    """Return the agent in the name of an identity: `research` of `agent:research`, also below a user's."""
    return next((part.removeprefix("agent:") for part in actor.split("/") if part.startswith("agent:")), "")

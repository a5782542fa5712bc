"""The metrics of tokens: what models took in the last day, as the messages in the store say."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.backends.config import price_settings
from holdfast.backends.runtime.metrics import Sample
from holdfast.engine.types import to_datetime
from holdfast.errors import HoldfastError
from holdfast.history.usage import Usage, UsageSum, parse_prices, sum_usage
from holdfast.security.handle import StoreHandle

_DAY_NS = 24 * 3600 * 10**9

_KNOWN_NS = 300 * 10**9
"""How long sums are reported before they are made again: this reads checkpoints."""

_SCANNED = 2000
"""How many checkpoints are read for them."""

_MODELS = 20
"""Of so many models there are values of their own: their names are in what programs save."""

_LONGEST_NAME = 80


async def read_usage(handle: StoreHandle) -> list[Sample]:
    """Return the metrics of tokens of a store, as they were at most five minutes ago; none if no message says what it
    took, or they cannot be read."""
    context = handle.engine.context
    known: tuple[int, str, list[Sample]] | None = context.__dict__.get("known_usage")
    now, tenant = context.clock(), handle.tenant
    if known is None or known[1] != tenant or not 0 <= now - known[0] < _KNOWN_NS:
        try:
            prices, since = parse_prices(price_settings()), to_datetime(now - _DAY_NS)
            usage = await sum_usage(handle.engine, tenant, by="model", since=since, prices=prices, scan_limit=_SCANNED)
            known = (now, tenant, list(_samples(usage)))
        except HoldfastError:  # the other metrics do not depend on it
            known = (now, tenant, [])
        context.__dict__["known_usage"] = known
    return known[2]


def _samples(usage: Usage) -> Iterator[Sample]:
    if not usage.sums:
        return
    most = sorted(usage.sums, key=lambda each: -each.input - each.output)
    named = [(each.key[:_LONGEST_NAME], each) for each in most[:_MODELS]]
    others = most[_MODELS:]
    sums: dict[str, list[UsageSum]] = {}
    for model, each in [*named, *(("others", each) for each in others)]:
        sums.setdefault(model, []).append(each)
    for model, some in sums.items():
        for kind in ("input", "cached", "output"):
            yield Sample("usage_day_tokens", (model, kind), sum(getattr(each, kind) for each in some))
        yield Sample("usage_day_cost", (model,), sum(each.cost for each in some))
    yield Sample("usage_day_complete", (), int(not usage.stopped))

"""The metrics of a store at one moment: what this process counted, and what the store itself says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias

import msgspec

from holdfast._structs import decode_json
from holdfast.backends.distribution import Distribution
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.metric_families import FAMILIES
from holdfast.backends.runtime.metrics import Sample
from holdfast.backends.tables import REFS
from holdfast.backends.urls import redacted_url
from holdfast.engine.checked_rows import read_despite_damage
from holdfast.engine.context import EngineContext
from holdfast.errors import HoldfastError, InvalidError
from holdfast.hooks.outbox import count_failed
from holdfast.maintenance.backup.drill import DrillRecord
from holdfast.maintenance.backup_status import DRILL, LAST_BACKUP, SETTING, SIZE, RepositorySize
from holdfast.security.handle import StoreHandle

ALERTS = "alerts"
"""The name of the row with the states of alerts."""

_STATES = {"pending": 1, "firing": 2}

_SIZE_NS = 60 * 10**9
"""How long the size of a store is reported before it is asked for again: in object storage that takes long."""


class _AlertState(msgspec.Struct):
    state: str = "ok"


class _AlertStates(msgspec.Struct):
    """The states of alerts, as `alerts` stores them."""

    alerts: dict[str, _AlertState] = {}


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """The metrics of an open store."""

    store: str
    """Its URL, without passwords."""
    tenant: str
    samples: tuple[Sample, ...]

    def value(self, name: str, **labels: str) -> float:
        """Return the value of a metric: the sum of all that have these labels. Of a distribution, its count."""
        family = FAMILIES.get(name.removeprefix("holdfast_"))
        if family is None or not labels.keys() <= set(family.labels):
            raise InvalidError(f"there is no metric {name!r} with these labels", hint="See holdfast.metrics.FAMILIES")
        total = 0.0
        for sample in self.samples:
            given = dict(zip(family.labels, sample.labels, strict=True)) if sample.family == family.name else None
            if given is not None and labels.items() <= given.items():
                total += sample.value.count if isinstance(sample.value, Distribution) else sample.value
        return total

    def has(self, name: str) -> bool:
        """Whether there is a value of a metric."""
        return any(sample.family == name for sample in self.samples)


ReadJobs: TypeAlias = Callable[[StoreHandle], Awaitable[list[Sample]]]
"""Reads the metrics of the jobs of a store."""


async def read_metrics(handle: StoreHandle, read_jobs: ReadJobs) -> MetricsSnapshot:
    """Return the metrics of a store: the registry of this process, and what is read from the store."""
    context = handle.engine.context
    samples = context.metrics.read()
    try:
        samples += [*await _read_store(handle), *await read_jobs(handle)]
        samples.append(Sample("up", (), 1))
    except HoldfastError:
        samples.append(Sample("up", (), 0))
    return MetricsSnapshot(redacted_url(context.backend.url), handle.tenant, tuple(samples))


async def _read_store(handle: StoreHandle) -> list[Sample]:
    context = handle.engine.context
    tenant, now = handle.tenant, context.clock()
    (settings,) = await read_despite_damage(context.backend, [Scan(REFS, (tenant, "", SETTING))])
    samples = [Sample("storage_bytes", (), await _size(context))]
    samples += _status(await context.backend.status())
    from holdfast.security.sensitive.credential_check import count_places  # slow to import

    if (count := await count_places(handle.engine, tenant)) is not None:
        samples.append(Sample("credentials_found", (), count))
    backups: list[int] = []
    for row in settings:
        name, text = str(row.key[3]), str(row.columns[0])
        try:
            if name.startswith(DRILL):
                label = (name.removeprefix(DRILL).strip()[:8],)
                samples += _drill(decode_json(text, DrillRecord), label, now)
            elif name.startswith(SIZE):
                label = (name.removeprefix(SIZE)[:8],)
                size = decode_json(text, RepositorySize)
                samples.append(Sample("repository_bytes", label, size.bytes))
                samples.append(Sample("repository_limit_bytes", label, size.limit))
            elif name == ALERTS:
                alerts = decode_json(text, _AlertStates).alerts
                samples += [Sample("alert_state", (rule,), _STATES.get(each.state, 0)) for rule, each in alerts.items()]
            elif name.startswith(LAST_BACKUP):
                backups.append(int(row.columns[1]))
        except (msgspec.MsgspecError, ValueError):  # a damaged row hides no other
            continue
    failed = await count_failed(handle.engine, tenant)
    samples += [Sample("hook_undelivered", (hook,), count) for hook, count in failed.items()]
    if backups:
        samples.append(Sample("backup_last_timestamp_seconds", (), max(backups) / 1e9))
        samples.append(Sample("backup_age_seconds", (), _seconds(now - max(backups))))
    return samples


def _drill(record: DrillRecord, label: tuple[str], now: int) -> Iterator[Sample]:
    yield Sample("drill_last_timestamp_seconds", label, record.time / 1e9)
    yield Sample("drill_age_seconds", label, _seconds(now - record.time))
    yield Sample("drill_ok", label, int(record.ok))


def _status(status: dict[str, int | float | str]) -> Iterator[Sample]:
    for name, family in _STATUS.items():
        if isinstance(value := status.get(name), int | float):
            yield Sample(family, (), value)
    if "healed" in status:
        yield Sample("healed_rows_total", ("healed",), float(status["healed"]))
        yield Sample("healed_rows_total", ("unhealed",), float(status["unhealed"]))
    for name, value in status.items():
        if name == "breaker" or name.endswith("_breaker"):
            yield Sample("breaker_open", (name.removesuffix("breaker").rstrip("_") or "store",), int(value != "closed"))


_STATUS = {
    "lag_seconds": "replication_lag_seconds",
    "lag_batches": "replication_lag_batches",
    "lag_bytes": "replication_lag_bytes",
    "degraded": "replication_degraded",
}
"""Families of metrics by their names in the status of a store."""


async def _size(context: EngineContext) -> int:
    """Return the size of the store, as it was at most a minute ago."""
    known: tuple[int, int] | None = context.__dict__.get("known_size")
    now = context.clock()
    if known is None or not 0 <= now - known[0] < _SIZE_NS:
        known = context.__dict__["known_size"] = (now, await context.backend.size())
    return known[1]


def _seconds(nanoseconds: int) -> float:
    return round(max(0, nanoseconds) / 1e9, 3)

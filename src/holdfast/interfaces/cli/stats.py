"""`holdfast stats`: the store in figures."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.formatting import ago, plural, safe, size

_PAGE = 500


@dataclass
class _Sums:
    threads: int = 0
    steps: int = 0
    branches: int = 0
    bytes: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    largest: str | None = None
    largest_bytes: int = 0


@command("stats")
def stats(session: CliContext) -> None:
    """Show the store in figures: threads, steps, bytes, and how it is doing.

    \b
    holdfast stats --json | jq .store_bytes
    """
    store = session.open()
    figures, status = store.stats(), store.status()
    sums = _Sums()
    with session.progress("Counting") as tell:
        for thread in store.threads(limit=_PAGE).all():
            sums.threads += 1
            sums.steps += thread.steps
            sums.branches += thread.branches
            sums.bytes += thread.bytes
            sums.oldest = min(filter(None, (sums.oldest, thread.created)))
            sums.newest = max(filter(None, (sums.newest, thread.updated)))
            if thread.bytes > sums.largest_bytes:
                sums.largest, sums.largest_bytes = thread.thread, thread.bytes
            tell(sums.threads, figures.threads, "threads")
    capabilities = store._engine.context.backend.capabilities
    if session.json:
        session.emit(
            {
                "url": figures.url,
                "tenant": session.tenant,
                "store_bytes": figures.bytes,
                **vars(sums),
                "durable": capabilities.durable,
                "shared": capabilities.shared,
                "status": status,
            }
        )
        return
    rows = [
        ("Store", figures.url),
        *([("Tenant", session.tenant)] if session.tenant else []),
        ("Size", f"{size(figures.bytes)} ({figures.bytes:,} bytes)"),
        ("Threads", f"{sums.threads:,}"),
        ("Steps", f"{sums.steps:,} in {plural(sums.branches, 'branch')}, {size(sums.bytes)}"),
    ]
    if sums.largest is not None:
        rows.append(("Largest", f"{sums.largest} ({size(sums.largest_bytes)})"))
    if sums.oldest is not None and sums.newest is not None:
        rows += [("First thread", ago(sums.oldest)), ("Last change", ago(sums.newest))]
    rows += [
        ("Durable", "yes" if capabilities.durable else "no: a crash of the machine may lose what was saved last"),
        *((name.replace("_", " ").capitalize(), str(value)) for name, value in status.items()),
    ]
    widest = max(len(title) for title, _ in rows)
    for title, text in rows:
        session.out.line(f"{session.out.style(f'{title}:'.ljust(widest + 1), 'bold')} {safe(text)}")

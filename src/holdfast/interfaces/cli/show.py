"""`holdfast show`: a checkpoint and its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast._views import plain
from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.cli.base import CliContext, all_channels_option, command
from holdfast.interfaces.cli.completion_types import REVISION, THREAD
from holdfast.interfaces.cli.formatting import plural

if TYPE_CHECKING:
    from holdfast.engine.types import Checkpoint
    from holdfast.interfaces.cli.value_view import DisplayLimits, ValueWriter
    from holdfast.store.lazy_state import LazyState
    from holdfast.store.store import Store


@command("show", thread=THREAD)
@click.argument("revision", type=REVISION, default="HEAD")
@click.option("--channel", "channels", multiple=True, metavar="NAME", help="Show only this channel; may be repeated.")
@click.option("--path", metavar="PATH", help="Show the value at a path, such as messages[-1].content.")
@click.option("--full", is_flag=True, help="Show long values in full.")
@click.option("--no-state", is_flag=True, help="Show only the header.")
@all_channels_option
def show(
    session: CliContext,
    thread: str,
    revision: str,
    channels: tuple[str, ...],
    path: str | None,
    full: bool,
    no_state: bool,
    all_channels: bool,
) -> None:
    """Show a checkpoint and its state.

    REVISION is a branch, a tag, the start of an id, HEAD~2, '#12', @{yesterday}; by default HEAD, the latest.

    holdfast show chat HEAD~1
    holdfast show chat --path 'messages[-1].content'
    """
    from holdfast.engine.paths import parse_path
    from holdfast.engine.projection.rendering import is_hidden
    from holdfast.interfaces.cli.value_view import ALL, SHORT, ValueWriter
    from holdfast.store.log_reader import branch_names

    if (path is not None) + bool(channels) + no_state > 1:
        raise InvalidError("give only one of --path, --channel and --no-state")
    store = session.open()
    checkpoint = store.thread(thread).get(at=revision, lazy=True)
    out = session.out
    if path is not None:
        found = at_path(checkpoint.state, parse_path(path))
        record = {"thread": thread, "id": checkpoint.id, "path": path, "value": found}
        session.report(ValueWriter(out, ALL).value(found), record)
        return
    names = _check_channels(checkpoint, channels)
    labels = _labels(store, checkpoint)

    def lines() -> Iterator[str]:
        branch = branch_names(store.thread(checkpoint.thread)).get(checkpoint.branch, "")
        place = f"{checkpoint.step} on {branch or f'branch {checkpoint.branch}'}"
        said = {"step": place, "parent": checkpoint.parent or "(none)"}
        said |= {name: ", ".join(each) for name, each in labels.items()}
        yield from session.describe(checkpoint, f"checkpoint {checkpoint.id}", hidden=("id", "branch"), **said)
        if no_state:
            return
        limits = ALL if full else SHORT
        values = ValueWriter(out, limits)
        shown = names if channels or all_channels else [name for name in names if not is_hidden(name)]
        for name in shown:
            yield ""
            yield from _channel(values, checkpoint.state, name, limits)
        if len(shown) < len(names):
            yield ""
            left_out = plural(len(names) - len(shown), "internal channel")
            yield out.style(f"… {left_out} (--all-channels shows all)", "dim")

    state = {} if no_state or not session.json else {"state": {name: checkpoint.state[name] for name in names}}
    session.report(lines(), checkpoint, labels | state)


def at_path(state: LazyState, path: Sequence[Any]) -> Any:
    """Return the value at a path of a state. Fetches only the channel, or a slice of a list."""
    name, *rest = path
    value: Any
    try:
        if rest and isinstance(rest[0], slice):
            value, rest = state.slice((name,), start=rest[0].start, stop=rest[0].stop), rest[1:]
        else:
            value = state.value((name,))
    except NotFoundError:
        raise _not_found(path) from None
    for part in rest:
        try:
            value = value[part] if isinstance(value, dict | list | tuple | str) else plain(value)[part]
        except (LookupError, TypeError):
            raise _not_found(path) from None
    return value


def _not_found(path: Sequence[Any]) -> NotFoundError:
    from holdfast.engine.paths import path_text

    return NotFoundError(f"the state has nothing at {path_text(path)}", hint="See holdfast show")


def _check_channels(checkpoint: Checkpoint, channels: tuple[str, ...]) -> list[str]:
    existing: list[str] = checkpoint.state.names()
    for name in channels:
        if name not in existing:
            raise NotFoundError(
                f"the state has no channel {name!r}",
                where=f"checkpoint {checkpoint.id} of thread {checkpoint.thread!r}",
                hint=f"There are {', '.join(existing)}" if existing else "It is empty",
            )
    return list(channels) or existing


def _labels(store: Store, checkpoint: Checkpoint) -> dict[str, Any]:
    tags = [tag for tag, id in store.thread(checkpoint.thread).tags().items() if id == checkpoint.id]
    labels = [label for label, ids in store.thread(checkpoint.thread).labels().items() if checkpoint.id in ids]
    return {"tags": tags, "labels": labels}


def _channel(values: ValueWriter, state: LazyState, name: str, limits: DisplayLimits) -> Iterator[str]:
    """Format a channel. Of a long list, only what is shown is fetched."""
    try:
        length = state.length((name,))
    except InvalidError:  # not a list
        yield from values.channel(name, state.value((name,)))
        return
    if length <= limits.messages:
        yield from values.channel(name, state.value((name,)))
        return
    start = length - limits.messages
    items = state.slice((name,), start=start)
    if is_conversation(name, items):
        yield from values.items(name, items, start, length)
    else:
        yield from values.items(name, state.slice((name,), stop=limits.items + 1), 0, length)


def is_conversation(name: str, items: Sequence[Any]) -> bool:
    """Return whether a list contains messages, of which the last are shown."""
    from holdfast.codec import default_codec
    from holdfast.engine.projection.rendering import messages

    return messages(name, default_codec.pack_items(items)) is not None

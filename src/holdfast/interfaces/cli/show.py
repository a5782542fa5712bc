"""`holdfast show`: a checkpoint and its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.engine.paths import parse_path, path_text
from holdfast.engine.projection.rows import is_hidden
from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.cli.base import CliContext, all_channels_option, command
from holdfast.interfaces.cli.completion_types import REVISION, THREAD, branch_names
from holdfast.interfaces.cli.formatting import ago, local, plural, safe
from holdfast.interfaces.cli.json_output import checkpoint_record, encode, plain
from holdfast.interfaces.cli.value_view import ALL, ROOM, DisplayLimits, ValueWriter

if TYPE_CHECKING:
    from holdfast.engine.types import Checkpoint
    from holdfast.store.lazy_state import LazyState
    from holdfast.store.store import Store


@command("show")
@click.argument("thread", type=THREAD)
@click.argument("revision", type=REVISION, default="HEAD")
@click.option("--channel", "channels", multiple=True, metavar="NAME", help="Show this channel only; may be repeated.")
@click.option("--path", metavar="PATH", help="Show what is at a place, such as messages[-1].content.")
@click.option("--full", is_flag=True, help="Do not shorten long values.")
@click.option("--no-state", is_flag=True, help="Show the header only.")
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

    REVISION is the latest checkpoint (HEAD) unless another is named: a branch, a name, the start of an id, HEAD~2,
    #12, @{yesterday}.

    \b
    holdfast show chat HEAD~1
    holdfast show chat --path 'messages[-1].content'
    """
    if (path is not None) + bool(channels) + no_state > 1:
        raise InvalidError("a part of the state is named in one way", hint="Give --path, --channel or --no-state")
    store = session.open()
    checkpoint = store.get(thread, at=revision, lazy=True)
    out = session.out
    if path is not None:
        found = at_path(checkpoint.state, parse_path(path))
        if session.json:
            session.emit({"thread": thread, "id": checkpoint.id, "path": path, "value": found})
            return
        out.page()
        for line in ValueWriter(out, ALL).value(found):
            out.line(line)
        return
    names = _named(checkpoint, channels)
    if session.json:
        record: dict[str, Any] = checkpoint_record(checkpoint) | _labels(store, checkpoint)
        if not no_state:
            record["state"] = plain({name: checkpoint.state[name] for name in names})
        session.emit(record)
        return
    out.page()
    for line in _header(session, store, checkpoint):
        out.line(line)
    if no_state:
        return
    values = ValueWriter(out, ALL if full else ROOM)
    shown = names if channels or all_channels else [name for name in names if not is_hidden(name)]
    for name in shown:
        out.line()
        for line in _channel(values, checkpoint.state, name, ALL if full else ROOM):
            out.line(line)
    if len(shown) < len(names):
        out.line()
        left_out = plural(len(names) - len(shown), "internal channel")
        out.line(out.style(f"… {left_out} (--all-channels shows all)", "dim"))


def at_path(state: LazyState, path: Sequence[Any]) -> Any:
    """What is at a place of a state. Fetches the channel, or of a list the items that are asked for."""
    name, *rest = path
    value: Any
    try:
        if rest and isinstance(rest[0], slice):
            value, rest = state.slice(name, start=rest[0].start, stop=rest[0].stop), rest[1:]
        else:
            value = state.value(name)
    except NotFoundError:
        raise _nothing(path) from None
    for part in rest:
        try:
            value = value[part] if isinstance(value, dict | list | tuple | str) else plain(value)[part]
        except (LookupError, TypeError):
            raise _nothing(path) from None
    return value


def _nothing(path: Sequence[Any]) -> NotFoundError:
    return NotFoundError(f"the state has nothing at {path_text(path)}", hint="See holdfast show for what is there")


def _named(checkpoint: Checkpoint, channels: tuple[str, ...]) -> list[str]:
    there: list[str] = checkpoint.state.names()
    for name in channels:
        if name not in there:
            raise NotFoundError(
                f"the state has no channel {name!r}",
                where=f"checkpoint {checkpoint.id} of thread {checkpoint.thread!r}",
                hint=f"There are {', '.join(there)}" if there else "It is empty",
            )
    return list(channels) or there


def _labels(store: Store, checkpoint: Checkpoint) -> dict[str, list[str]]:
    tags = [tag for tag, id in store.thread(checkpoint.thread).tags().items() if id == checkpoint.id]
    labels = [label for label, ids in store.thread(checkpoint.thread).labels().items() if checkpoint.id in ids]
    return {"tags": tags, "labels": labels}


def _header(session: CliContext, store: Store, checkpoint: Checkpoint) -> Iterator[str]:
    branch = branch_names(store, checkpoint.thread).get(checkpoint.branch, "")
    labels = _labels(store, checkpoint)
    yield session.out.style(f"checkpoint {safe(checkpoint.id)}", "yellow")
    yield f"Thread:   {safe(checkpoint.thread)}"
    yield f"Step:     {checkpoint.step} on {safe(branch) or f'branch {checkpoint.branch}'}"
    yield f"Parent:   {safe(checkpoint.parent or '(none)')}"
    yield f"Date:     {local(checkpoint.time)} ({ago(checkpoint.time)})"
    yield f"Kind:     {safe(checkpoint.kind)}"
    yield f"Hash:     {checkpoint.hash}"
    for title, found in (("Tags:    ", labels["tags"]), ("Labels:  ", labels["labels"])):
        if found:
            yield f"{title} {', '.join(map(safe, found))}"
    if checkpoint.metadata:
        yield f"Metadata: {safe(encode(dict(checkpoint.metadata)))}"


def _channel(values: ValueWriter, state: LazyState, name: str, room: DisplayLimits) -> Iterator[str]:
    """A channel; of a long list, only the end is fetched that is shown."""
    try:
        length = state.length(name)
    except InvalidError:  # no list
        yield from values.channel(name, state.value(name))
        return
    if length <= room.messages:
        yield from values.channel(name, state.value(name))
        return
    start = length - room.messages
    items = state.slice(name, start=start)
    if is_conversation(name, items):
        yield from values.stretch(name, items, start, length)
    else:
        yield from values.stretch(name, state.slice(name, stop=room.items + 1), 0, length)


def is_conversation(name: str, items: Sequence[Any]) -> bool:
    """Whether a list is shown as one, and so from its end."""
    from holdfast.codec import default_codec
    from holdfast.engine.projection.rendering import messages

    return messages(name, default_codec.pack_items(items)) is not None

"""What is done with snapshots, each written once for sync callers and asyncio."""

from __future__ import annotations

import builtins
import secrets as randomness
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import update_wrapper
from typing import Any, ParamSpec, TypeVar

from holdfast.agents.snapshots import container, contents, strict_json
from holdfast.agents.snapshots.header import (
    FORMAT,
    VERSION,
    PayloadInfo,
    SnapshotHeader,
    SnapshotInfo,
    SnapshotListing,
    info_of,
)
from holdfast.agents.snapshots.locations import FolderEntry, Location, Target, folder_of, place_of
from holdfast.agents.snapshots.secret_scan import SecretScan
from holdfast.backends.interface import BlockingCall
from holdfast.backends.runtime.drivers import arun, run
from holdfast.errors import (
    HoldfastError,
    SnapshotCorruptError,
    SnapshotInvalidError,
    SnapshotNotFoundError,
    SnapshotTooLargeError,
)

P = ParamSpec("P")
T = TypeVar("T")

LIMIT = container.LIMIT
MAX_DESCRIPTION = 4096


def _sync(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The form that waits in the calling thread."""

    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(function(*args, **kwargs))

    update_wrapper(called, function)
    return called


def _async(waiting: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The form that is awaited, of what `_sync` made."""
    function: Callable[P, Coroutine[Any, Any, T]] = waiting.__wrapped__  # type: ignore[attr-defined]

    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(function(*args, **kwargs))

    update_wrapper(called, function)
    called.__name__ = called.__qualname__ = f"a{function.__name__}"
    return called


@_sync
async def snapshot(
    agent: Any,
    target: Target,
    *,
    description: str = "",
    config: Mapping[str, Any] | None = None,
    secrets: Mapping[str, Any] | None = None,
    not_secret: Iterable[str] = (),
    overwrite: bool = False,
    limit: int = LIMIT,
    **options: Any,
) -> SnapshotInfo:
    """Freeze an agent, or anything else of LangChain's that can be serialized, into one file.

    `target` is a path that ends in `.hfsnap`, or a URL: `s3://bucket/agent.hfsnap`, `gs://…`, `az://…`; `options` are
    those of the service, as `holdfast.open` takes them. The file is there as a whole or not at all, and on the disk
    when this returns. `config` names a thread of an agent with a checkpointer, whose state goes along.

    Secrets never get in: what a class declares in `lc_secrets` is left out, and its value is refused anywhere else, as
    are the values of `secrets`, and fields named like secrets unless `not_secret` names them.
    """
    _check_description(description)
    _check_limit(limit)
    place = place_of(target, options, named=True)
    gathering = SecretScan(secrets, not_secret)
    frozen = await contents.freeze(agent, config, gathering)
    time = datetime.now(UTC).isoformat()
    id = randomness.token_hex(16)

    def header(content: PayloadInfo) -> SnapshotHeader:
        return SnapshotHeader(
            id=id,
            format=FORMAT,
            version=VERSION,
            kind=frozen.kind,
            type=frozen.type,
            name=_written(frozen.name),
            time=time,
            description=description,
            versions=contents.versions(),
            secrets=tuple(sorted(gathering.secrets)),
            classes=tuple(sorted(gathering.classes)),
            tools=frozen.tools,
            middleware=frozen.middleware,
            content=content,
        )

    def built() -> bytes:
        gathering.check_texts([frozen.tree, description, frozen.name], "content")
        data = strict_json.write({"kind": frozen.kind, "content": frozen.tree}) + b"\n"
        if len(data) > limit:
            raise SnapshotTooLargeError(
                f"the content has {len(data):,} bytes, and {limit:,} are the limit",
                where=place.where,
                hint="Give `limit`, here and when you restore",
            )
        strict_json.check_shape(data, place.where)
        return container.build(data, header)

    data = await BlockingCall(built)
    await place.write(data, overwrite=overwrite)
    return info_of(container.read_header(data, place.where)[0], len(data), place.where)


asnapshot = _async(snapshot)
"""The same for asyncio."""


@_sync
async def restore(
    source: Target,
    *,
    secrets: Mapping[str, Any] | None = None,
    secrets_from_env: bool = False,
    allow: Any = (),
    tools: Sequence[Any] = (),
    middleware: Sequence[Any] = (),
    response_format: Any = None,
    state_schema: Any = None,
    context_schema: Any = None,
    checkpointer: Any = None,
    store: Any = None,
    thread: str | None = None,
    agent_id: str | None = None,
    live: bool = True,
    accept_changes: bool = False,
    limit: int = LIMIT,
    **options: Any,
) -> Any:
    """Thaw what a snapshot holds, after every byte of it was checked.

    `secrets` are the values of the secrets that it needs, by name (`info(source).secrets`); with `secrets_from_env`
    they are looked for in the environment too. Only classes of langchain-core are made, unless `allow` says more:
    classes, or `"all"` for every class that LangChain lists. A snapshot is configuration, and somebody else's may send
    your key to his server: allow what you trust.

    For agents of `create_agent`: `tools`, `middleware`, `response_format`, `state_schema` and `context_schema` are
    code, and given again. The agent has to be the same with them, unless `accept_changes`. The state of its thread, if
    there is one in the snapshot, is put into `checkpointer`, or one in memory, under its name or `thread`. `store` is
    the agent's.

    For agents of Holdfast's: the agent is saved in `store`, under its id or `agent_id`, which must be free there, and
    lives: its class has to be known. With `live=False` it is only saved, and its record is returned.
    """
    place = place_of(source, options)
    header, tree = await _opened(place, limit)
    code = None
    given = (tools, middleware, response_format, state_schema, context_schema)
    if any(each is not None and each != () for each in given) or accept_changes:
        from holdfast.agents.snapshots.langchain_agents import AgentCode

        code = AgentCode(*given, accept_changes)
    settings = {} if checkpointer is None else {"checkpointer": checkpointer}
    wanted = contents.RestoreOptions(store, agent_id, live, secrets, secrets_from_env, allow, code, thread, settings)
    return await contents.thaw(header.kind, tree, header.secrets, wanted, place.where)


arestore = _async(restore)
"""The same for asyncio."""


@_sync
async def info(source: Target, **options: Any) -> SnapshotInfo:
    """What a snapshot says of itself. Only its start is read, and the content is not checked: `verify` does."""
    return await _info_of(place_of(source, options))


ainfo = _async(info)
"""The same for asyncio."""


@_sync
async def exists(source: Target, **options: Any) -> bool:
    """Whether there is anything at this place."""
    return await place_of(source, options).exists()


aexists = _async(exists)
"""The same for asyncio."""


@_sync
async def verify(source: Target, *, limit: int = LIMIT, **options: Any) -> SnapshotInfo:
    """Check that every byte of a snapshot is what was written. Nothing in it is made.

    Raises `SnapshotCorruptError`, `SnapshotTooLargeError` or `SnapshotNotFoundError`.
    """
    place = place_of(source, options)
    header, _ = await _opened(place, limit)
    return info_of(header, container.size_of(header), place.where)


averify = _async(verify)
"""The same for asyncio."""


@_sync
async def list(  # noqa: A001 - reads as snapshots.list
    place: Target, *, after: str = "", limit: int | None = None, **options: Any
) -> builtins.list[SnapshotListing]:
    """The snapshots in a directory, or under a prefix in a bucket, in the order of their names.

    Of each only the start is read. What cannot be read is in the list too, with its `problem`. `after` and `limit` give
    one page of many.
    """
    folder = folder_of(place, options)
    entries = [entry for entry in await folder.entries() if entry.name > after]
    found = []
    for entry in entries[: None if limit is None else max(limit, 0)]:
        told: SnapshotInfo | None = None
        problem = entry.problem
        if not problem:
            try:
                told = await _info_of(folder.place(entry.name))
                if told.size != entry.size:
                    problem, told = f"it has {entry.size:,} bytes, and should have {told.size:,}", None
            except SnapshotNotFoundError:
                continue  # deleted meanwhile
            except HoldfastError as error:
                problem = error.what
        found.append(SnapshotListing(folder.where(entry.name), entry.name, entry.size, _moment(entry), told, problem))
    return found


alist = _async(list)
"""The same for asyncio."""


@_sync
async def delete(source: Target, *, force: bool = False, **options: Any) -> None:
    """Delete a snapshot. What is none, by its name or its start, is not deleted; `force` deletes damaged ones."""
    place = place_of(source, options, named=True)
    if not force:
        try:
            await _info_of(place)
        except SnapshotCorruptError as error:
            raise SnapshotInvalidError(
                f"this may be no snapshot: {error.what}", where=place.where, hint="force=True deletes it all the same"
            ) from error
    await place.delete()


adelete = _async(delete)
"""The same for asyncio."""


async def _info_of(place: Location) -> SnapshotInfo:
    header, _ = container.read_header(await place.read(container.HEAD_BYTES), place.where)
    return info_of(header, container.size_of(header), place.where)


def _moment(entry: FolderEntry) -> datetime:
    """When a file was changed. It may have any time that somebody gave it, also one that no calendar has."""
    try:
        return datetime.fromtimestamp(entry.modified, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def _check_description(text: Any) -> None:
    if not isinstance(text, str) or len(text) > MAX_DESCRIPTION or _written(text) != text:
        raise SnapshotInvalidError(f"a description is a text of at most {MAX_DESCRIPTION:,} characters, whole ones")


def _written(text: str) -> str:
    """Text without halves of characters, which cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _check_limit(limit: int) -> None:
    if type(limit) is not int or limit < 0:
        raise SnapshotInvalidError(f"a limit is a number of bytes, not {limit!r}")


async def _opened(place: Location, limit: int) -> tuple[SnapshotHeader, Any]:
    """The header and the tree of a snapshot, both checked."""
    _check_limit(limit)
    data = await place.read(container.most_bytes(limit) + 1)

    def opened() -> tuple[SnapshotHeader, Any]:
        header, content = container.open_file(data, limit, place.where)
        document = strict_json.read(content, place.where)
        if type(document) is not dict or document.keys() != {"kind", "content"} or document["kind"] != header.kind:
            raise SnapshotCorruptError("the content is not of the kind that the header tells", where=place.where)
        return header, document["content"]

    call: BlockingCall[tuple[SnapshotHeader, Any]] = BlockingCall(opened)
    return await call

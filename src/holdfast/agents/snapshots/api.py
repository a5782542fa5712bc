"""Operations on snapshots, each written once for sync callers and asyncio."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from secrets import token_hex
from typing import Any, ParamSpec, TypeVar

from holdfast.agents.snapshots import container, contents, strict_json
from holdfast.agents.snapshots.header import (
    FORMAT,
    VERSION,
    Compression,
    PayloadInfo,
    SnapshotHeader,
    SnapshotInfo,
    SnapshotListing,
    info_of,
)
from holdfast.agents.snapshots.locations import (
    SUFFIX,
    FileObject,
    FileSource,
    FileTarget,
    Location,
    SnapshotStorage,
    Target,
    locate,
    locate_folder,
)
from holdfast.agents.snapshots.secret_scan import SecretScan
from holdfast.backends.interface import BlockingCall
from holdfast.backends.runtime.drivers import arun, run
from holdfast.engine import validation
from holdfast.engine.pages import Page
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
    """Return the sync form, which waits in the calling thread."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(function(*args, **kwargs))

    return wrapper


def _async(sync_form: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the asyncio form of a function of `_sync`."""
    operation: Callable[P, Coroutine[Any, Any, T]] = sync_form.__wrapped__  # type: ignore[attr-defined]

    @wraps(operation)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(operation(*args, **kwargs))

    wrapper.__name__ = wrapper.__qualname__ = f"a{operation.__name__}"
    return wrapper


@_sync
async def snapshot(
    agent: Any,
    target: FileTarget,
    *,
    description: str = "",
    config: Mapping[str, Any] | None = None,
    secrets: Mapping[str, Any] | None = None,
    not_secret: Iterable[str] = (),
    overwrite: bool = False,
    compression: Compression = "gzip",
    limit: int = LIMIT,
    **options: Any,
) -> SnapshotInfo:
    """Write an agent, or any other serializable object of LangChain, to one file.

    `target` is a path that ends in `.hfsnap`, or a URL: `s3://bucket/agent.hfsnap`, `gs://…`, `az://…`; `options` are
    those of the service, as for `holdfast.open`. The file is written completely or not at all, and durable when this
    returns. It may also be a binary file object, such as `io.BytesIO()`, which gets the bytes. `compression` is
    `"gzip"`, `"zstd"` or `"none"`; the file says which, so that reading it needs no option. `config` names a thread of
    an agent with a checkpointer, whose state is included. The content of an agent of an encrypted store is encrypted,
    unless the store was opened with `clear=["export"]`.

    Secrets are never written: fields that a class declares in `lc_secrets` are left out, and their values are refused
    anywhere else, as are the values of `secrets`. Fields with names like secrets, and texts with keys in well-known
    formats, are refused unless `not_secret` lists the name or the path of the field.
    """
    _check_description(description)
    _check_limit(limit)
    container.check_compression(compression)
    location = locate(target, options, require_suffix=True)
    scan = SecretScan(secrets, not_secret)
    content = await contents.dump_content(agent, config, scan)
    time = datetime.now(UTC).isoformat()
    id = token_hex(16)

    def build_header(payload: PayloadInfo) -> SnapshotHeader:
        return SnapshotHeader(
            id=id,
            format=FORMAT,
            version=VERSION,
            kind=content.kind,
            type=content.type,
            name=_encodable(content.name),
            time=time,
            description=description,
            versions=contents.versions(),
            secrets=tuple(sorted(scan.secrets)),
            classes=tuple(sorted(scan.classes)),
            tools=content.tools,
            middleware=content.middleware,
            content=payload,
        )

    def build_file() -> bytes:
        scan.check_texts(content.tree, "content")
        scan.check_texts(description, "description")
        scan.check_texts(content.name, "name")
        tree = content.tree
        if content.key is not None:
            from holdfast.agents.snapshots.holdfast_agents import seal_tree  # it needs the parts of a store

            tree = seal_tree(content.key, tree)
        data = strict_json.write({"kind": content.kind, "content": tree}) + b"\n"
        if len(data) > limit:
            raise SnapshotTooLargeError(
                f"the content has {len(data):,} bytes, and the limit is {limit:,}",
                where=location.where,
                hint="Pass a larger `limit`, here and when you restore",
            )
        strict_json.check_shape(data, location.where)
        return container.build(data, build_header, compression)

    data = await BlockingCall(build_file)
    await location.write(data, overwrite=overwrite)
    return info_of(container.read_header(data, location.where)[0], len(data), location.where)


asnapshot = _async(snapshot)
"""The asyncio form of `snapshot`."""


@_sync
async def restore(
    source: FileSource,
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
    """Restore the object of a snapshot, after checking every byte of it: of a path, a URL, a file object, or bytes.

    `secrets` are the values of the secrets that it needs, by name (`info(source).secrets`); with `secrets_from_env`
    they are also read from the environment. Only classes of langchain-core are instantiated, unless `allow` lists more:
    classes, or `"all"` for every class that LangChain lists. A snapshot is configuration, and a stranger's may send
    your key to another server: allow only what you trust.

    For agents of `create_agent`: pass `tools`, `middleware`, `response_format`, `state_schema` and `context_schema`
    again, since they are code. The agent must be the same with them, unless `accept_changes`. The state of its thread,
    if the snapshot has one, is written to `checkpointer`, or to one in memory, under its name or `thread`. `store` is
    passed to the agent.

    For agents of Holdfast: the agent is saved in `store`, under its id or `agent_id`, which must not be in use there,
    and returned live: its class must be registered. With `live=False` it is only saved, and its record is returned.
    """
    location = locate(source, options)
    for name, given in (("tools", tools), ("middleware", middleware)):
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise SnapshotInvalidError(
                f"{name} must be a list, not {type(given).__name__}", hint=f"restore(…, {name}=[…])"
            )
    header, tree = await _read(location, limit)
    code = None
    parts = (tools, middleware, response_format, state_schema, context_schema)
    if any(each is not None and each != () for each in parts) or accept_changes:
        from holdfast.agents.snapshots.langchain_agents import AgentCode

        code = AgentCode(*parts, accept_changes)
    restore_options = contents.RestoreOptions(
        store, agent_id, live, secrets, secrets_from_env, allow, code, thread, checkpointer
    )
    return await contents.restore_content(header.kind, tree, header.secrets, restore_options, location.where)


arestore = _async(restore)
"""The asyncio form of `restore`."""


@_sync
async def info(source: FileSource, **options: Any) -> SnapshotInfo:
    """Return the header of a snapshot. Only its start is read, and the content is not checked: `verify` does that."""
    return await _info_of(locate(source, options))


"""The asyncio form of `info`."""


@_sync
async def exists(source: Target, **options: Any) -> bool:
    """Return whether there is anything at this path or URL."""
    return await locate(source, options).exists()


"""The asyncio form of `exists`."""


@_sync
async def verify(source: FileSource, *, limit: int = LIMIT, **options: Any) -> SnapshotInfo:
    """Check that every byte of a snapshot is as it was written. No object is created from it.

    Raises `SnapshotCorruptError`, `SnapshotTooLargeError` or `SnapshotNotFoundError`.
    """
    location = locate(source, options)
    header, _ = await _read(location, limit)
    return info_of(header, container.size_of(header), location.where)


"""The asyncio form of `verify`."""


@_sync
async def list(  # noqa: A001 - reads as snapshots.list
    folder: Target, *, limit: int = 100, cursor: str | None = None, **options: Any
) -> Page[SnapshotListing]:
    """List the snapshots in a directory, or under a prefix in a bucket, in the order of their names, a page of them.

    Only the start of each is read. Files that cannot be read are listed with their `problem`.
    """
    return await _list(locate_folder(folder, options), validation.require_count(limit, "limit"), cursor)


async def _list(storage: SnapshotStorage, limit: int, cursor: str | None) -> Page[SnapshotListing]:
    after = validation.cursor_text(cursor)
    entries = sorted(
        entry
        for entry in await storage.list_objects("")
        if entry.name > after and entry.name.endswith(SUFFIX) and entry.name != SUFFIX and "/" not in entry.name
    )
    snapshots = []
    for entry in entries[:limit]:
        location, header, problem = Location(storage, entry.name), None, entry.problem
        if not problem:
            try:
                header = await _info_of(location)
                if header.size != entry.size:
                    problem, header = f"it has {entry.size:,} bytes, and should have {header.size:,}", None
            except SnapshotNotFoundError:
                continue  # deleted in the meantime
            except HoldfastError as error:
                problem = error.what
        modified = _to_datetime(entry.modified)
        snapshots.append(SnapshotListing(location.where, entry.name, entry.size, modified, header, problem))
    following = entries[limit - 1].name if 0 < limit < len(entries) else None
    return Page(snapshots, following, lambda cursor: _list(storage, limit, cursor))


"""The asyncio form of `list`."""


@_sync
async def delete(source: Target, *, force: bool = False, **options: Any) -> None:
    """Delete a snapshot. Other files, by their name or their start, are refused; `force` deletes damaged ones."""
    location = locate(source, options, require_suffix=True)
    if not force:
        try:
            await _info_of(location)
        except SnapshotCorruptError as error:
            raise SnapshotInvalidError(
                f"this may not be a snapshot: {error.what}", where=location.where, hint="force=True deletes it anyway"
            ) from error
    await location.delete()


"""The asyncio form of `delete`."""


async def _info_of(location: Location | FileObject) -> SnapshotInfo:
    header, _ = container.read_header(await location.read(container.HEAD_BYTES), location.where)
    return info_of(header, container.size_of(header), location.where)


def _to_datetime(seconds: float) -> datetime:
    """Return the time of a file; 1970, if it is out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def _check_description(text: Any) -> None:
    if not isinstance(text, str) or len(text) > MAX_DESCRIPTION or _encodable(text) != text:
        raise SnapshotInvalidError(
            f"the description must be a string of at most {MAX_DESCRIPTION:,} characters, without lone surrogates"
        )


def _encodable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _check_limit(limit: int) -> None:
    if type(limit) is not int or limit < 0:
        raise SnapshotInvalidError(f"the limit must be a number of bytes, not {limit!r}")


async def _read(location: Location | FileObject, limit: int) -> tuple[SnapshotHeader, Any]:
    """Read and check the header and the tree of a snapshot."""
    _check_limit(limit)
    data = await location.read(container.max_bytes(limit) + 1)

    def parse() -> tuple[SnapshotHeader, Any]:
        header, content = container.open_file(data, limit, location.where)
        document = strict_json.read(content, location.where)
        if type(document) is not dict or document.keys() != {"kind", "content"} or document["kind"] != header.kind:
            raise SnapshotCorruptError("the content is not of the kind that the header names", where=location.where)
        return header, document["content"]

    call: BlockingCall[tuple[SnapshotHeader, Any]] = BlockingCall(parse)
    return await call

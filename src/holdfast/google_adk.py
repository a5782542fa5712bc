"""Google ADK on Holdfast: `HoldfastSessionService`, `HoldfastArtifactService` and `HoldfastMemoryService`."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from time import time
from typing import Any
from unicodedata import normalize
from urllib.parse import quote

from google.adk.artifacts import BaseArtifactService, artifact_util
from google.adk.artifacts.base_artifact_service import ArtifactVersion, ensure_part
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.memory import BaseMemoryService
from google.adk.memory.base_memory_service import SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import BaseSessionService, Session, State
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from google.genai import types

from holdfast.errors import ConflictError, NotFoundError
from holdfast.interfaces.conversations import MESSAGES, AnyStore, ConversationThread, call, list_threads, require_store
from holdfast.interfaces.peer_sessions import adk_name
from holdfast.state import Append

__all__ = ["HoldfastArtifactService", "HoldfastMemoryService", "HoldfastSessionService"]

_FRAMEWORK = "google-adk"
_STATE, _UPDATED, _SESSION = "state", "updated", "session"
_LATIN = re.compile(r"([a-z0-9_\u00df-\u024f]+)")
_FOUND = 10
"""How many memories a search returns at most."""


async def _items(state: Any, prefix: str = "") -> AsyncIterator[tuple[str, Any]]:
    """Yield the entries of a scope."""
    cursor: str | None = None
    while True:
        page = await call(state.list_items, prefix, cursor=cursor)
        for item in page:
            yield item.key, item.value
        if (cursor := page.next) is None:
            return


def _split(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the entries of the app, of the user and of the session. Temporary ones are not stored."""
    app, user, own = {}, {}, {}
    for key, value in state.items():
        if key.startswith(State.APP_PREFIX):
            app[key.removeprefix(State.APP_PREFIX)] = value
        elif key.startswith(State.USER_PREFIX):
            user[key.removeprefix(State.USER_PREFIX)] = value
        elif not key.startswith(State.TEMP_PREFIX):
            own[key] = value
    return app, user, own


def _form(event: Event) -> dict[str, Any]:
    """Return an event as it is stored: in its JSON form, without what it leaves empty."""
    form: dict[str, Any] = event.model_dump(mode="json", exclude_none=True)
    form["actions"] = {name: value for name, value in form.get("actions", {}).items() if value != {}}
    return form


class _Service:
    """A service of ADK on a store."""

    def __init__(self, store: AnyStore) -> None:
        self._store = require_store(store, type(self).__name__)


class HoldfastSessionService(_Service, BaseSessionService):
    """The sessions of ADK, each in a thread of its own, `adk/APP/USER/SESSION`.

    ::

        runner = Runner(app_name="support", agent=agent, session_service=HoldfastSessionService(store))

    Events are the messages of the thread, and each is a checkpoint, with the state that it changed. State of users and
    of apps is in scopes: `store.state(user="alice", custom="adk/support")` and `store.state(custom="adk/support")`. A
    session that another process continued is stale, and refuses events. A `Store` and an `AsyncStore` do equally, and
    so do their views of identities.
    """

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Start a session. `AlreadyExistsError` if there is one of this id."""
        id = (session_id or "").strip() or str(uuid.uuid4())
        app, user, own = _split(state or {})
        now = time()
        fields = {MESSAGES: [], _STATE: own, _UPDATED: now, _SESSION: [app_name, user_id, id]}
        thread = self._thread(app_name, user_id, id)
        try:
            head = await call(
                thread.handle.put, fields, metadata=thread.mark, parent="", on_conflict="raise", kind="create"
            )
        except ConflictError as error:
            raise AlreadyExistsError(f"Session with id {id} already exists.") from error
        await self._write_shared(app_name, user_id, app, user)
        return await self._session(head.id, fields, [])

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session, perhaps with its latest events only; None if there is none."""
        head = await self._thread(app_name, user_id, session_id.strip()).head()
        if head is None or _SESSION not in head.state:
            return None
        events = head.state[MESSAGES]
        if config is not None and config.after_timestamp is not None:
            events = [each for each in events if each["timestamp"] >= config.after_timestamp]
        if config is not None and config.num_recent_events is not None:
            events = events[max(len(events) - config.num_recent_events, 0) :]
        return await self._session(head.id, head.state, events)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """List the sessions of a user, or of all, without their events, the one that was changed last at the end."""
        prefix = adk_name(app_name, *([user_id] if user_id is not None else [])) + "/"
        found = []
        async for info in list_threads(self._store, prefix=prefix):
            head = await ConversationThread(self._store, info.thread, _FRAMEWORK).head()
            if head is not None and _SESSION in head.state:
                found.append(await self._session(head.id, head.state, []))
        found.sort(key=lambda each: (each.last_update_time, each.user_id, each.id))
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its history. State of the user and of the app stays."""
        with suppress(NotFoundError):
            await call(self._thread(app_name, user_id, session_id.strip()).handle.delete)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user, without the prefixes of its keys."""
        return {key: value async for key, value in _items(self._user_state(app_name, user_id))}

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event with the state that it changes. `StaleSessionError` if the session was continued elsewhere."""
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        thread = self._thread(session.app_name, session.user_id, session.id)
        parent = session._storage_update_marker
        if parent is None:
            head = await thread.head()
            if head is None or _SESSION not in head.state:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            ids = [each["id"] for each in head.state[MESSAGES]]
            if ids[-len(session.events) :] != [each.id for each in session.events] and session.events:
                raise self._stale(session)
            if len(ids) > len(session.events) and head.state[_UPDATED] > session.last_update_time:
                raise self._stale(session)
            parent = head.id
        app, user, own = _split(event.actions.state_delta if event.actions else {})
        await self._write_shared(session.app_name, session.user_id, app, user)
        changes: dict[Any, Any] = {MESSAGES: Append(_form(event))}
        changes |= {_UPDATED: event.timestamp} | {(_STATE, key): value for key, value in own.items()}
        try:
            head = await call(
                thread.handle.update, changes, metadata=thread.mark, parent=parent, on_conflict="raise", kind="event"
            )
        except ConflictError as error:
            raise self._stale(session) from error
        except NotFoundError as error:
            if await thread.head() is None:
                raise SessionNotFoundError(f"Session {session.id} not found.") from error
            raise self._stale(session) from error  # its checkpoint was pruned, so there are later ones
        session.last_update_time, session._storage_update_marker = event.timestamp, head.id
        return self._commit_event_to_session(session, event)

    def _thread(self, app: str, user: str, id: str) -> ConversationThread:
        thread = ConversationThread(self._store, adk_name(app, user, id), _FRAMEWORK)
        thread.mark |= {"app": app, "subject": user}  # whose data it is, as erasure finds it
        return thread

    def _stale(self, session: Session) -> StaleSessionError:
        return StaleSessionError(f"The session {session.id} was continued elsewhere: get it again.")

    def _app_state(self, app: str) -> Any:
        return self._store.state(custom=adk_name(app))

    def _user_state(self, app: str, user: str) -> Any:
        return self._store.state(user=user, custom=adk_name(app))

    async def _write_shared(self, app_name: str, user_id: str, app: dict[str, Any], user: dict[str, Any]) -> None:
        """Set keys of the app and of the user. They are written before the event, which can be appended again."""
        for state, values in ((self._app_state(app_name), app), (self._user_state(app_name, user_id), user)):
            if values:
                await call(state.batch, values)

    async def _session(self, marker: str, fields: Mapping[str, Any], events: Sequence[Any]) -> Session:
        app_name, user_id, id = fields[_SESSION]
        state = dict(fields[_STATE])
        async for key, value in _items(self._app_state(app_name)):
            state[State.APP_PREFIX + key] = value
        async for key, value in _items(self._user_state(app_name, user_id)):
            state[State.USER_PREFIX + key] = value
        session = Session(
            id=id,
            app_name=app_name,
            user_id=user_id,
            state=state,
            events=[Event.model_validate(each) for each in events],
            last_update_time=fields[_UPDATED],
        )
        session._storage_update_marker = marker
        return session


class HoldfastArtifactService(_Service, BaseArtifactService):
    """The artifacts of ADK, in the scopes of their users: `store.state(user="alice", custom="adk/support/artifacts")`.

    A key is a session, or `user`, a file and a version: each version has a key of its own, which a prune of the history
    keeps, and that erasing the user deletes.
    """

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Save the next version of an artifact. Returns its number, from 0."""
        part = ensure_part(artifact)
        if part.inline_data is not None:
            kind = part.inline_data.mime_type
        elif part.text is not None:
            kind = "text/plain"
        elif part.file_data is not None:
            kind = None if artifact_util.is_artifact_ref(part) else part.file_data.mime_type
        else:
            raise InputValidationError("Not supported artifact type.")
        self._follow(part, app_name, user_id, session_id)
        prefix, state = self._place(app_name, user_id, filename, session_id)
        while True:
            version = len(await self._stored(prefix, state))
            key = f"{prefix}{version:08d}"
            record = ArtifactVersion(
                version=version,
                canonical_uri=f"holdfast://{adk_name(app_name, user_id)}/{key}",
                custom_metadata=custom_metadata or {},
                mime_type=kind,
            )
            value = {"file": filename, "part": part.model_dump(exclude_none=True), "version": record.model_dump()}
            try:
                await call(state.set, key, value, expected=0)
            except ConflictError:
                continue  # another version was saved meanwhile
            return version

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """Return the latest version of an artifact, or another; None if there is none."""
        for _ in range(6):
            found = await self._version(app_name, user_id, filename, session_id, version)
            if found is None:
                return None
            part = types.Part.model_validate(found["part"])
            target = self._follow(part, app_name, user_id, session_id)
            if target is None:
                return None if artifact_util._is_rewind_tombstone(part) else part
            filename, session_id, version = target.filename, target.session_id, target.version
        raise InputValidationError("Too many artifact references follow each other.")

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """List the names of the files of a user, and of a session."""
        state = self._state(app_name, user_id)
        found: dict[str, None] = {}
        for prefix in ("user/", *([f"session/{quote(session_id, safe='')}/"] if session_id else [])):
            async for _, value in _items(state, prefix):
                found[value["file"]] = None
        return sorted(found)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions of an artifact."""
        prefix, state = self._place(app_name, user_id, filename, session_id)
        if keys := list(await self._stored(prefix, state)):
            await call(state.batch, {}, delete=keys)

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """List the numbers of the versions of an artifact."""
        return list(range(len(await self._stored(*self._place(app_name, user_id, filename, session_id)))))

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """List the versions of an artifact with their metadata."""
        found = await self._stored(*self._place(app_name, user_id, filename, session_id))
        return [ArtifactVersion.model_validate(value["version"]) for value in found.values()]

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return the metadata of the latest version of an artifact, or of another."""
        found = await self._version(app_name, user_id, filename, session_id, version)
        return None if found is None else ArtifactVersion.model_validate(found["version"])

    def _state(self, app: str, user: str) -> Any:
        return self._store.state(user=user, custom=f"{adk_name(app)}/artifacts")

    def _place(self, app: str, user: str, filename: str, session: str | None) -> tuple[str, Any]:
        """Return what the keys of an artifact start with, and the scope."""
        if filename.startswith("user:"):
            prefix = "user/"
        elif session is None:
            raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
        else:
            prefix = f"session/{quote(session, safe='')}/"
        return f"{prefix}{quote(filename, safe='')}/", self._state(app, user)

    async def _stored(self, prefix: str, state: Any) -> dict[str, Any]:
        return {key: value async for key, value in _items(state, prefix)}

    async def _version(self, app: str, user: str, filename: str, session: str | None, version: int | None) -> Any:
        found = list((await self._stored(*self._place(app, user, filename, session))).values())
        at = len(found) - 1 if version is None else version
        return found[at] if 0 <= at < len(found) else None

    def _follow(self, part: types.Part, app: str, user: str, session: str | None) -> Any:
        """Return what a reference to another artifact names, which must be of the same user and session."""
        if not artifact_util.is_artifact_ref(part):
            return None
        uri = artifact_util.parse_artifact_uri(part.file_data.file_uri)
        if uri is None:
            raise InputValidationError(f"Invalid artifact reference URI: {part.file_data.file_uri}")
        artifact_util.validate_artifact_reference_scope(app_name=app, user_id=user, session_id=session, parsed_uri=uri)
        return uri


class HoldfastMemoryService(_Service, BaseMemoryService):
    """The memory of ADK, in the scopes of its users: `store.state(user="alice", custom="adk/support/memory")`.

    A search returns the memories that have most words of the query, at most ten. It reads all memories of the user.
    """

    async def add_session_to_memory(self, session: Session) -> None:
        """Add the events of a session that are not in the memory yet."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add events that are not in the memory yet. One that was deleted from it does not come back."""
        state = self._state(app_name, user_id)
        known = {key async for key, _ in _items(state)}
        added = {
            event.id: MemoryEntry(
                id=event.id,
                content=event.content,
                author=event.author,
                timestamp=datetime.fromtimestamp(event.timestamp).astimezone().isoformat(),
                custom_metadata={**(custom_metadata or {}), **({"session": session_id} if session_id else {})},
            ).model_dump(mode="json", exclude_none=True)
            for event in events
            if event.content and event.content.parts and event.id not in known
        }
        if added:
            await call(state.batch, added)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add memories."""
        added = {}
        for memory in memories:
            id = memory.id or str(uuid.uuid4())
            metadata = {**(custom_metadata or {}), **memory.custom_metadata}
            fields = memory.model_copy(update={"id": id, "custom_metadata": metadata})
            added[id] = fields.model_dump(mode="json", exclude_none=True)
        if added:
            await call(self._state(app_name, user_id).batch, added)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the memories that have most words of a text, at most ten."""
        wanted = _words(query)
        scores: Counter[str] = Counter()
        found = {}
        async for id, value in _items(self._state(app_name, user_id)):
            if value is not None:
                text = " ".join(part.get("text") or "" for part in value["content"].get("parts") or ())
                words, lower = _parts_of(_words(text)), normalize("NFC", text).lower()
                if score := sum(word in words or (not word.isascii() and word in lower) for word in wanted):
                    scores[id], found[id] = score, value
        return SearchMemoryResponse(
            memories=[MemoryEntry.model_validate(found[id]) for id, _ in scores.most_common(_FOUND)]
        )

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete a memory, for good: its event is not added again."""
        if memory_id is not None:
            await call(self._state(app_name, user_id).set, memory_id, None)

    def _state(self, app: str, user: str) -> Any:
        return self._store.state(user=user, custom=f"{adk_name(app)}/memory")


def _words(text: str) -> set[str]:
    """Return the words of a text."""
    return {word.lower() for word in re.findall(r"\w+", normalize("NFC", text))}


def _parts_of(words: set[str]) -> set[str]:
    """Return words, and their parts in Latin and in other scripts, which are not apart where there are no spaces."""
    return words | {part for word in words if not word.isascii() for part in _LATIN.split(word) if part}

"""The API of shared resources: `store.sharing.topic("news")`, and requests, pipelines and documents alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, sync_or_async
from holdfast.security.handle import ScopeParts, StoreHandle, parse_scope

if TYPE_CHECKING:  # each is loaded when it is first used
    from holdfast.state.sharing.documents import AsyncDocument, Document
    from holdfast.state.sharing.pipeline import AsyncPipeline, Pipeline
    from holdfast.state.sharing.requests import AsyncRequests, Requests
    from holdfast.state.sharing.resource import Pattern, SharedResource
    from holdfast.state.sharing.topic import AsyncTopic, Topic


@declare(not_remote="Open the store itself for topics, requests, pipelines and documents.")
class SharingOperations:
    """Operations of `store.sharing`. Parts (`workflow="w1"`) name the scope that a resource belongs to, if any."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    def _topic(self, name: str, /, **parts: Unpack[ScopeParts]) -> Topic:
        """Return a topic: messages that every subscriber gets, in order."""
        from holdfast.state.sharing.topic import Topic

        return Topic(self._shared("topic", name, parts))

    @sync_or_async(_topic)
    def topic(self, name: str, /, **parts: Unpack[ScopeParts]) -> AsyncTopic:
        from holdfast.state.sharing.topic import AsyncTopic

        return AsyncTopic(self._shared("topic", name, parts))

    def _requests(self, name: str, /, **parts: Unpack[ScopeParts]) -> Requests:
        """Return the requests of a name: any responder answers any caller."""
        from holdfast.state.sharing.requests import Requests

        return Requests(self._shared("requests", name, parts))

    @sync_or_async(_requests)
    def requests(self, name: str, /, **parts: Unpack[ScopeParts]) -> AsyncRequests:
        from holdfast.state.sharing.requests import AsyncRequests

        return AsyncRequests(self._shared("requests", name, parts))

    def _pipeline(
        self, name: str, /, stages: Sequence[str], *, tries: int = 5, **parts: Unpack[ScopeParts]
    ) -> Pipeline:
        """Return a pipeline: items pass through its stages, each once. An item is tried `tries` times at a stage."""
        from holdfast.state.sharing.pipeline import Pipeline

        return Pipeline(self._shared("pipeline", name, parts), stages, tries)

    @sync_or_async(_pipeline)
    def pipeline(
        self, name: str, /, stages: Sequence[str], *, tries: int = 5, **parts: Unpack[ScopeParts]
    ) -> AsyncPipeline:
        from holdfast.state.sharing.pipeline import AsyncPipeline

        return AsyncPipeline(self._shared("pipeline", name, parts), stages, tries)

    def _document(self, name: str, /, **parts: Unpack[ScopeParts]) -> Document:
        """Return a document that many edit concurrently without losing an edit."""
        from holdfast.state.sharing.documents import Document

        return Document(self._shared("document", name, parts))

    @sync_or_async(_document)
    def document(self, name: str, /, **parts: Unpack[ScopeParts]) -> AsyncDocument:
        from holdfast.state.sharing.documents import AsyncDocument

        return AsyncDocument(self._shared("document", name, parts))

    def _shared(self, pattern: Pattern, name: str, parts: ScopeParts) -> SharedResource:
        from holdfast.state.sharing.resource import find_resource

        return find_resource(self._handle, pattern, name, parse_scope(self._handle, None, parts))


class Sharing(SyncApi, SharingOperations):
    """`store.sharing` of a `Store`."""


class AsyncSharing(AsyncApi, SharingOperations):
    """`store.sharing` of an `AsyncStore`: operations are awaited."""

"""Scoped state: keys and values of agents, users, sessions and workflows, each scope a line of steps."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.model.operators import AddToSet as AddToSet
    from holdfast.engine.model.operators import Append as Append
    from holdfast.engine.model.operators import Increment as Increment
    from holdfast.engine.model.operators import Max as Max
    from holdfast.engine.model.operators import UpdateOperator as UpdateOperator
    from holdfast.engine.model.scopes import Scope as Scope
    from holdfast.engine.model.scopes import ScopePart as ScopePart
    from holdfast.state.access_api import AccessOperations as AccessOperations
    from holdfast.state.access_api import AsyncStoreAccess as AsyncStoreAccess
    from holdfast.state.access_api import Grant as Grant
    from holdfast.state.access_api import StoreAccess as StoreAccess
    from holdfast.state.access_api import Token as Token
    from holdfast.state.access_api import Until as Until
    from holdfast.state.access_api import Who as Who
    from holdfast.state.api import ScopedOperations as ScopedOperations
    from holdfast.state.api import StateTransaction as StateTransaction
    from holdfast.state.artifacts.api import ArtifactLink as ArtifactLink
    from holdfast.state.artifacts.api import Artifacts as Artifacts
    from holdfast.state.artifacts.api import ArtifactsOperations as ArtifactsOperations
    from holdfast.state.artifacts.api import ArtifactSource as ArtifactSource
    from holdfast.state.artifacts.api import AsyncArtifacts as AsyncArtifacts
    from holdfast.state.artifacts.api import LinkBlock as LinkBlock
    from holdfast.state.artifacts.records import Artifact as Artifact
    from holdfast.state.history import HistoryEntry as HistoryEntry
    from holdfast.state.reader import StateItem as StateItem
    from holdfast.state.scope_state import AsyncState as AsyncState
    from holdfast.state.scope_state import State as State
    from holdfast.state.scope_state import StateOperations as StateOperations
    from holdfast.state.scopes import ScopeInfo as ScopeInfo
    from holdfast.state.sessions.api import RETENTION as RETENTION
    from holdfast.state.sessions.api import AsyncSession as AsyncSession
    from holdfast.state.sessions.api import AsyncSessions as AsyncSessions
    from holdfast.state.sessions.api import Session as Session
    from holdfast.state.sessions.api import SessionOperations as SessionOperations
    from holdfast.state.sessions.api import Sessions as Sessions
    from holdfast.state.sessions.api import SessionsOperations as SessionsOperations
    from holdfast.state.sessions.lifecycle import SessionReport as SessionReport
    from holdfast.state.sharing.api import AsyncSharing as AsyncSharing
    from holdfast.state.sharing.api import Sharing as Sharing
    from holdfast.state.sharing.documents import AsyncDocument as AsyncDocument
    from holdfast.state.sharing.documents import Document as Document
    from holdfast.state.sharing.documents import DocumentVersion as DocumentVersion
    from holdfast.state.sharing.pipeline import AsyncPipeline as AsyncPipeline
    from holdfast.state.sharing.pipeline import DeadItem as DeadItem
    from holdfast.state.sharing.pipeline import Pipeline as Pipeline
    from holdfast.state.sharing.pipeline import PipelineResult as PipelineResult
    from holdfast.state.sharing.pipeline import PipelineStats as PipelineStats
    from holdfast.state.sharing.pipeline import PipelineTask as PipelineTask
    from holdfast.state.sharing.requests import AsyncRequests as AsyncRequests
    from holdfast.state.sharing.requests import Request as Request
    from holdfast.state.sharing.requests import Requests as Requests
    from holdfast.state.sharing.topic import AsyncSubscription as AsyncSubscription
    from holdfast.state.sharing.topic import AsyncTopic as AsyncTopic
    from holdfast.state.sharing.topic import PublishedMessage as PublishedMessage
    from holdfast.state.sharing.topic import Subscriber as Subscriber
    from holdfast.state.sharing.topic import Subscription as Subscription
    from holdfast.state.sharing.topic import Topic as Topic
    from holdfast.state.sharing.topic import TopicMessage as TopicMessage
    from holdfast.state.transactions import AsyncTransactionState as AsyncTransactionState
    from holdfast.state.transactions import TransactionOperations as TransactionOperations
    from holdfast.state.transactions import TransactionState as TransactionState
    from holdfast.state.watcher import AsyncWatch as AsyncWatch
    from holdfast.state.watcher import Watch as Watch
    from holdfast.state.watcher import WatchedChange as WatchedChange
    from holdfast.state.watcher import WatchOperations as WatchOperations

_MODULES = {
    "holdfast.engine.model.operators": ("AddToSet", "Append", "Increment", "Max", "UpdateOperator"),
    "holdfast.engine.model.scopes": ("Scope", "ScopePart"),
    "holdfast.state.access_api": (
        "AccessOperations",
        "AsyncStoreAccess",
        "Grant",
        "StoreAccess",
        "Token",
        "Until",
        "Who",
    ),
    "holdfast.state.api": ("ScopedOperations", "StateTransaction"),
    "holdfast.state.artifacts.api": (
        "ArtifactLink",
        "Artifacts",
        "ArtifactsOperations",
        "ArtifactSource",
        "AsyncArtifacts",
        "LinkBlock",
    ),
    "holdfast.state.artifacts.records": ("Artifact",),
    "holdfast.state.history": ("HistoryEntry",),
    "holdfast.state.reader": ("StateItem",),
    "holdfast.state.scope_state": ("AsyncState", "State", "StateOperations"),
    "holdfast.state.scopes": ("ScopeInfo",),
    "holdfast.state.sessions.api": (
        "AsyncSession",
        "AsyncSessions",
        "RETENTION",
        "Session",
        "SessionOperations",
        "Sessions",
        "SessionsOperations",
    ),
    "holdfast.state.sessions.lifecycle": ("SessionReport",),
    "holdfast.state.sharing.api": ("AsyncSharing", "Sharing"),
    "holdfast.state.sharing.documents": ("AsyncDocument", "Document", "DocumentVersion"),
    "holdfast.state.sharing.topic": (
        "AsyncSubscription",
        "AsyncTopic",
        "PublishedMessage",
        "Subscriber",
        "Subscription",
        "Topic",
        "TopicMessage",
    ),
    "holdfast.state.sharing.pipeline": (
        "AsyncPipeline",
        "DeadItem",
        "Pipeline",
        "PipelineResult",
        "PipelineStats",
        "PipelineTask",
    ),
    "holdfast.state.sharing.requests": ("AsyncRequests", "Request", "Requests"),
    "holdfast.state.transactions": ("AsyncTransactionState", "TransactionOperations", "TransactionState"),
    "holdfast.state.watcher": ("AsyncWatch", "Watch", "WatchedChange", "WatchOperations"),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)

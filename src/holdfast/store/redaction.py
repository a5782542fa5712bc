"""Sensitive data in a store: `store.redaction.protect(…)`, `.scan()`, `.reveal(…)`."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.engine.guard import OWNER, Authority, acting
from holdfast.engine.model.scopes import Scope
from holdfast.engine.namespaces import LineKinds, parse_kinds
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line
from holdfast.engine.types import Progress
from holdfast.errors import InvalidError, NotFoundError
from holdfast.security.access.identity_guard import DenialReason, IdentityGuard
from holdfast.security.audit.thread_audit import record
from holdfast.security.handle import ScopeParts, StoreHandle, owner_handle, parse_scope
from holdfast.security.sensitive.detector import Detector, Formats, Recognizer, parse_formats
from holdfast.security.sensitive.log_filter import LogFilter, add_filter
from holdfast.security.sensitive.markers import VARIABLE, KeySource, Markers
from holdfast.security.sensitive.packed_values import replace_texts
from holdfast.security.sensitive.protector import Action, PolicySet, Protector, SensitivePolicy, check_action, domain_of
from holdfast.security.sensitive.scan import SensitiveReport, SensitiveScan

if TYPE_CHECKING:
    from holdfast.maintenance.erasure.redaction import RedactionReport
    from holdfast.security.sensitive.credential_check import CredentialReport

T = TypeVar("T")

_ALL: Final = "**"


@declare(not_in_scripts="The host decides what is protected.")
class RevealOperations:
    """Reveals tokens. Identities have this much of `store.redaction`."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    @operation(rights=("keys",))
    async def reveal(
        self,
        value: T,
        *,
        thread: str | None = None,
        scope: Scope | str | None = None,
        keys: KeySource | None = None,
        **parts: Unpack[ScopeParts],
    ) -> T:
        """Return a value with the tokens of a thread, or of a scope, replaced by what they stand for.

        `value` is what was read: text, a state, a message. Tokens of other threads stay as they are. The keys are those
        of the policies of this program, or else in the environment. An identity needs the right `keys` to the thread;
        scopes are for the store's owner. It is recorded in the audit before this returns, without the values.
        """
        line, actor = await self._allow(thread, scope, parts), self._handle.guard.actor
        known = _all_markers(self._handle, keys)
        codec = self._handle.codec
        formats: list[str] = []
        left = 0

        def replace(path: object, name: str, text: str) -> str:  # noqa: ARG001
            nonlocal left
            for each in known:
                text, found, other = each.reveal(text, domain_of(line))
                formats.extend(found)
                left += other
            return text

        (packed,) = codec.pack_items([value])
        revealed: T = codec.unpack_items([replace_texts(packed, (), "", replace)])[0]
        detail = {"formats": {name: formats.count(name) for name in sorted(set(formats))}, "left": left}
        with acting(Authority(actor) if actor else OWNER):
            await record(self._handle.engine, [line], "reveal", detail)
        return revealed

    async def _allow(self, thread: str | None, scope: Scope | str | None, parts: ScopeParts) -> Line:
        """Return the line whose tokens are revealed, if that is allowed."""
        guard = self._handle.guard
        if thread is not None:
            if scope is not None or parts:
                raise InvalidError("tokens are those of a thread or of a scope: give one of them")
            line = self._handle.thread_line(thread)
            await guard.allow_thread("keys", line)
            return line
        where = parse_scope(self._handle, scope, parts)
        if isinstance(guard, IdentityGuard):
            raise await guard.denied_error("reveal", where, (), _OWNER_ONLY)
        return self._handle.line(where)


_OWNER_ONLY = DenialReason("tokens of scopes are revealed by the store's owner", "Ask the owner of the store")


@declare(not_in_scripts="The host decides what is protected.")
class RedactionOperations(RevealOperations):
    """Operations on sensitive data. `Redaction` and `AsyncRedaction` have these as methods."""

    def __init__(self, handle: StoreHandle) -> None:
        super().__init__(owner_handle(handle))

    def protect(
        self,
        action: Action = "tokenise",
        *,
        formats: Formats = "credentials",
        scope: Scope | str = _ALL,
        key: str = _ALL,
        keys: KeySource | str | None = None,
        name: str | None = None,
        recognizers: Sequence[Recognizer] = (),
    ) -> None:
        """Protect sensitive data that is saved through this store from now on, before anything is written.

        `action` says what is done with it: `tokenise` replaces it by a token that `reveal` turns back; `redact` by a
        keyed digest; `refuse` raises `DeniedError`; `encrypt` is `tokenise` under keys of its own, which are given;
        `allow` leaves it as it is. `formats` are `credentials`, `personal`, `all`, or names such as `email`. `scope`
        is a pattern of scopes and of threads, `key` one of keys and of channels. Where several policies match, the last
        one that was added and names the format decides; one of the same name is replaced.

        The keys of digests and tokens come from `keys`, such as `file:PATH`, by default from the environment. `redact`
        needs none: without a key, it leaves no digest. `recognizers` find what no format describes.
        """
        act = check_action(action)
        if isinstance(keys, str):
            from holdfast.security.sensitive.settings import key_source

            keys = key_source(keys)
        place, channel = str(scope), key
        matcher(place), matcher(channel)
        if act == "encrypt" and keys is None:
            raise InvalidError(
                "the action encrypt has keys of its own", hint="keys='file:…', or use the action tokenise"
            )
        markers = None
        if act in ("tokenise", "encrypt") or (act == "redact" and (keys or os.environ.get(VARIABLE))):
            source = keys or _environment_keys()
            markers = Markers(source, self._handle.tenant, "sealed" if act == "encrypt" else "token")
            if act != "redact":
                markers.tokenise("check", "field", "")  # so that a missing library is missed now
        label = f"{act} {place} {channel}" if name is None else name
        policy = SensitivePolicy(label, act, parse_formats(formats), place, channel, markers, tuple(recognizers))
        protector = self._protector()
        protector.policies = PolicySet([*(each for each in protector.policies.policies if each.name != label), policy])
        add_filter(protector)

    def remove(self, name: str) -> None:
        """Remove a policy, by its name. Raises `NotFoundError`."""
        protector = self._protector()
        rest = [each for each in protector.policies.policies if each.name != name]
        if len(rest) == len(protector.policies.policies):
            raise NotFoundError("there is no such policy", where=repr(name)[:80])
        protector.policies = PolicySet(rest)

    def list(self) -> list[SensitivePolicy]:
        """List the policies, in the order in which they were added."""
        protection = self._handle.engine.protection
        return [*protection.policies.policies] if isinstance(protection, Protector) else []

    def log_filter(self) -> logging.Filter:
        """Return a filter for handlers of the program's log, that redacts what the policies name.

        `logging.getLogger().handlers[0].addFilter(store.redaction.log_filter())`. Holdfast's own loggers have it.
        """
        return LogFilter(self._protector())

    @operation
    async def scan(
        self,
        *,
        formats: Formats = "credentials",
        kinds: LineKinds = "all",
        history: bool = False,
        progress: Progress | None = None,
    ) -> SensitiveReport:
        """Search what is stored: the latest state of each thread, scope and agent, its pending writes, and what its
        runs and their steps were given and returned. With `history`, everything that their steps
        wrote, and the details of the audit. The report has paths and formats, and no values."""
        from holdfast.agents.runs.steps import stored_values

        detector = Detector(parse_formats(formats))
        scan = SensitiveScan(self._handle.engine, self._handle.tenant, detector, beside=stored_values)
        return await scan.run(parse_kinds(kinds), history=history, progress=progress)

    @operation
    async def credentials(self, *, seconds: float | None = None) -> CredentialReport:
        """Return where credentials are in clear, and of which format, without the credentials.

        A job that every runner has looks for them in what was saved: `JobRunner`, or `holdfast jobs work`. This goes on
        where the job was, for at most so many `seconds`, and stores nothing.
        """
        from holdfast.security.sensitive.credential_check import look

        return await look(self._handle.engine, self._handle.tenant, seconds)

    @operation(changes=True, confirm=True)
    async def redact(
        self, *, formats: Formats | None = None, kinds: LineKinds = "all", progress: Progress | None = None
    ) -> RedactionReport:
        """Replace sensitive data in what is stored by `[redacted:…]`, and remove its bytes: by default what
        `credentials` reports.

        The latest state of each branch that has some is saved again without it, and the checkpoints that have it are
        pruned: their states cannot be read any more, and their hashes still prove the history. In details of the audit
        and in reasons it is replaced where it is. What a policy allows stays, and so do names. `protect` is for what is
        saved from now on. `DeniedError` if a legal hold protects such a checkpoint. Backups and other copies stay as
        they are. If it is interrupted, call it again.
        """
        from holdfast.maintenance.erasure.redaction import redact_stored
        from holdfast.security.sensitive.credential_check import noticed_formats

        detector = Detector(noticed_formats() if formats is None else parse_formats(formats))
        return await redact_stored(self._handle.engine, self._handle.tenant, detector, parse_kinds(kinds), progress)

    def _protector(self) -> Protector:
        engine = self._handle.engine
        if not isinstance(engine.protection, Protector):
            engine.bind_protection(Protector(engine))
        protection: Any = engine.protection
        assert isinstance(protection, Protector)  # noqa: S101 - see above
        return protection


def _all_markers(handle: StoreHandle, keys: KeySource | None) -> Sequence[Markers]:
    """Return the markers to reveal tokens with."""
    if keys is not None:
        return [Markers(keys, handle.tenant, "token"), Markers(keys, handle.tenant, "sealed")]
    protection = handle.engine.protection
    if isinstance(protection, Protector) and protection.policies.markers:
        return protection.policies.markers
    return [Markers(_environment_keys(), handle.tenant)]


def _environment_keys() -> KeySource:
    from holdfast.security.encryption.provider import EnvironmentKeys  # it needs an extra

    return EnvironmentKeys(VARIABLE)


class Redaction(SyncApi, RedactionOperations):
    """Sensitive data of a `Store`."""


class AsyncRedaction(AsyncApi, RedactionOperations):
    """Sensitive data of an `AsyncStore`."""


class IdentityRedaction(SyncApi, RevealOperations):
    """Tokens of sensitive data, for an identity."""


class AsyncIdentityRedaction(AsyncApi, RevealOperations):
    """Tokens of sensitive data, for an identity, awaited."""

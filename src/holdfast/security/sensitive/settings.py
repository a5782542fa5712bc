"""Policies of sensitive data by settings: `redaction` of a store in `holdfast.toml`, or `HOLDFAST_REDACTION`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import ConfigError
from holdfast.security.encryption.settings import provider_for
from holdfast.security.sensitive.markers import KeySource

_KNOWN: Final = ("action", "formats", "scope", "key", "keys", "name")
_HINT: Final = 'Such as "tokenise", "redact:personal", or { action = "refuse", formats = "card", scope = "support-*" }'


def policies_of(settings: object) -> list[dict[str, Any]]:
    """Return the arguments of `store.redaction.protect` for each policy that settings name: one of them, or a list; an
    action as text, after which a colon and formats may follow, or a table."""
    each = settings if isinstance(settings, list) else [settings]
    return [_policy(one) for one in each]


def _policy(setting: object) -> dict[str, Any]:
    if isinstance(setting, str):
        action, _, formats = setting.partition(":")
        return {"action": action, "formats": formats} if formats else {"action": action}
    if not isinstance(setting, Mapping):
        raise ConfigError(f"a policy of redaction must be a text or a table, not {type(setting).__name__}", hint=_HINT)
    if unknown := sorted(setting.keys() - set(_KNOWN)):
        raise ConfigError(f"redaction has no setting {unknown[0]!r}", hint=f"It takes {', '.join(_KNOWN)}")
    for name, value in setting.items():
        texts = value if name == "formats" and isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"the setting {name} of redaction must be text", hint=_HINT)
    policy = dict(setting)
    if "keys" in policy:
        policy["keys"] = key_source(policy["keys"])
    return policy


def key_source(text: str) -> KeySource:
    """Return where keys are. Those of a KMS never leave it, and cannot make digests."""
    provider: Any = provider_for(text)
    if not callable(getattr(provider, "keys", None)):
        raise ConfigError(
            f"keys of redaction must be in the environment, a file or a key ring, not {text.partition(':')[0]!r}",
            hint="Such as environment:HOLDFAST_REDACTION_KEYS, or file:/etc/holdfast-redaction.key",
        )
    source: KeySource = provider
    return source

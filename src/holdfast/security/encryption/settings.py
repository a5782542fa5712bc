"""How a store is encrypted: an argument of `holdfast.open`, or settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

from holdfast.errors import ConfigError
from holdfast.security.encryption.provider import EnvironmentKeys, FileKeys, KeyProvider, KeyringKeys

Mode: TypeAlias = Literal["on", "turning-on", "turning-off"]
"""`turning-on` also reads rows that are not encrypted yet; `turning-off` stores no more that are."""

Clear: TypeAlias = Literal["readable", "words", "export"]
"""The parts that may contain content that is not encrypted: readable rows, the text index, exported files."""

VARIABLE = "HOLDFAST_ENCRYPTION"

_HINT = "Such as environment, file:/etc/holdfast.key, passphrase:/etc/recovery, keyring:default or aws-kms:alias/mine"


@dataclass(frozen=True)
class Encryption:
    """Encrypts a store at rest: `holdfast.open(url, encryption=Encryption("file:holdfast.key"))`.

    `keys` is where the master key is: a provider of keys, or a text that names one, such as `environment`, `file:PATH`,
    `keyring:NAME`, `passphrase:PATH` or `aws-kms:KEY`. `clear` names what may be stored in the clear all the same. With
    `hide_names`, names of threads, scopes, agents, tags and keys are stored as digests: a store has that from the
    start, or never.
    `indexed` names entries of metadata, such as `user` or `run.id`, that are found by equality without decrypting all
    the others; it is declared when the store is created, and then known. The store's own keys are asked for again after
    `max_age` seconds, or when they decrypted `max_uses` keys of threads.
    """

    keys: KeyProvider | str
    mode: Mode = "on"
    clear: Collection[Clear] = ()
    max_age: float = 3600.0
    max_uses: int = 1_000_000
    hide_names: bool = False
    indexed: Collection[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.keys, KeyProvider | str):
            raise ConfigError(
                f"keys must be a provider of keys or a string, not {type(self.keys).__name__}", hint=_HINT
            )
        self.provider  # noqa: B018 - raises ConfigError for a text that names none
        if self.mode not in get_args(Mode):
            raise ConfigError(f"mode must be one of {', '.join(get_args(Mode))}, not {self.mode!r}")
        unknown = [each for each in self.clear if each not in get_args(Clear)]
        if isinstance(self.clear, str) or unknown:
            raise ConfigError(f"clear must be some of {', '.join(get_args(Clear))}, not {self.clear!r}")
        if type(self.hide_names) is not bool:
            raise ConfigError(f"hide_names must be True or False, not {self.hide_names!r}")
        if self.hide_names and (self.mode != "on" or {"readable", "words"}.intersection(self.clear)):
            raise ConfigError(
                "hide_names is for stores that are encrypted from the start, without readable rows and a text index",
                hint="Copy everything into a new store, with store.maintenance.copy_to",
            )
        names = self.indexed or ()
        if isinstance(names, str) or not all(names):
            raise ConfigError(f"indexed must be a list of names of metadata, not {self.indexed!r}")
        if not self.max_age > 0 or not self.max_uses > 0:
            raise ConfigError("max_age and max_uses are greater than 0")

    @cached_property
    def provider(self) -> KeyProvider:
        """The provider of the master key."""
        return provider_for(self.keys) if isinstance(self.keys, str) else self.keys

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Encryption:
        """Return what the table `[encryption]` of `holdfast.toml` says, or the variable `HOLDFAST_ENCRYPTION`."""
        known = {"keys", "mode", "clear", "max_age", "max_uses", "hide_names", "indexed"}
        if unknown := sorted(settings.keys() - known):
            raise ConfigError(
                f"encryption takes no setting {unknown[0]!r}", hint=f"It takes {', '.join(sorted(known))}"
            )
        keys = settings.get("keys")
        if not isinstance(keys, str):
            raise ConfigError("encryption needs the setting keys, a text", hint=_HINT)
        return cls(**settings)


def provider_for(text: str) -> KeyProvider:
    """Return the provider that a text names."""
    kind, _, rest = text.partition(":")
    if kind == "environment":
        return EnvironmentKeys(rest) if rest else EnvironmentKeys()
    if kind == "file" and rest:
        return FileKeys(rest)
    if kind == "keyring":
        return KeyringKeys(rest) if rest else KeyringKeys()
    if kind == "passphrase" and rest:
        from holdfast.security.encryption.provider import PassphraseKeys

        return PassphraseKeys(rest)
    if kind == "aws-kms" and rest:
        from holdfast.security.encryption.provider import AwsKms

        return AwsKms(rest)
    # The text is not quoted: it may be a key.
    raise ConfigError("the text names no provider of keys", hint=f"{_HINT}; a key itself is passed as LocalKeys(key)")

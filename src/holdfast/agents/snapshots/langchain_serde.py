"""Objects of LangChain's as JSON and back, with LangChain's own `dumpd` and `load`.

What LangChain would quietly drop or change is refused with the path to it: `dumpd` writes `not_implemented` for what it
cannot keep, and makes lists of tuples and texts of numbers that are keys. Data of the user's that looks like an object
of LangChain's is escaped by `dumpd` and stays data. On the way back, a tree is checked as a whole before `load` sees
it: nothing is made, and nothing imported, of which the class was not allowed.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, get_origin

from langchain_core.documents import Document
from langchain_core.load import dumpd, load
from langchain_core.load.load import Reviver
from langchain_core.load.serializable import Serializable
from langchain_core.messages import BaseMessage
from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError

from holdfast.agents.snapshots.secret_scan import SecretScan, told
from holdfast.errors import (
    ConfigError,
    SnapshotCorruptError,
    SnapshotInvalidError,
    SnapshotRefusedError,
    SnapshotUnsupportedError,
)

Allowed: TypeAlias = "str | type | Iterable[str | type]"
"""Classes, and `"messages"`, `"core"` or `"all"` for those of LangChain's own lists."""

_load = inspect.unwrap(load)
"""Without the warning that it is new, which cannot be held back in one thread alone."""

ESCAPED = "__lc_escaped__"
_LISTS = ("messages", "core", "all")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OBJECT_KEYS = {"lc", "type", "id", "kwargs", "name"}
_SCALARS = (str, int, float, bool, type(None))


# Out ----------------------------------------------------------------------------------------------------------------


def dump(value: Any, path: str, gathering: SecretScan) -> Any:
    """A value as a tree of JSON. Raises `SnapshotUnsupportedError` or `SnapshotRefusedError`, with the path to the
    fault."""
    _Checking(gathering).value(value, path, told=False)
    return dumpd(value)


class _Checking:
    """A walk through a value, the way that `dumpd` goes."""

    def __init__(self, gathering: SecretScan) -> None:
        self._gathering = gathering
        self._core = Reviver("core").allowed_class_paths or set()
        self._open: set[int] = set()
        self._inside_data = 0
        """Inside of how many dicts the walk is that look like objects: `dumpd` leaves alone what is in these."""

    def value(self, value: Any, path: str, *, told: bool) -> None:
        """Check a value. `told` is true for what was said or read, where a field named `password` is only talk."""
        if isinstance(value, Serializable | dict | list | tuple):
            if id(value) in self._open:
                raise SnapshotUnsupportedError("the value contains itself", where=path)
            self._open.add(id(value))
            try:
                self._container(value, path, told)
            except RecursionError:
                raise SnapshotUnsupportedError("the value nests too deeply", where=path[:200]) from None
            finally:
                self._open.discard(id(value))
        elif isinstance(value, SecretStr | SecretBytes):
            raise SnapshotRefusedError(
                "a secret stands where its class does not declare one", where=path, hint="Declare it in lc_secrets"
            )
        elif type(value) is float and not math.isfinite(value):
            raise SnapshotUnsupportedError(f"JSON has no {value}", where=path)
        elif type(value) not in _SCALARS:
            raise SnapshotUnsupportedError(
                f"a {_name(type(value))} cannot be kept: LangChain does not serialize it",
                where=path,
                hint="Leave it out, or give it again when you restore. Functions and tools are code, not data",
            )

    def _container(self, value: Any, path: str, told: bool) -> None:
        if isinstance(value, Serializable):
            self._object(value, path, told)
        elif isinstance(value, dict):
            self._dict(value, path, told)
        elif type(value) is list:
            for index, item in enumerate(value):
                self.value(item, f"{path}[{index}]", told=told)
        else:
            raise SnapshotUnsupportedError(
                f"a {_name(type(value))} would come back as a list", where=path, hint="Make it a list"
            )

    def _object(self, value: Serializable, path: str, told: bool) -> None:
        if self._inside_data:
            raise SnapshotUnsupportedError("an object stands in data that looks like an object's", where=path)
        shown = value.to_json()
        if shown["type"] != "constructor":
            raise SnapshotUnsupportedError(
                f"a {_name(type(value))} cannot be kept: it says of itself that it is not serializable",
                where=path,
                hint="Its class has to return True from is_lc_serializable()",
            )
        if tuple(shown["id"]) not in self._core:
            self._gathering.classes.add(".".join(shown["id"]))
        told = told or isinstance(value, BaseMessage | Document)
        fields = type(value).model_fields
        for key, item in shown["kwargs"].items():
            own, at = getattr(value, key, None), f"{path}.{key}"
            if _is_marker(item) and own != item:  # LangChain has put it in the place of the secret
                self._gathering.found_secret(item["id"][0], own)
                continue
            if isinstance(own, dict) and own != item:  # the same, somewhere inside: `load` would leave the mark there
                raise SnapshotUnsupportedError(
                    f"{_name(type(value))} declares a secret inside of a field, which LangChain does not give back",
                    where=at,
                    hint="Have the class keep it in a field of its own",
                )
            if key == "template_format" and item == "jinja2":
                raise SnapshotRefusedError(
                    "templates of jinja2 can run code, and LangChain does not load them",
                    where=at,
                    hint="Use an f-string or mustache template",
                )
            if not told:
                self._gathering.check_field(key, item, at)
            if key in fields and _restores(fields[key].annotation, item):
                item = list(item) if isinstance(item, tuple) else str(item)
            self.value(item, at, told=told)

    def _dict(self, value: dict[Any, Any], path: str, told: bool) -> None:
        escaped = "lc" in value or (len(value) == 1 and ESCAPED in value)
        self._inside_data += escaped
        for key, item in value.items():
            at = f"{path}.{key}"
            if type(key) is not str:
                raise SnapshotUnsupportedError(f"the key {key!r} is no text", where=path, hint="Make it one")
            if not told:
                self._gathering.check_field(key, item, at)
            self.value(item, at, told=told)
        self._inside_data -= escaped


def _restores(annotation: Any, value: Any) -> bool:
    """Whether a field makes of a list, or a text, again what it was."""
    if isinstance(value, tuple):
        return (get_origin(annotation) or annotation) is tuple
    return isinstance(value, str) and isinstance(annotation, type) and isinstance(value, annotation)


def _is_marker(value: Any) -> bool:
    return isinstance(value, dict) and value.get("lc") == 1 and value.get("type") == "secret"


def _name(cls: type) -> str:
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


# Back ---------------------------------------------------------------------------------------------------------------


class RevivalRules(NamedTuple):
    """What may be revived, and with which secrets."""

    lists: str
    mappings: dict[tuple[str, ...], tuple[str, ...]]
    namespaces: list[str]
    secrets: dict[str, str]


def rules(allow: Allowed, secrets: Mapping[str, Any] | None, *, from_env: bool, names: Iterable[str]) -> RevivalRules:
    """The rules by which to revive. `names` are the secrets that the snapshot asks for. Raises
    `SnapshotInvalidError`."""
    lists = "core"
    mappings: dict[tuple[str, ...], tuple[str, ...]] = {}
    spaces: list[str] = []
    for each in (allow,) if isinstance(allow, str | type) else allow:
        if isinstance(each, str):
            if each not in _LISTS:
                raise SnapshotInvalidError(
                    f"{each!r} is no list of classes", hint="Give classes, or 'messages', 'core' or 'all'"
                )
            lists = each
            continue
        cls = _allowed(each)
        mappings[tuple(cls.lc_id())] = (*cls.__module__.split("."), cls.__name__)
        spaces += [cls.lc_id()[0], cls.__module__.partition(".")[0]]
    known = told(secrets)
    if from_env:
        known = {name: os.environ[name] for name in names if os.environ.get(name)} | known
    missing = sorted(set(names) - known.keys())
    if missing:
        raise SnapshotInvalidError(
            f"the snapshot needs secrets that were not given: {', '.join(missing)}",
            hint=f"restore(…, secrets={{{missing[0]!r}: …}}), or secrets_from_env=True",
        )
    return RevivalRules(lists, mappings, spaces, {name: known[name] for name in names})


def _allowed(given: Any) -> type[Serializable]:
    """A class that the caller allows, if LangChain will find it where it says that it is."""
    if not (isinstance(given, type) and issubclass(given, Serializable)):
        raise SnapshotInvalidError(f"{given!r} is no class that LangChain serializes", hint="allow=[MyChatModel]")
    found: object = getattr(sys.modules.get(given.__module__), given.__name__, None)
    if found is not given:
        raise SnapshotInvalidError(
            f"{_name(given)} is not to be found where it says that it is", hint="Define it at the top of a module"
        )
    return given


def revive(tree: Any, path: str, rules: RevivalRules) -> Any:
    """The value of a tree. Raises `SnapshotRefusedError`, `SnapshotCorruptError` or `SnapshotInvalidError`, with the
    path."""
    reviver = Reviver(rules.lists, additional_import_mappings=rules.mappings)  # type: ignore[arg-type]
    asked = _check(tree, path, reviver, rules)
    try:
        made = _load(
            tree,
            allowed_objects=rules.lists,
            secrets_map=rules.secrets,
            valid_namespaces=rules.namespaces,
            secrets_from_env=False,
            additional_import_mappings=rules.mappings,
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the snapshot needs {error.name}, which is not installed", hint="Install it", code="not-installed"
        ) from error
    except Exception as error:  # noqa: BLE001 - whatever a constructor raises
        raise SnapshotInvalidError(
            f"LangChain cannot make it again: {_told_of(error, rules)[:500]}",
            where=path,
            hint="See whether the versions of LangChain are those that the snapshot was made with",
        ) from (None if rules.secrets else error)
    _check_made(made, path, asked)
    return made


def _told_of(error: Exception, rules: RevivalRules) -> str:
    """What an error says, without the secrets that a constructor was given: Pydantic shows what it got, or its ends."""
    if not rules.secrets:
        return str(error)
    if isinstance(error, ValidationError):
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in faults)
    return re.sub("|".join(map(re.escape, rules.secrets.values())), "…", str(error))


class _Asked(NamedTuple):
    """A secret that an object is to be given: the name of its class, the field, and the name of the secret."""

    cls: str
    field: str
    secret: str


def _check(tree: Any, path: str, reviver: Reviver, rules: RevivalRules) -> set[_Asked]:
    """Refuse a tree that `load` must not see. Returns which secrets it asks for, and where."""
    asked = set()
    left: list[tuple[Any, str, tuple[str, str] | None]] = [(tree, path, None)]
    while left:
        value, at, holder = left.pop()
        if type(value) is list:
            left += [(item, f"{at}[{index}]", None) for index, item in enumerate(value)]
        if type(value) is not dict or (len(value) == 1 and ESCAPED in value):
            continue
        if "lc" not in value:
            left += [(item, f"{at}.{key}", None) for key, item in value.items()]
        elif value.get("type") == "secret":
            asked.add(_Asked(*_checked_secret(value, at, holder, rules)))
        else:
            id = _checked_id(value, at, reviver)
            # Nothing of langchain-core's has a secret: there, it would be read out by the next prompt.
            holds = reviver.import_mappings.get(id, id)[0] != "langchain_core"
            left += [(item, f"{at}.{key}", (id[-1], key) if holds else None) for key, item in value["kwargs"].items()]
    return asked


def _check_made(made: Any, path: str, asked: set[_Asked]) -> None:
    """Refuse objects that came about in another way than `_check` and `load` look at.

    Pydantic makes objects of plain dicts, and so templates of jinja2 that LangChain did not see. And a secret that
    stands in another field than its class declares, as a name or a header, would be told to whom it is none of his.
    """
    left, seen, declared = [made], set(), set[_Asked]()
    while left:
        value = left.pop()
        if not isinstance(value, BaseModel | dict | list | tuple) or id(value) in seen:
            continue
        seen.add(id(value))
        if not isinstance(value, BaseModel):
            left += value.values() if isinstance(value, dict) else value
            continue
        if getattr(value, "template_format", None) == "jinja2":
            raise SnapshotRefusedError("templates of jinja2 can run code, and are not read", where=path)
        if asked and isinstance(value, Serializable):
            shown: Mapping[str, Any] = value.to_json()
            kwargs = shown.get("kwargs", {}).items()
            declared |= {_Asked(shown["id"][-1], key, item["id"][0]) for key, item in kwargs if _is_marker(item)}
        left += value.__dict__.values()
    for wrong in sorted(asked - declared):
        raise SnapshotRefusedError(
            f"the snapshot asks for the secret {wrong.secret} in {wrong.field} of {wrong.cls}, which does not say that "
            "this is one",
            where=path,
            hint="It may have been made to have the secret told to somebody",
        )


def _checked_secret(
    value: dict[str, Any], at: str, holder: tuple[str, str] | None, rules: RevivalRules
) -> tuple[str, str, str]:
    id = value.get("id")
    if type(value["lc"]) is not int or set(value) != {"lc", "type", "id"} or type(id) is not list or len(id) != 1:
        raise SnapshotCorruptError("this is no place for a secret that LangChain writes", where=at)
    if holder is None or type(id[0]) is not str or id[0] not in rules.secrets:
        raise SnapshotRefusedError(
            f"the snapshot asks for a secret where none belongs: {id[0]!r}",
            where=at,
            hint="It may have been made to have the secret told to somebody",
        )
    return (*holder, id[0])


def _checked_id(value: dict[str, Any], at: str, reviver: Reviver) -> tuple[str, ...]:
    id, kwargs = value.get("id"), value.get("kwargs")
    if value.get("type") == "not_implemented":
        raise SnapshotCorruptError("an object is in it of which LangChain kept only the name", where=at)
    if type(value["lc"]) is not int or value["lc"] != 1 or value.get("type") != "constructor":
        raise SnapshotCorruptError("this is no object that LangChain writes", where=at)
    if type(kwargs) is not dict or not value.keys() <= _OBJECT_KEYS or type(id) is not list or len(id) < 2:
        raise SnapshotCorruptError("this is no object that LangChain writes", where=at)
    if not all(type(part) is str and _NAME.fullmatch(part) for part in id):
        raise SnapshotCorruptError("this is no name of a class", where=at)
    if reviver.allowed_class_paths is None or tuple(id) not in reviver.allowed_class_paths:
        # That of a class in the caller's own script has the like, `__main__`, and is in order if he allows it.
        if any(part.startswith("__") for part in id if part != "__main__"):
            raise SnapshotCorruptError("this is no name of a class", where=at)
        raise SnapshotRefusedError(
            f"objects of {'.'.join(id)} are not allowed",
            where=at,
            hint=f"If you trust the snapshot: restore(…, allow=[{id[-1]}]), or allow='all' for what LangChain lists",
        )
    return tuple(id)

"""Convert objects of LangChain to JSON and back, with LangChain's own `dumpd` and `load`.

Values that LangChain would silently drop or change are refused with their path: `dumpd` writes `not_implemented` for
objects that it cannot serialize, and converts tuples to lists and number keys to text. User data that looks like an
object of LangChain is escaped by `dumpd` and stays data. On the way back, a tree is checked completely before `load`
gets it: no object is created, and nothing is imported, whose class was not allowed.
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

from holdfast.agents.snapshots.secret_scan import SecretScan, secret_texts
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
"""Without the warning that it is in beta, which cannot be suppressed in one thread only."""

ESCAPED = "__lc_escaped__"
_LISTS = ("messages", "core", "all")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OBJECT_KEYS = {"lc", "type", "id", "kwargs", "name"}
_SCALARS = (str, int, float, bool, type(None))


# Dump ---------------------------------------------------------------------------------------------------------------


def dump(value: Any, path: str, scan: SecretScan) -> Any:
    """Convert a value to a tree of JSON. Raises `SnapshotUnsupportedError` or `SnapshotRefusedError`, with the path."""
    _DumpCheck(scan).value(value, path, is_message=False)
    return dumpd(value)


class _DumpCheck:
    """Checks a value in the order in which `dumpd` visits it."""

    def __init__(self, scan: SecretScan) -> None:
        self._scan = scan
        self._core = Reviver("core").allowed_class_paths or set()
        self._open: set[int] = set()
        self._inside_data = 0
        """The number of enclosing dicts that look like objects, whose contents `dumpd` does not convert."""

    def value(self, value: Any, path: str, *, is_message: bool) -> None:
        """Check a value. `is_message` is true inside messages and documents, where texts are prose."""
        if isinstance(value, Serializable | dict | list | tuple):
            if id(value) in self._open:
                raise SnapshotUnsupportedError("the value contains itself", where=path)
            self._open.add(id(value))
            try:
                self._container(value, path, is_message)
            except RecursionError:
                raise SnapshotUnsupportedError("the value nests too deeply", where=path[:200]) from None
            finally:
                self._open.discard(id(value))
        elif isinstance(value, SecretStr | SecretBytes):
            raise SnapshotRefusedError(
                "a secret is in a field that its class does not declare", where=path, hint="Declare it in lc_secrets"
            )
        elif type(value) is float and not math.isfinite(value):
            raise SnapshotUnsupportedError(f"JSON has no {value}", where=path)
        elif type(value) not in _SCALARS:
            raise SnapshotUnsupportedError(
                f"a {_name(type(value))} cannot be stored: LangChain does not serialize it",
                where=path,
                hint="Leave it out, or give it again when you restore. Functions and tools are code, not data",
            )

    def _container(self, value: Any, path: str, is_message: bool) -> None:
        if isinstance(value, Serializable):
            self._object(value, path, is_message)
        elif isinstance(value, dict):
            self._dict(value, path, is_message)
        elif type(value) is list:
            for index, item in enumerate(value):
                self.value(item, f"{path}[{index}]", is_message=is_message)
        else:
            raise SnapshotUnsupportedError(
                f"a {_name(type(value))} would come back as a list", where=path, hint="Make it a list"
            )

    def _object(self, value: Serializable, path: str, is_message: bool) -> None:
        if self._inside_data:
            raise SnapshotUnsupportedError(
                "plain data that looks like a serialized object contains an object", where=path
            )
        data = value.to_json()
        if data["type"] != "constructor":
            raise SnapshotUnsupportedError(
                f"a {_name(type(value))} cannot be stored: its class says that it is not serializable",
                where=path,
                hint="Its class has to return True from is_lc_serializable()",
            )
        if tuple(data["id"]) not in self._core:
            self._scan.classes.add(".".join(data["id"]))
        is_message = is_message or isinstance(value, BaseMessage | Document)
        fields = type(value).model_fields
        for key, item in data["kwargs"].items():
            attribute, at = getattr(value, key, None), f"{path}.{key}"
            if _is_secret_marker(item) and attribute != item:  # LangChain has replaced the secret by a marker
                self._scan.add_secret(item["id"][0], attribute)
                continue
            if (
                isinstance(attribute, dict) and attribute != item
            ):  # a marker inside the dict, which `load` would not replace
                raise SnapshotUnsupportedError(
                    f"{_name(type(value))} declares a secret inside a field, which LangChain does not restore",
                    where=at,
                    hint="Store it in a field of its own",
                )
            if key == "template_format" and item == "jinja2":
                raise SnapshotRefusedError(
                    "jinja2 templates can run code, and LangChain does not load them",
                    where=at,
                    hint="Use an f-string or mustache template",
                )
            self._scan.check_field(key, item, at, is_message=is_message)
            if key in fields and _is_restored(fields[key].annotation, item):
                item = list(item) if isinstance(item, tuple) else str(item)
            self.value(item, at, is_message=is_message)

    def _dict(self, value: dict[Any, Any], path: str, is_message: bool) -> None:
        escaped = "lc" in value or (len(value) == 1 and ESCAPED in value)
        self._inside_data += escaped
        for key, item in value.items():
            at = f"{path}.{key}"
            if type(key) is not str:
                raise SnapshotUnsupportedError(f"the key {key!r} is not a string", where=path, hint="Use a string")
            self._scan.check_field(key, item, at, is_message=is_message)
            self.value(item, at, is_message=is_message)
        self._inside_data -= escaped


def _is_restored(annotation: Any, value: Any) -> bool:
    """Whether a field converts a list, or a text, back to its own type."""
    if isinstance(value, tuple):
        return (get_origin(annotation) or annotation) is tuple
    return isinstance(value, str) and isinstance(annotation, type) and isinstance(value, annotation)


def _is_secret_marker(value: Any) -> bool:
    return isinstance(value, dict) and value.get("lc") == 1 and value.get("type") == "secret"


def _name(cls: type) -> str:
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


# Revive -------------------------------------------------------------------------------------------------------------


class RevivalRules(NamedTuple):
    """The classes that may be revived, and the secrets."""

    lists: str
    mappings: dict[tuple[str, ...], tuple[str, ...]]
    namespaces: list[str]
    secrets: dict[str, str]


def build_rules(
    allow: Allowed, secrets: Mapping[str, Any] | None, *, from_env: bool, names: Iterable[str]
) -> RevivalRules:
    """Build the rules for `revive`. `names` are the secrets that the snapshot asks for. Raises
    `SnapshotInvalidError`."""
    lists = "core"
    mappings: dict[tuple[str, ...], tuple[str, ...]] = {}
    namespaces: list[str] = []
    if not isinstance(allow, str | type | Iterable):
        raise SnapshotInvalidError(f"allow is a list of classes, not {allow!r}"[:200], hint="allow=[MyChatModel]")
    for each in (allow,) if isinstance(allow, str | type) else allow:
        if isinstance(each, str):
            if each not in _LISTS:
                raise SnapshotInvalidError(
                    f"{each!r} is not a list of classes", hint="Give classes, or 'messages', 'core' or 'all'"
                )
            lists = each
            continue
        cls = _check_allowed(each)
        mappings[tuple(cls.lc_id())] = (*cls.__module__.split("."), cls.__name__)
        namespaces += [cls.lc_id()[0], cls.__module__.partition(".")[0]]
    texts = secret_texts(secrets)
    if from_env:
        texts = {name: os.environ[name] for name in names if os.environ.get(name)} | texts
    missing = sorted(set(names) - texts.keys())
    if missing:
        raise SnapshotInvalidError(
            f"the snapshot needs secrets that were not given: {', '.join(missing)}",
            hint=f"restore(…, secrets={{{missing[0]!r}: …}}), or secrets_from_env=True",
        )
    return RevivalRules(lists, mappings, namespaces, {name: texts[name] for name in names})


def _check_allowed(cls: Any) -> type[Serializable]:
    """Return a class that the caller allows, if LangChain can import it by its name."""
    if not (isinstance(cls, type) and issubclass(cls, Serializable)):
        raise SnapshotInvalidError(f"{cls!r} is not a class that LangChain serializes", hint="allow=[MyChatModel]")
    imported: object = getattr(sys.modules.get(cls.__module__), cls.__name__, None)
    if imported is not cls:
        raise SnapshotInvalidError(
            f"{_name(cls)} cannot be imported by its name", hint="Define it at the top of a module"
        )
    return cls


def revive(tree: Any, path: str, rules: RevivalRules) -> Any:
    """Create the value of a tree. Raises `SnapshotRefusedError`, `SnapshotCorruptError` or `SnapshotInvalidError`, with
    the path."""
    reviver = Reviver(rules.lists, additional_import_mappings=rules.mappings)  # type: ignore[arg-type]
    uses = _check_tree(tree, path, reviver, rules)
    try:
        value = _load(
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
            f"LangChain cannot create the object: {_error_text(error, rules)[:500]}",
            where=path,
            hint="Check that the versions of LangChain are those of the snapshot",
        ) from (None if rules.secrets else error)
    _check_value(value, path, uses)
    return value


def _error_text(error: Exception, rules: RevivalRules) -> str:
    """Return the text of an error without the secrets that a constructor got: Pydantic shows its input, or parts of
    it."""
    if not rules.secrets:
        return str(error)
    if isinstance(error, ValidationError):
        details = error.errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in details)
    return re.sub("|".join(map(re.escape, rules.secrets.values())), "…", str(error))


class _SecretUse(NamedTuple):
    """The use of a secret by an object: the name of its class, the field, and the name of the secret."""

    cls: str
    field: str
    secret: str


def _check_tree(tree: Any, path: str, reviver: Reviver, rules: RevivalRules) -> set[_SecretUse]:
    """Refuse a tree that `load` must not get. Returns the secrets that it uses."""
    uses = set()
    stack: list[tuple[Any, str, tuple[str, str] | None]] = [(tree, path, None)]
    while stack:
        value, at, holder = stack.pop()
        if type(value) is list:
            stack += [(item, f"{at}[{index}]", None) for index, item in enumerate(value)]
        if type(value) is not dict or (len(value) == 1 and ESCAPED in value):
            continue
        if "lc" not in value:
            stack += [(item, f"{at}.{key}", None) for key, item in value.items()]
        elif value.get("type") == "secret":
            uses.add(_check_secret(value, at, holder, rules))
        else:
            id = _check_id(value, at, reviver)
            # No class of langchain-core has a secret: there, it would be read out by the next prompt.
            may_use = reviver.import_mappings.get(id, id)[0] != "langchain_core"
            kwargs = value["kwargs"].items()
            stack += [(item, f"{at}.{key}", (id[-1], key) if may_use else None) for key, item in kwargs]
    return uses


def _check_value(value: Any, path: str, uses: set[_SecretUse]) -> None:
    """Refuse objects that were created in a way that `_check_tree` and `load` do not see.

    Pydantic creates objects from plain dicts, and so templates of jinja2 that LangChain did not see. And a secret in
    another field than its class declares, such as a name or a header, would be disclosed.
    """
    stack, visited, declared = [value], set(), set[_SecretUse]()
    while stack:
        each = stack.pop()
        if not isinstance(each, BaseModel | dict | list | tuple) or id(each) in visited:
            continue
        visited.add(id(each))
        if not isinstance(each, BaseModel):
            stack += each.values() if isinstance(each, dict) else each
            continue
        if getattr(each, "template_format", None) == "jinja2":
            raise SnapshotRefusedError("jinja2 templates can run code, so they are not loaded", where=path)
        if uses and isinstance(each, Serializable):
            data: Mapping[str, Any] = each.to_json()
            kwargs = data.get("kwargs", {}).items()
            declared |= {
                _SecretUse(data["id"][-1], key, item["id"][0]) for key, item in kwargs if _is_secret_marker(item)
            }
        stack += each.__dict__.values()
    for wrong in sorted(uses - declared):
        raise SnapshotRefusedError(
            f"the snapshot asks for the secret {wrong.secret} in {wrong.field} of {wrong.cls}, which is not "
            "declared as a secret",
            where=path,
            hint="The snapshot may have been forged to disclose the secret",
        )


def _check_secret(value: dict[str, Any], at: str, holder: tuple[str, str] | None, rules: RevivalRules) -> _SecretUse:
    id = value.get("id")
    if type(value["lc"]) is not int or set(value) != {"lc", "type", "id"} or type(id) is not list or len(id) != 1:
        raise SnapshotCorruptError("this is not a valid marker of a secret", where=at)
    if holder is None or type(id[0]) is not str or id[0] not in rules.secrets:
        raise SnapshotRefusedError(
            f"the snapshot asks for a secret where none belongs: {id[0]!r}",
            where=at,
            hint="The snapshot may have been forged to disclose the secret",
        )
    return _SecretUse(*holder, id[0])


def _check_id(value: dict[str, Any], at: str, reviver: Reviver) -> tuple[str, ...]:
    id, kwargs = value.get("id"), value.get("kwargs")
    if value.get("type") == "not_implemented":
        raise SnapshotCorruptError("LangChain stored only the name of an object", where=at)
    if type(value["lc"]) is not int or value["lc"] != 1 or value.get("type") != "constructor":
        raise SnapshotCorruptError("this is not a valid LangChain object", where=at)
    if type(kwargs) is not dict or not value.keys() <= _OBJECT_KEYS or type(id) is not list or len(id) < 2:
        raise SnapshotCorruptError("this is not a valid LangChain object", where=at)
    if not all(type(part) is str and _NAME.fullmatch(part) for part in id):
        raise SnapshotCorruptError("this is not a valid class name", where=at)
    if reviver.allowed_class_paths is None or tuple(id) not in reviver.allowed_class_paths:
        # The id of a class in the caller's own script has `__main__`, which is valid if the caller allows the class.
        if any(part.startswith("__") for part in id if part != "__main__"):
            raise SnapshotCorruptError("this is not a valid class name", where=at)
        raise SnapshotRefusedError(
            f"objects of {'.'.join(id)} are not allowed",
            where=at,
            hint=f"If you trust the snapshot: restore(…, allow=[{id[-1]}]), or allow='all' for what LangChain lists",
        )
    return tuple(id)

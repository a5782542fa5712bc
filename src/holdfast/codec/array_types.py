"""numpy and pandas values.

Loaded only once a process meets such a value, and the pandas half only once it meets one of pandas: whoever uses
neither pays for neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.codec import numpy_types
from holdfast.codec.tags import Tag
from holdfast.codec.type_handler import Dumper, Unpacking


def dumper(kind: type) -> Dumper | None:
    """How instances of a class of numpy or pandas are packed, or None if it is not one of values.

    Raises `UnsupportedError` for those that hold data in a way that could not come back the same.
    """
    if not _is_pandas(kind):
        return numpy_types.dumper(kind)
    from holdfast.codec import pandas_types

    return pandas_types.dumper(kind)


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """The values inside an array, index or table, each with what its path gains, to locate a failure."""
    if not _is_pandas(type(value)):
        return numpy_types.children(value)
    from holdfast.codec import pandas_types

    return pandas_types.children(value)


def _is_pandas(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pandas"


def _load_pandas(tag: Tag) -> Callable[[Unpacking, bytes], Any]:
    def load(u: Unpacking, data: bytes) -> Any:
        from holdfast.codec import pandas_types

        return pandas_types.LOADERS[tag](u, data)

    return load


LOADERS: dict[Tag, Callable[[Unpacking, bytes], Any]] = {
    **numpy_types.LOADERS,
    **{tag: _load_pandas(tag) for tag in Tag if Tag.TIMESTAMP <= tag <= Tag.INTERVAL},
}
"""What makes values of a tag again. To be called only where the library is loaded already."""

"""Compression of single records.

The dictionary by which small records are compressed: words and names that most of them have.

It is made from everyday English and from the names of fields that models and frameworks use, never from stored data.
Each dictionary has its own number in the envelope (`Compression`), and never changes: a record that was compressed by
it could not be read by another. What is near the end is found at the least cost.
"""

from __future__ import annotations

import sys
import zlib
from enum import IntEnum
from functools import cache
from typing import Any

from msgspec.msgpack import encode

from holdfast.errors import CorruptError, TooLargeError, UnsupportedError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_TEXT = """\
traceback most recent call last exception error message file line import return class def self none true false async \
await function value string number array object select from where order by insert into values update set null not \
exists https://www. http:// .com/ .org/ .html .json utf-8 application/json text/plain image/png base64 monday tuesday \
wednesday thursday friday saturday sunday january february march april may june july august september october november \
december euro dollar percent customer account order payment invoice delivery ticket address email phone support \
product service company project meeting schedule report summary document search result results query question answer \
example option options information details available required possible important different following however therefore \
because although instead between without within during against through another something anything everything nothing \
someone always never often sometimes usually really actually already perhaps probably please thank you thanks sorry \
hello welcome yes okay sure let me know if you have any questions i would like to i can help you with that here is the \
here are some you can also make sure that based on the for example in order to as well as such as there is there are \
this is it is that is what is how to do you want could you should be will be has been have been had been would be can \
be may be is not are not do not does not did not was not cannot user assistant system agent tool model input output \
data state step plan task next first second last new old good best better more most less least many much very just \
only even still also then than when where which while who whose why how what about after before again over under up \
down out off on in at by to of for with from into onto and or but so if because as until each every all any both few \
some other same own one two three four five six seven eight nine ten day week month year time today tomorrow yesterday \
now later soon people person man woman child world country city house home work school life way thing part place case \
point fact hand side end line kind form name number group problem change use used using make made get got give given \
take taken come came go gone going see seen know known think thought say said tell told ask asked find found want need \
try call called help show start stop run look feel seem become leave keep let begin turn move live believe bring \
happen write read provide sit stand lose pay meet include continue set learn lead understand watch follow create speak \
allow add spend grow open walk win offer remember love consider appear buy wait serve die send expect build stay fall \
cut reach kill remain he she they them their his her its we us our your my me i a an the of the in the to the on the \
for the and the that the with the to be it was he was from the at the by the this the is a of a in a to a as a with a \
for a and a the """

_CHECKPOINT = ["input", "loop", "update", "fork", "source", "step", "parents", "thread_id", "checkpoint_ns", "run_id"]
_STEP = [
    *("checkpoint_id", "ts", "channel_values", "channel_versions", "versions_seen", "pending_sends", "v"),
    *("__pregel_tasks", "__pregel_pull", "__pregel_push", "__interrupt__", "__resume__", "__error__", "__return__"),
    *("~__pregel_pull, __start__", "~__pregel_pull, agent", "~__pregel_pull, model", "~__pregel_pull, tools"),
    *("branch:to:tools", "branch:to:agent", "branch:to:model", "seen by agent", "seen by model", "seen by tools"),
    *("version of branch:to:tools", "version of branch:to:agent", "version of branch:to:model", "seen by __start__"),
    *("version of __start__", "version of messages", "updated_channels", "__checkpoint__", "__start__", "messages"),
]
_USAGE = {
    "input_tokens": 0,
    "output_tokens": 0,
    "total_tokens": 0,
    "input_token_details": {"cache_read": 0, "cache_creation": 0, "audio": 0},
    "output_token_details": {"reasoning": 0},
}
_RESPONSE = {
    "token_usage": {
        "completion_tokens": 0,
        "prompt_tokens": 0,
        "total_tokens": 0,
        "completion_tokens_details": None,
        "prompt_tokens_details": None,
    },
    "model_provider": "anthropic",
    "model_name": "gpt-",
    "model": "claude-",
    "system_fingerprint": None,
    "service_tier": "default",
    "id": "chatcmpl-",
    "finish_reason": "tool_calls",
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "logprobs": None,
}
_CALL = {"name": "search", "args": {"query": ""}, "id": "call_", "type": "tool_call"}
_BLOCKS = [
    {"type": "tool_use", "id": "toolu_", "name": "", "input": {}},
    {"type": "image_url", "image_url": {"url": ""}},
]
_MESSAGE: dict[str, Any] = {
    "content": "",
    "additional_kwargs": {},
    "response_metadata": {},
    "type": "human",
    "name": None,
    "id": None,
}
_MESSAGES = [
    {**_MESSAGE, "type": "tool", "tool_call_id": "call_", "artifact": None, "status": "error"},
    {**_MESSAGE, "type": "tool", "tool_call_id": "toolu_", "artifact": None, "status": "success"},
    {**_MESSAGE, "type": "system"},
    {**_MESSAGE, "response_metadata": _RESPONSE, "type": "ai", "tool_calls": [_CALL], "usage_metadata": _USAGE},
    {**_MESSAGE, "type": "ai", "id": "run-", "tool_calls": [], "invalid_tool_calls": [], "usage_metadata": None},
    _MESSAGE,
    {"role": "assistant", "content": [{"type": "text", "text": ""}]},
    {"role": "user", "content": ""},
]


def dictionary_bytes() -> bytes:
    """Return the content of dictionary 1."""
    return _TEXT.encode() + b"".join(map(encode, (_CHECKPOINT, _BLOCKS, *_MESSAGES, _STEP)))


@cache
def dictionary() -> zstd.ZstdDict:
    """Return dictionary 1."""
    return zstd.ZstdDict(dictionary_bytes(), is_raw=True)


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class Compression(IntEnum):
    """How a body is compressed. Part of the storage format."""

    NONE = 0
    ZSTD = 1
    GZIP = 2
    """For files that other tools should be able to open."""
    ZSTD_DICTIONARY_1 = 3
    """With the first dictionary."""


_SMALL = 128
"""Fewer bytes are not worth compressing."""

_LARGE = 1 << 16
"""More bytes are compressed without a dictionary, which would help little, and at a higher level."""

_CHUNK = 1 << 20
"""More bytes are compressed one part after the other: at once, the compressor reserves as many again for the result."""

_WINDOW_LOG_MAX = 27
"""Limits the memory that reading a frame may take to 128 MB."""


def compress(data: bytes, method: Compression | None = None) -> tuple[Compression, bytes]:
    """Compress data if that makes it smaller, or by the given method in any case."""
    if method is None:
        if len(data) < _SMALL:
            return Compression.NONE, data
        method = Compression.ZSTD if len(data) > _LARGE else Compression.ZSTD_DICTIONARY_1
        body = compress(data, method)[1]
        return (method, body) if len(body) < len(data) else (Compression.NONE, data)
    if method is Compression.ZSTD_DICTIONARY_1:
        return method, _compress_small(data)
    if method is Compression.ZSTD:
        return method, zstd.compress(data, 3) if len(data) <= _CHUNK else _compress_in_chunks(data)
    if method is Compression.GZIP:
        import gzip  # rarely used

        return method, gzip.compress(data, 6, mtime=0)
    return method, data


_idle: list[zstd.ZstdCompressor] = []
"""Compressors with the dictionary that no thread is using: to create one takes longer than to compress a step."""


def _compress_small(data: bytes) -> bytes:
    try:
        compressor = _idle.pop()
    except IndexError:
        compressor = zstd.ZstdCompressor(1, zstd_dict=dictionary().as_digested_dict)
    body = compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
    _idle.append(compressor)  # not if it was interrupted: it would go on with the same frame
    return body


def _compress_in_chunks(data: bytes) -> bytes:
    compressor = zstd.ZstdCompressor(3)
    compressor.set_pledged_input_size(len(data))  # for the frame's header, and to choose parameters
    view = memoryview(data)
    parts = [compressor.compress(view[start : start + _CHUNK]) for start in range(0, len(data), _CHUNK)]
    return b"".join((*parts, compressor.flush()))


def decompress(method: int, body: bytes, size: int, max_bytes: int, where: str = "") -> bytes:
    """Decompress exactly `size` bytes, and never more."""
    if size > max_bytes:
        raise TooLargeError(
            f"a record claims to hold {size} bytes, over the limit of {max_bytes}",
            where=where,
            hint="Raise max_bytes of the codec if you trust its source",
        )
    data = body
    if method != Compression.NONE:
        stream = _decompressor(method, where)
        try:
            # One byte more than claimed detects a frame that holds more, without decompressing all of it.
            data = stream.decompress(body, max_length=size + 1)
        except (zstd.ZstdError, zlib.error):
            data = b""
        if not stream.eof or stream.unused_data:
            raise _wrong_size(size, where)
    if len(data) != size:
        raise _wrong_size(size, where)
    return data


def _decompressor(method: int, where: str) -> Any:
    if method == Compression.GZIP:
        return zlib.decompressobj(wbits=31)
    if method not in (Compression.ZSTD, Compression.ZSTD_DICTIONARY_1):
        raise newer_release(f"a record is compressed by method {method}, which this release does not know", where)
    by = dictionary() if method == Compression.ZSTD_DICTIONARY_1 else None
    return zstd.ZstdDecompressor(by, options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX})


def _wrong_size(size: int, where: str) -> CorruptError:
    return CorruptError(f"a record does not decompress to the {size} bytes it claims", where=where)


def newer_release(what: str, where: str) -> UnsupportedError:
    """Return the error for what only a newer release can read."""
    return UnsupportedError(what, where=where, hint="Read it with a newer release of Holdfast")

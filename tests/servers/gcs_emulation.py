"""An emulation of Google Cloud Storage: the requests that the driver makes for Holdfast, with their conditions.

Google has no server to run, and fake-gcs-server does not serve the XML API's PUT of an object, which the driver uses.
This follows the documents of that API: strong consistency, generations, `x-goog-if-generation-match`, ranges, listings
in pages, and tokens that a service account signs. Anything else is answered with 501, so that a test fails if the
driver begins to use it. Objects are rows of an SQLite database, which survives a kill of the server.

`python gcs_emulation.py PORT BUCKET DATABASE PUBLIC_KEY` serves one bucket to the owner of a key.
"""

from __future__ import annotations

import base64
import email.utils
import json
import re
import sqlite3
import sys
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

PAGE = 1000
_CONDITION = "x-goog-if-generation-match"
_LAST = "\U0010ffff"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class StoredObject(NamedTuple):
    """An object, without its content."""

    name: str
    generation: int
    modified: float
    size: int

    @property
    def e_tag(self) -> str:
        """The tag of this generation."""
        return f'"{self.generation:x}"'


class Objects:
    """The objects of a bucket. Each method is one transaction."""

    def __init__(self, database: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(database, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, generation INTEGER, modified REAL, body BLOB)"
        )

    def put(self, name: str, body: bytes, if_generation: str | None) -> StoredObject:
        """Store an object if its generation is as expected; 0 means that there is none."""
        with self._lock:
            row = self._connection.execute("SELECT generation FROM objects WHERE name = ?", (name,)).fetchone()
            generation = row[0] if row else 0
            if if_generation is not None and int(if_generation) != generation:
                raise Refused(412, "PreconditionFailed", "At least one of the pre-conditions did not hold.")
            now = time.time()
            made = StoredObject(name, max(int(now * 1e6), generation + 1), now, len(body))
            self._connection.execute(
                "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", (name, made.generation, now, body)
            )
            return made

    def get(self, name: str) -> tuple[StoredObject, bytes]:
        """Read an object."""
        with self._lock:
            row = self._connection.execute(
                "SELECT name, generation, modified, length(body), body FROM objects WHERE name = ?", (name,)
            ).fetchone()
        if row is None:
            raise Refused(404, "NoSuchKey", "The specified key does not exist.")
        return StoredObject(*row[:4]), row[4]

    def delete(self, name: str) -> None:
        """Delete an object."""
        with self._lock:
            if not self._connection.execute("DELETE FROM objects WHERE name = ?", (name,)).rowcount:
                raise Refused(404, "NoSuchKey", "The specified key does not exist.")

    def list_page(
        self, prefix: str, delimiter: str, after: str, limit: int
    ) -> tuple[list[StoredObject], list[str], str | None]:
        """List objects in the order of their names: the objects, common prefixes, and where the next page begins."""
        objects: list[StoredObject] = []
        folders: list[str] = []
        query = (
            "SELECT name, generation, modified, length(body) FROM objects"
            " WHERE name >= ? AND name <= ? AND name > ? ORDER BY name"
        )
        with self._lock:
            for row in self._connection.execute(query, (prefix, prefix + _LAST, after)):
                found = StoredObject(*row)
                folder, slash, _ = found.name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
                if slash and folders and folders[-1] == f"{prefix}{folder}{slash}":
                    continue
                if len(objects) + len(folders) == limit:
                    return objects, folders, after
                if slash:
                    folders.append(f"{prefix}{folder}{slash}")
                    after = folders[-1] + _LAST
                else:
                    objects.append(found)
                    after = found.name
        return objects, folders, None


class Tokens:
    """Checks that tokens were signed by a service account."""

    def __init__(self, public_key: bytes) -> None:
        key = load_pem_public_key(public_key)
        assert isinstance(key, RSAPublicKey)
        self._key = key

    def check(self, header: str | None) -> None:
        """Refuse a token that the key did not sign, or that has expired."""
        signed, _, signature = (header or "").removeprefix("Bearer ").rpartition(".")
        try:
            self._key.verify(_decode(signature), signed.encode(), PKCS1v15(), SHA256())
            expires = json.loads(_decode(signed.partition(".")[2]))["exp"]
        except (InvalidSignature, ValueError, KeyError):
            expires = 0
        if expires < time.time():
            raise Refused(401, "AuthenticationRequired", "Authentication required.")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class GcsHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # an answer goes out in one piece
    bucket: str
    objects: Objects
    tokens: Tokens

    def handle_request(self) -> None:
        """Answer a request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        bucket, _, name = url.path.removeprefix("/").partition("/")
        try:
            self.tokens.check(self.headers.get("Authorization"))
            if bucket != self.bucket:
                raise Refused(404, "NoSuchBucket", "The specified bucket does not exist.")
            self._serve(unquote(name), {key: values[0] for key, values in parse_qs(url.query).items()}, body)
        except Refused as refused:
            said = f"<Error><Code>{refused.code}</Code><Message>{refused}</Message></Error>"
            self._answer(refused.status, said.encode(), {"Content-Type": "application/xml"})

    do_GET = do_PUT = do_DELETE = handle_request

    def _serve(self, name: str, query: dict[str, str], body: bytes) -> None:
        for header in map(str.lower, self.headers):
            if header.startswith("x-goog-") and header != _CONDITION:
                raise Refused(501, "NotImplemented", f"The header {header} is not emulated.")
        match self.command, bool(name), query.get("list-type"):
            case "PUT", True, None if not query:
                made = self.objects.put(name, body, self.headers.get(_CONDITION))
                self._answer(200, b"", {"ETag": made.e_tag, "x-goog-generation": str(made.generation)})
            case "GET", True, None if not query:
                self._send_object(name)
            case "DELETE", True, None if not query:
                self.objects.delete(name)
                self._answer(204, b"")
            case "GET", False, "2":
                self._send_list(query)
            case _:
                raise Refused(501, "NotImplemented", f"{self.command} {self.path} is not emulated.")

    def _send_object(self, name: str) -> None:
        found, body = self.objects.get(name)
        headers = {
            "ETag": found.e_tag,
            "Last-Modified": email.utils.formatdate(found.modified, usegmt=True),
            "x-goog-generation": str(found.generation),
        }
        if asked := self.headers.get("Range"):
            bounds = _RANGE.fullmatch(asked)
            if bounds is None:
                raise Refused(501, "NotImplemented", f"The range {asked} is not emulated.")
            start, end = int(bounds[1]), min(int(bounds[2] or found.size), found.size - 1)
            if start > end:
                raise Refused(416, "InvalidRange", "The requested range cannot be satisfied.")
            headers["Content-Range"] = f"bytes {start}-{end}/{found.size}"
            self._answer(206, body[start : end + 1], headers)
        else:
            self._answer(200, body, headers)

    def _send_list(self, query: dict[str, str]) -> None:
        known = {"list-type", "prefix", "delimiter", "start-after", "continuation-token", "max-keys"}
        if query.keys() - known:
            raise Refused(501, "NotImplemented", f"Listing with {query} is not emulated.")
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        limit = min(int(query.get("max-keys", PAGE)), PAGE)
        objects, folders, token = self.objects.list_page(
            query.get("prefix", ""), query.get("delimiter", ""), after, limit
        )
        parts = [
            f"<Contents><Key>{escape(each.name)}</Key><Generation>{each.generation}</Generation>"
            f"<LastModified>{datetime.fromtimestamp(each.modified, UTC).isoformat()}</LastModified>"
            f"<ETag>{escape(each.e_tag)}</ETag><Size>{each.size}</Size></Contents>"
            for each in objects
        ]
        parts += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders]
        if token is not None:
            parts.append(f"<NextContinuationToken>{escape(token)}</NextContinuationToken>")
        said = f"<ListBucketResult><Name>{self.bucket}</Name>{''.join(parts)}</ListBucketResult>"
        self._answer(200, said.encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing but errors."""


class GcsEmulation(ThreadingHTTPServer):
    """Serves a bucket at a port."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, bucket: str, database: Path, public_key: bytes) -> None:
        served = {"bucket": bucket, "objects": Objects(database), "tokens": Tokens(public_key)}
        super().__init__(("127.0.0.1", port), type("Handler", (GcsHandler,), served))

    def handle_error(self, request: object, client_address: object) -> None:
        """Log what is wrong here; connections that clients cut are not."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


if __name__ == "__main__":
    port, bucket, database, public_key = sys.argv[1:]
    with GcsEmulation(int(port), bucket, Path(database), Path(public_key).read_bytes()) as server:
        server.serve_forever()

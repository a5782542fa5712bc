"""Azurite, Microsoft's emulator of Azure Blob Storage, from npm.

It is installed when it is first needed, into `build/azurite`, as `requirements/azurite` locks it. The lock takes an
old `applicationinsights`, with which it is a third of the size: Azurite loads it to report how it is used, which is
switched off here.
"""

from __future__ import annotations

import base64
import email.utils
import hmac
import http.client
import json
from pathlib import Path
from typing import Any

import obstore
from obstore.store import AzureStore

from tests.servers import npm
from tests.servers.object_server import BUCKET, ObjectServer
from tests.servers.processes import HOST, usable, wait_for

LOCK = npm.ROOT / "requirements" / "azurite"
FOLDER = npm.ROOT / "build" / "azurite"

# Azurite's own, which everybody knows.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_API_VERSION = "2021-12-02"


class AzuriteServer(ObjectServer):
    """Azurite: keeps contents in files, and its index in memory. It saves the index every five seconds."""

    name = "Azurite"
    scheme = "az"

    def __init__(self) -> None:
        self._command = [usable(npm.node()), usable(install())]
        super().__init__()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def options(self) -> dict[str, Any]:
        return {"endpoint": f"http://{HOST}:{self.port}/{ACCOUNT}", "account_name": ACCOUNT, "account_key": KEY}

    def prepare(self) -> None:
        self.run_tool("mkdir", self._data)

    def command(self) -> list[str | Path]:
        place: list[str | Path] = ["--blobHost", HOST, "--blobPort", str(self.port), "--location", self._data]
        return [*self._command, *place, "--skipApiVersionCheck", "--disableTelemetry", "--silent"]

    def answers(self) -> None:
        self._make_container()
        self._put("probe")

    def save(self) -> None:
        """Wait until its index is saved, and what it has acknowledged survives a kill."""
        mark = f"saved/{next(self._numbers)}"
        self._put(mark)
        wait_for(lambda: self._check_saved(mark), self.name)

    def _check_saved(self, mark: str) -> None:
        blobs = self._saved("__azurite_db_blob__.json", "$BLOBS_COLLECTION$")
        extents = self._saved("__azurite_db_blob_extent__.json", "$EXTENTS_COLLECTION$")
        assert mark in {blob["name"] for blob in blobs}
        assert {blob["persistency"]["id"] for blob in blobs} <= {extent["id"] for extent in extents}

    def _saved(self, file: str, collection: str) -> list[dict[str, Any]]:
        saved = json.loads((self._data / file).read_text())
        (found,) = (each["data"] for each in saved["collections"] if each["name"] == collection)
        assert isinstance(found, list)
        return found

    def _put(self, name: str) -> None:
        store = AzureStore(
            BUCKET,
            config=self.options,  # type: ignore[arg-type]
            client_options={"allow_http": True, "timeout": "5s"},
            retry_config={"max_retries": 0},
        )
        obstore.put(store, name, b"1")

    def _make_container(self) -> None:
        """Create the container, if it is not there. The driver cannot do it, so this signs the request itself."""
        date = email.utils.formatdate(usegmt=True)
        named = f"x-ms-date:{date}\nx-ms-version:{_API_VERSION}\n/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
        text = f"PUT{chr(10) * 12}{named}"
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), "sha256")).decode()
        headers = {
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
            "x-ms-date": date,
            "x-ms-version": _API_VERSION,
        }
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("PUT", f"/{ACCOUNT}/{BUCKET}?restype=container", headers=headers)
            assert connection.getresponse().status in (201, 409), "the container is not made"
        finally:
            connection.close()


def install() -> Path:
    """Install Azurite, unless it is there. Returns its program."""
    return npm.install(LOCK, FOLDER) / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"

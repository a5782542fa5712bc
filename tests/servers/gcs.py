"""Google Cloud Storage, as far as `gcs_emulation` emulates it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import obstore
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from obstore.store import GCSStore

from tests.servers import gcs_emulation
from tests.servers.object_server import BUCKET, ObjectServer
from tests.servers.processes import HOST


class GcsServer(ObjectServer):
    """The emulation of Google Cloud Storage, with one service account."""

    name = "Google Cloud Storage (emulated)"
    scheme = "gs"

    @property
    def options(self) -> dict[str, Any]:
        return {
            "endpoint": f"http://{HOST}:{self.port}",
            "service_account": str(self.directory / "service-account.json"),
        }

    def prepare(self) -> None:
        key = generate_private_key(65537, 2048)
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (self.directory / "public-key").write_bytes(public)
        write_service_account(self.directory / "service-account.json", key)

    def command(self) -> list[str | Path]:
        files = [self.directory / "objects.db", self.directory / "public-key"]
        return [sys.executable, gcs_emulation.__file__, str(self.port), BUCKET, *files]

    def answers(self) -> None:
        store = GCSStore(
            BUCKET,
            config={"base_url": self.options["endpoint"], "service_account": self.options["service_account"]},
            client_options={"allow_http": True, "timeout": "5s"},
            retry_config={"max_retries": 0},
        )
        obstore.put(store, "probe", b"1")

    def _user(self) -> dict[str, Any]:
        return {}  # it is Python, and our Python may lie where only we may go


def write_service_account(path: Path, key: RSAPrivateKey) -> None:
    """Write the key file of a service account."""
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"type": "service_account", "client_email": "tests@example.com", "private_key_id": "1"}
    path.write_text(json.dumps({**account, "private_key": secret}))

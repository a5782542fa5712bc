"""Certificates, the authority that issues them, and a port with TLS in front of a server without."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.servers.processes import HOST, NAME

_DAY = timedelta(days=1)


class Authority:
    """An authority of its own, which nobody trusts who does not name its certificate."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _common_name(f"Holdfast's tests {x509.random_serial_number()}")
        now = datetime.now(UTC)
        public = self._key.public_key()
        self._certificate = (
            x509.CertificateBuilder(self._name, self._name, public, x509.random_serial_number(), now - _DAY, now + _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def write(self, path: Path) -> Path:
        """Write its certificate: the file that clients name."""
        path.write_bytes(self._certificate.public_bytes(Encoding.PEM))
        return path

    def issue(self, lifetime: float = _DAY.total_seconds()) -> bytes:
        """Return a new certificate for `NAME` and its key, as PEM. Its lifetime is in seconds from now: before, it was
        valid for a day."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        until = now + timedelta(seconds=lifetime)
        public, issuer = key.public_key(), self._key.public_key()
        certificate = (
            x509.CertificateBuilder(
                self._name, _common_name(NAME), public, x509.random_serial_number(), now - _DAY, until
            )
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
            .add_extension(_usage(signs=False), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM) + secret


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


@contextmanager
def tls_port(behind: int, identity: Path) -> Iterator[int]:
    """A port that decrypts what comes, and passes it on to another. Its certificate and key are read from a file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity)
    context.set_alpn_protocols(["postgresql"])  # without it, libpq takes no server for one of its own

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            there, back = await asyncio.open_connection(HOST, behind)
            writers.append(back)
            await asyncio.gather(copy(reader, back), copy(there, writer))
        finally:  # also when it is cancelled, at the end
            for each in writers:
                each.transport.abort()

    async def main() -> None:
        server = await asyncio.start_server(serve, HOST, 0, ssl=context)
        ports.append(int(server.sockets[0].getsockname()[1]))
        loops.append(asyncio.get_running_loop())
        ready.set()
        await ended.wait()
        server.close()

    ports: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []
    ready, ended = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.wait()
    try:
        yield ports[0]
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join()

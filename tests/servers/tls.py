"""A port with TLS in front of a server without, and the certificate for it."""

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

from tests.servers.processes import HOST


def write_certificate(path: Path) -> None:
    """Write a certificate for localhost that it signed itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(certificate.public_bytes(Encoding.PEM) + secret)


@contextmanager
def tls_port(behind: int, certificate: Path) -> Iterator[int]:
    """A port that decrypts what comes, and passes it on to another. Its certificate is written to a file."""
    write_certificate(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(HOST, behind)
        await asyncio.gather(copy(reader, back), copy(there, writer))

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

"""A certificate for 127.0.0.1, and what lets a server, or a proxy before one, speak TLS with it."""

import asyncio
import shutil
import ssl
import subprocess
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.acceptance.processes import free_port

#: Seconds in which the proxy is there, and gone.
_PATIENCE = 20.0


def tls_arguments(folder: Path) -> tuple[list[str], int]:
    """Return a server's arguments for a folder's certificate, made if need be, and the port it is for."""
    certificate, key = _certificate(folder)
    port = free_port()
    arguments = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    return [*arguments, "--tls-auth-clients", "no"], port


def tls_options(folder: Path) -> str:
    """Return what a ``rediss://`` URL says to trust that certificate, and no other."""
    return f"?ssl_cert_reqs=required&ssl_ca_certs={folder}/cert.pem"


@contextmanager
def tls_before(port: int, folder: Path) -> Iterator[int]:
    """Speak TLS before a server on 127.0.0.1 that does not, with a folder's certificate; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_certificate(folder))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)

    async def pass_on(reader: StreamReader, writer: StreamWriter) -> None:
        theirs, to_them = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pipe(reader, to_them), _pipe(theirs, writer))

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result(_PATIENCE)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(_PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_PATIENCE)
        loop.close()


async def _pipe(reader: StreamReader, writer: StreamWriter) -> None:
    try:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        writer.transport.abort()


async def _end(server: asyncio.Server) -> None:
    server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # the transports close in the next turn of the loop


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = folder / "key.pem"
    certificate = folder / "cert.pem"
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not there to make a certificate")
    if not certificate.exists():
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", str(key), "-out", str(certificate)],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    return certificate, key

"""Servers that speak TLS: by themselves, or behind a proxy where they were built without it."""

import asyncio
import ssl
import subprocess
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.acceptance.processes import free_port, needs
from tests.servers import EmbeddedServer
from tests.stores import start_server

#: Debian's server by itself, and the embedded one, which has no TLS, behind the proxy.
BY_ITSELF, PROXIED = WAYS = ("TLS", "TLS of a proxy")

#: Seconds after which a connection through the proxy ends, whatever became of the test.
LIFE = 120.0


@contextmanager
def tls_server(way: str, folder: Path) -> Iterator[tuple[EmbeddedServer, str]]:
    """Run a server for the block: yield it, and its ``rediss://`` URL, which trusts its certificate only."""
    url = f"rediss://127.0.0.1:{{}}/0{tls_options(folder)}"
    if way == PROXIED:
        with EmbeddedServer() as server, _proxy(server, *_certificate(folder)) as port:
            yield server, url.format(port)
        return
    arguments, port = tls_arguments(folder)
    server = start_server("redis-server", port=0, extra_args=arguments)
    try:
        yield server, url.format(port)
    finally:
        server.stop()


def tls_arguments(folder: Path) -> tuple[list[str], int]:
    """Return a server's arguments for a folder's certificate, made if need be, and the port it is for."""
    certificate, key = _certificate(folder)
    port = free_port()
    arguments = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    return [*arguments, "--tls-auth-clients", "no"], port


def tls_options(folder: Path) -> str:
    """Return what a ``rediss://`` URL says to trust that certificate, and no other."""
    return f"?ssl_cert_reqs=required&ssl_ca_certs={folder}/cert.pem"


def _certificate(folder: Path) -> tuple[Path, Path]:
    needs("openssl")
    key = folder / "key.pem"
    certificate = folder / "cert.pem"
    if not certificate.exists():
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", str(key), "-out", str(certificate)],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    return certificate, key


@contextmanager
def _proxy(server: EmbeddedServer, certificate: Path, key: Path) -> Iterator[int]:
    """Listen with TLS on a port of 127.0.0.1 for the block, and forward in plain what comes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()
    writers: list[StreamWriter] = []

    async def forward(reader: StreamReader, writer: StreamWriter) -> None:
        # A proxy that ends cancels this; a connection that is cut is no error of the proxy's.
        with suppress(OSError, asyncio.TimeoutError, asyncio.CancelledError):
            answers, requests = await asyncio.open_unix_connection(server.socket_path)
            writers.extend((writer, requests))
            both = asyncio.gather(_copy(reader, requests), _copy(answers, writer))
            await asyncio.wait_for(both, LIFE)

    async def listen() -> None:
        ends = asyncio.Event()
        listener = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
        started.set_result((asyncio.get_running_loop(), ends, listener.sockets[0].getsockname()[1]))
        await ends.wait()
        listener.close()
        for writer in writers:
            writer.transport.abort()  # a goodbye would wait for an answer that no loop reads any more

    # One thread for both directions: OpenSSL lets no two use a connection at once.
    thread = threading.Thread(target=asyncio.run, args=(listen(),), daemon=True)
    thread.start()
    loop, ends, port = started.result(LIFE)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join(LIFE)


async def _copy(source: StreamReader, target: StreamWriter) -> None:
    """Forward one direction until it ends, and let the other end with it."""
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    finally:
        target.close()

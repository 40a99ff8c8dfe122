"""A network between a client and a server on this machine: a proxy that holds back what it passes on.

A process of its own, so that its work is not the client's::

    python benchmarks/network.py PORT SECONDS

It prints its own port and ends with its standard input.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["through_network"]


@contextmanager
def through_network(port: int, one_way: float) -> Iterator[tuple[int, int]]:
    """Run a proxy before a port of 127.0.0.1.

    Args:
        port: the server's.
        one_way: seconds that each piece of data is held back, in either direction.

    Yields:
        the proxy's port and its process id.
    """
    command = [sys.executable, __file__, str(port), str(one_way)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        try:
            yield int(proxy.stdout.readline()), proxy.pid
        finally:
            proxy.stdin.close()
            proxy.wait(10)


def main() -> None:
    port, one_way = int(sys.argv[1]), float(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port, one_way), daemon=True).start()
        print(listener.getsockname()[1], flush=True)
        sys.stdin.read()
        os._exit(0)  # whatever its threads wait for


def _accept(listener: socket.socket, port: int, one_way: float) -> None:
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        for source, target in ((client, server), (server, client)):
            target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_carry, args=(source, target, one_way), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket, one_way: float) -> None:
    """One piece after the other: exact where a client waits for each answer, as all here do."""
    with suppress(OSError):
        while data := source.recv(1 << 20):
            time.sleep(one_way)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()

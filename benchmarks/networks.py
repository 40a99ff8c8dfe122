"""Networks between a client and several servers on this machine: one process holds back what it passes on.

One thread carries everything, in the order in which it is due, so that what is sent to five servers at once
arrives at once; threads, or a proxy for each, would wait for each other for longer than the network does::

    python benchmarks/networks.py SECONDS PORT...

It prints its own ports and ends with its standard input.
"""

import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["through_networks"]


@contextmanager
def through_networks(ports: Sequence[int], one_way: float) -> Iterator[list[int]]:
    """Run a proxy before each of these ports of 127.0.0.1; yield the proxies' ports, in order.

    Args:
        ports: the servers'.
        one_way: seconds that each piece of data is held back, in either direction.
    """
    command = [sys.executable, __file__, str(one_way), *map(str, ports)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        try:
            yield [int(port) for port in proxy.stdout.readline().split()]
        finally:
            proxy.stdin.close()
            proxy.wait(10)


def main() -> None:
    one_way = float(sys.argv[1])
    ready = selectors.DefaultSelector()
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in sys.argv[2:]]
    for listener, port in zip(listeners, sys.argv[2:], strict=True):
        ready.register(listener, selectors.EVENT_READ, ("accept", int(port)))
    ready.register(sys.stdin, selectors.EVENT_READ, ("end", 0))
    print(*(listener.getsockname()[1] for listener in listeners), flush=True)
    held: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        wait = max(0.0, held[0][0] - time.perf_counter()) if held else None
        for key, _ in ready.select(wait):
            what, to = key.data
            if what == "end":
                return
            if what == "accept":
                client, _ = key.fileobj.accept()
                server = socket.create_connection(("127.0.0.1", to))
                for source, target in ((client, server), (server, client)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    ready.register(source, selectors.EVENT_READ, ("carry", target))
            elif data := key.fileobj.recv(1 << 20):
                held.append((time.perf_counter() + one_way, to, data))
            else:
                ready.unregister(key.fileobj)
                ready.unregister(to)
                key.fileobj.close()
                to.close()
                held = deque(each for each in held if each[1] not in {key.fileobj, to})
        while held and held[0][0] <= time.perf_counter():
            _, target, data = held.popleft()
            target.sendall(data)


if __name__ == "__main__":
    main()

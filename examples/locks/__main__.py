"""Locks between processes, without Celery: what each promise looks like. See README.md."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from celery_redislock import LockBusy, LockLost
from celery_redislock.embedded import EmbeddedServer
from celery_redislock.locks import Lock, LockStore, ReadWriteLock, Semaphore, connect
from examples.locks import add

__all__ = ["main"]

#: Seconds after which an answer is not waited for any more.
PATIENCE = 60.0
PROCESSES, TIMES = 4, 12

_as_said = True


def main() -> None:
    """Play all scenes on a server of their own; exit status 1 if something was not as expected."""
    with EmbeddedServer() as server, tempfile.TemporaryDirectory(prefix="redislock-example-") as folder:
        # With a server of yours: connect("redis://localhost:6379/0").
        url = server.redis_url
        store = connect(url)
        several_processes(url, Path(folder))
        busy(url, store)
        longer_than_the_ttl(url, store)
        killed(url, store)
        lost(store)
        seats(store)
        price_list(store)
    print("Celery")
    expect("none of these processes has imported it", "celery" not in sys.modules)
    if not _as_said:
        raise SystemExit(1)


def several_processes(url: str, folder: Path) -> None:
    print(f"{PROCESSES} processes read a number, think, and write it back plus one, {TIMES} times each")
    total = PROCESSES * TIMES
    number = _sum_of("", folder)
    expect(f"without a lock additions get lost: {number} of {total} are left", number < total)
    number = _sum_of(url, folder)
    expect(f"with Lock(connect(url), {add.NAME!r}) none is: {number} of {total}", number == total)
    fences = [int(fence) for fence in (folder / "fences").read_text().split()]
    grows = len(fences) == total and all(a < b for a, b in pairwise(fences))
    expect(f"each of the {len(fences)} holds had a larger fence than the one before", grows)


def busy(url: str, store: LockStore) -> None:
    print("A lock that somebody else holds")
    with _holder(url, "prices", ttl=30.0):
        began = time.monotonic()
        got_it = Lock(store, "prices").acquire(timeout=0)
        expect(f"acquire(timeout=0) asked once, {_since(began)}: {got_it}", not got_it)
        try:
            with Lock(store, "prices", wait=0.3):
                expect("with lock: let nobody in", False)
        except LockBusy as error:
            expect(f"with lock: raised LockBusy after its timeout of 0.3 s: {error}", error.key == "prices")
            expect(f"its holder is {error.holder!r}", error.holder == "the nightly import")
            expect(
                f"its expires_in is {error.expires_in:.1f} s, of a ttl of 30 s", 15 < error.expires_in <= 30
            )
    prices = Lock(store, "prices")
    is_free = prices.acquire(timeout=0)
    expect("released, it is free at once", is_free and prices.release())


def longer_than_the_ttl(url: str, store: LockStore) -> None:
    print("A ttl of 2 s, and work that takes 4.5 s")
    with _holder(url, "report", ttl=2.0) as holder:
        enough = time.monotonic() + 4.5
        tries = refused = 0
        while time.monotonic() < enough:
            tries += 1
            refused += not Lock(store, "report").acquire(timeout=0)
            time.sleep(0.1)
        expect(
            f"renewed in the background: {refused} of {tries} tries to get it were refused", refused == tries
        )
        _let_go(holder)
        expect("and its holder's check() found it still held", holder.returncode == 0)


def killed(url: str, store: LockStore) -> None:
    print("A holder that is killed (SIGKILL), with a ttl of 2 s")
    with _holder(url, "rates", ttl=2.0) as holder:
        holder.kill()
        holder.wait(PATIENCE)
        died = time.monotonic()
        lock = Lock(store, "rates")
        expect("nobody gave its lock back: it is still taken", not lock.acquire(timeout=0))
        got_it = lock.acquire(timeout=PATIENCE)
        waited = time.monotonic() - died
        # A busy machine may come late to the next try.
        expect(f"but it ends with its ttl: free {waited:.1f} s later", got_it and waited < 2.0 + 5.0)
        lock.release()


def lost(store: LockStore) -> None:
    print("A holder that slept for longer than its ttl, and does not know it yet")
    accepted: list[int | None] = []
    first = Lock(store, "balance", ttl=0.3, auto_renew=False)
    second = Lock(store, "balance", owner="the second")
    taken = first.acquire(timeout=0) and second.acquire(timeout=PATIENCE)
    expect("another one holds the lock by now", taken)
    # What a database does with: UPDATE ... WHERE fence <= :fence
    _write(accepted, second.fence)
    _write(accepted, first.fence)
    expect(
        "a database that compares fences takes the second's write, not the late one",
        accepted == [second.fence],
    )
    try:
        first.check()
        expect("check() raised", False)
    except LockLost as error:
        expect(f"check() raised LockLost: {error}", error.key == "balance")
    expect("its release() says that it was not its own any more", not first.release())
    expect("and has not touched the second's hold", second.renew() and second.release())


def seats(store: LockStore) -> None:
    print("A licence with three seats, and eight that want one")
    licence = Semaphore(store, "licence", 3, wait=PATIENCE)
    inside: list[int] = []
    seen: list[int] = []

    def work(number: int) -> None:
        with licence:
            inside.append(number)
            seen.append(len(inside))
            time.sleep(0.2)
            inside.remove(number)

    _all_of(8, work)
    expect(f"all eight had their turn, {max(seen)} at a time", len(seen) == 8 and max(seen) == 3)
    one = licence.acquire()
    two = licence.acquire(2)
    expect("one seat and two seats leave none", one and two and licence.available() == 0)
    expect("a third one is told so at once", licence.acquire(timeout=0) is None)
    licence.set_limit(4, by="the shop")
    expect("the vendor adds a seat while it runs, for everybody", licence.available() == 1)
    licence.set_limit(None)
    expect("each is released on its own", one and one.release() and licence.available() == 1)
    expect("from elsewhere, too, by its token", two and licence.release(two.token))


def price_list(store: LockStore) -> None:
    print("A price list that many read, and one writes")
    readers: list[int] = []
    prices = ReadWriteLock(store, "price list", wait=PATIENCE)

    def read(_number: int) -> int:
        with prices.read:
            readers.append(1)
            time.sleep(0.3)
            together = len(readers)
            readers.pop()
        return together

    together = max(_all_of(4, read))
    expect(f"{together} have read at once", together > 1)
    with prices.write as writes:
        expect(f"one writes, with a fence: {writes.fence}", writes.fence)
        expect("and nobody reads meanwhile", _all_of(1, lambda _: prices.read.acquire(timeout=0)) == [False])
        expect("it goes on as a reader, and lets others read", writes.downgrade())
        expect("one does", _all_of(1, lambda _: prices.read.acquire(timeout=0) and prices.read.release()))
    expect("it is free again", store.holders("price%20list") == ())


def _all_of(count: int, work: Callable[[int], object]) -> list[Any]:
    """Let so many threads work at once; return what they say."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def expect(what: str, is_so: object) -> None:
    global _as_said  # noqa: PLW0603  the example's one result
    _as_said = _as_said and bool(is_so)
    print(f"  {'as expected' if is_so else 'NOT AS EXPECTED'}: {what}", flush=True)


def _sum_of(url: str, folder: Path) -> int:
    """What is in the file when all have added to it; -1 if one of them failed."""
    (folder / "number").write_text("0")
    adders = [_start("add", url, str(folder), str(TIMES)) for _ in range(PROCESSES)]
    try:
        for adder in adders:
            assert adder.stdout is not None
            adder.stdout.readline()
        for adder in adders:
            assert adder.stdin is not None
            adder.stdin.write("go\n")
            adder.stdin.flush()
        for adder in adders:
            adder.communicate(timeout=PATIENCE)
    finally:
        for adder in adders:
            _end(adder)
    number = int((folder / "number").read_text())
    return number if all(adder.returncode == 0 for adder in adders) else -1


@contextmanager
def _holder(url: str, name: str, *, ttl: float) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the lock from now on until it is let go, or the block ends."""
    holder = _start("hold", url, name, str(ttl))
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        yield holder
        if holder.poll() is None:
            _let_go(holder)
    finally:
        _end(holder)


def _let_go(holder: subprocess.Popen[str]) -> None:
    holder.communicate(timeout=PATIENCE)


def _start(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"examples.locks.{program}", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _since(moment: float) -> str:
    return f"{1000 * (time.monotonic() - moment):.0f} ms"


def _write(accepted: list[int | None], fence: int | None) -> None:
    last = accepted[-1] if accepted else 0
    if fence is not None and fence >= (last or 0):
        accepted.append(fence)


if __name__ == "__main__":
    main()

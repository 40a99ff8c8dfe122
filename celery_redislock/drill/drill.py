"""Play four clients and faults on a lock server that is in use, under a prefix of its own, and clean up."""

import os
import re
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from celery_redislock.drill.client import NAME, is_forbidden, read, start
from celery_redislock.drill.proxy import Proxy
from celery_redislock.drill.verdict import Verdict, judge
from celery_redislock.exceptions import LockUnavailable, RedisLockError
from celery_redislock.locks import Lock
from celery_redislock.locks.terms import check_connect
from celery_redislock.operating.doctor import of_losses
from celery_redislock.operating.server import LockServer, Trouble
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.wire.clock import boottime
from celery_redislock.wire.connection import Connections
from celery_redislock.wire.scripts import Scripts, script

CLIENTS = 4
#: The ttl of the lock: seconds, or so many round trips if they take longer.
TTL = 1.0
TRIPS = 20
#: Round trips that are measured.
MEASURED = 50
#: Most holds are short, so that many are handed on; some are renewed.
SKEW = 4.0
#: Ttls of a pause or a cut, which is longer than a lease: whoever was held up for so long has lost it.
LONGER = 1.5
#: Ttls between two faults: what a killed holder had is held by another one then.
BETWEEN = 1.25
#: Seconds within which all clients are there.
START = 60.0
#: Seconds that are looked for keys, when all is over.
SEARCH = 60.0

#: Keys that are not the lock's alone, or have no time to live while somebody waits, or one of days, and the
#: time that they are given, in milliseconds: for the case that this process is killed.
ENDLESS = ("lines", "index", *(f"{{{NAME}}}:{part}" for part in ("line", "parked", "sent", "until", "fence")))
KEPT_MS = "600000"

RIGHTS = "a drill needs what docs/server.md lists in Users and ACLs, and scan"

#: Scripts of the clients; commands in them that only tasks need.
SCRIPTS = ("acquire", "inspect", "leave", "park", "release", "renew")
OF_TASKS = {"LLEN", "LPOS"}

#: Returns which of these commands this user may not call in a script: Redis 6.2 and 7.0 do not name them.
#: Each is called with the most arguments that it takes, of six. The few that write then make this key, which
#: is deleted at once; without DEL nothing else is tried.
MISSING = """
if type(redis.pcall('DEL', KEYS[1])) == 'table' then return {'DEL'} end
local missing = {}
for _, name in ipairs(ARGV) do
  for count = 6, 0, -1 do
    local words = {}
    for i = 1, count do words[i] = KEYS[1] end
    local reply = redis.pcall(name, unpack(words))
    local text = type(reply) == 'table' and reply.err or ''
    redis.call('DEL', KEYS[1])
    if not text:find('number of args') then
      if text:find("can't run") or text:find('permissions to run') then table.insert(missing, name) end
      break
    end
  end
end
return missing
"""


class Drill(NamedTuple):
    """What was played, and what it showed.

    Attributes:
        prefix: of its keys.
        ttl: seconds, of each hold.
        faults: how often each was injected: ``kills``, ``pauses``, ``cuts``.
        trips: seconds of round trips to the server, without the proxy, shortest first.
        verdict: on the history.
        losses: what is lost when the server restarts or fails over: levels and texts.
        left: why its keys could not be deleted, or empty.
    """

    prefix: str
    ttl: float
    faults: dict[str, int]
    trips: Sequence[float]
    verdict: Verdict
    losses: Sequence[tuple[str, str]]
    left: str = ""


def drill(server: LockServer, seconds: float, prefix: str | None = None) -> Drill:
    """Play for so many seconds; in the main thread, which handles signals meanwhile.

    An error, SIGINT, SIGTERM and SIGHUP end it early, and all that it has made: processes, folder, keys.
    If it is killed, its processes end by themselves, and its keys within ten minutes.

    Args:
        server: one server, or one that Sentinels name.
        seconds: of faults, more than 0; it lasts some seconds longer.
        prefix: of its keys, instead of a random one behind that of the server's locks.

    Raises:
        Trouble: the server is none that a drill plays on; keys of this prefix are there; its user lacks a
            right; nobody was granted the lock; or it was interrupted.
        RedisLockError: the server does not answer, or grants no lock; or the prefix can be none.
    """
    store = server.store
    if type(store) is not RedisStore:
        raise Trouble(
            f"a drill plays on one server, or on the primary that Sentinels name; {store.server} is a "
            "Cluster, a quorum or memory: name one server, with celery-redislock --url"
        )
    if not hasattr(os, "setpgid"):
        raise Trouble("a drill stops processes, which this system cannot: play it on Linux or macOS")
    is_given = prefix is not None
    prefix = f"{store.prefix}:drill-{secrets.token_hex(4)}" if prefix is None else prefix
    check_connect("drill", prefix, store.connections.socket_timeout)
    if f"{store.prefix}:".startswith(f"{prefix}:"):
        raise Trouble(f"{prefix} is where the keys of {store.server} begin: give another --prefix, or none")
    keys = _Keys(store.connections, prefix)
    try:
        with ExitStack() as stack:
            stack.enter_context(_interrupts())
            keys.rehearse(None if is_given else 1)
            stack.callback(keys.delete)
            found = _play(stack, store, keys, prefix, seconds)
        return found._replace(left=keys.left)
    except KeyboardInterrupt:
        gone = f"are gone; {keys.left}" if keys.left else "and its keys are gone"
        raise Trouble(f"the drill was interrupted; its processes {gone}") from None
    except (RedisLockError, Trouble) as error:
        more = [keys.left] if keys.left else []
        if is_forbidden(error):
            more += [*keys.needed(error, f"{prefix}:" if is_given else f"{store.prefix}:drill-"), RIGHTS]
        if more:
            raise Trouble("; ".join([str(error), *more])) from error
        raise
    except OSError as error:
        where = f"its processes meet at a socket in {tempfile.gettempdir()}: set TMPDIR to a short path"
        raise Trouble(f"the drill cannot be played here: {error}; {where}") from error


def _play(stack: ExitStack, store: RedisStore, keys: "_Keys", prefix: str, seconds: float) -> Drill:
    terms: dict[str, Any] = {"strict_fence": bool(store._strict_ms), "min_replicas": store.min_replicas}
    own = RedisStore(store.connections, prefix=prefix, **terms)
    lock = Lock(own, NAME)
    losses = of_losses(own, own.min_replicas)
    run_id = own.server_says("server", "run_id")
    with lock:  # or nobody will be granted it
        trips = sorted(_trip(lock) for _ in range(MEASURED))
    ttl = max(TTL, TRIPS * trips[MEASURED // 2])
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redislock-drill-")))
    proxy = stack.enter_context(closing(Proxy(folder / "server", store.connections)))
    terms["url"] = f"unix://{quote(str(folder / 'server'))}"
    stage = _Stage(folder, proxy, lock, keys)
    stack.callback(stage.end)
    stack.callback(_let_finish)
    until = stage.play(ttl, seconds, prefix=prefix, socket_timeout=0.3 * ttl, **terms)
    verdict = judge(read(folder, stage.killed), until)
    if not any(stage.faults.values()):
        raise Trouble(
            f"{seconds:g} s are too short for a fault, with a ttl of {ttl:.1f} s: give more --seconds"
        )
    if not verdict.holds:
        raise Trouble(f"nobody was granted the lock on {store.server} in {seconds:g} s")
    with suppress(LockUnavailable):  # what was read before is told then
        is_same = own.server_says("server", "run_id") == run_id
        losses = of_losses(own, own.min_replicas)
        if not is_same:
            losses.append(("warning", "the server was restarted, or another one answers since"))
    return Drill(prefix, ttl, stage.faults, trips, verdict, losses)


def _trip(lock: Lock) -> float:
    begun = boottime()
    lock.holder()
    return boottime() - begun


#: What asks a program to end.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def _interrupts() -> Iterator[None]:
    """Let each of these signals raise KeyboardInterrupt, once, but for those that are ignored."""
    former = {number: signal.getsignal(number) for number in _SIGNALS}
    former = {number: each for number, each in former.items() if each not in {None, signal.SIG_IGN}}
    try:
        for number in former:
            signal.signal(number, _interrupt)
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    _let_finish()
    raise KeyboardInterrupt


def _let_finish() -> None:
    """Ignore them: what cleans up is bounded."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class _Keys:
    """The keys of a prefix; those are deleted that a drill writes: others may come while it plays."""

    def __init__(self, connections: Connections, prefix: str) -> None:
        self._scripts = Scripts(connections, names=(), packages=())
        self._prefix = prefix
        self.server = connections.server
        self._endless = [f"{prefix}:{part}" for part in ENDLESS]
        #: Why they could not be deleted.
        self.left = ""
        #: Whether all keys of the server were looked through.
        self.is_known = False
        self._bounded_at = -inf

    def walk(self, rest: str) -> Iterator[list[str]]:
        """Look through the server for so many seconds at most; yield the keys with this rest of each step."""
        give_up = boottime() + SEARCH
        cursor = "0"
        while boottime() < give_up:
            words = ["SCAN", cursor, "MATCH", _literal(self._prefix) + rest, "COUNT", "1000"]
            cursor, keys = self._scripts.pipeline("scan", [words], _scanned)
            yield keys
            if cursor == "0":
                self.is_known = True
                return

    def rehearse(self, steps: int | None) -> None:
        """Ask for what :meth:`bound` and :meth:`delete` need, while there is no key.

        Raises :class:`Trouble` if there is one, as far as so many steps of a walk tell; ``None``: all.
        """
        if found := [key for step in islice(self.walk(":*"), steps) for key in step]:
            raise Trouble(f"{found[0]} is there, so its prefix is in use: give another --prefix, or none")
        if steps is None and not self.is_known:
            raise Trouble(f"whether the prefix is in use was not known within {SEARCH:g} s: give no --prefix")
        self.bound()
        self._delete(self._endless)

    def bound(self) -> None:
        """Let none outlive this process for long; once a second, however often it is called."""
        if boottime() < self._bounded_at + 1.0:
            return
        self._bounded_at = boottime()
        commands = [["PEXPIRE", key, KEPT_MS] for key in self._endless]
        self._scripts.pipeline("pexpire", commands, len)

    def delete(self) -> None:
        """Delete them, those first that have no time to live; the others would expire."""
        try:
            self._delete(self._endless)
            for keys in self.walk(f":{{{NAME}}}:*"):
                if keys:
                    self._delete(keys)
        except RedisLockError as error:
            expire = f"keys that begin with {self._prefix}: expire within ten minutes"
            self.left = f"the server has been away, so {expire} ({error})"

    def _delete(self, keys: Sequence[str]) -> None:
        self._scripts.pipeline("del", [["DEL", *keys]], len)

    def needed(self, error: Exception, start: str) -> Iterator[str]:
        """Say what its user must be allowed, after this error for a right; keys of drills start like that."""
        if re.search(" access .* key", str(error)):
            yield f"allow its user ~{_literal(start)}*"
        texts = [script(each, RedisStore.__module__.rpartition(".")[0])[0] for each in SCRIPTS]
        names = {name for text in texts for name in re.findall(r"call\('([A-Z]+)'", text)} - OF_TASKS
        words = ["EVAL", MISSING, "1", f"{self._prefix}:{{{NAME}}}:rights", *sorted(names)]
        with suppress(RedisLockError):  # a user who may run no script is told that
            if missing := self._scripts.send("eval", *words, understand=_decoded):
                yield f"missing in scripts: {' '.join(missing)}"


def _literal(prefix: str) -> str:
    return re.sub(r"([\\*?\[\]^])", r"\\\1", prefix)


def _decoded(_name: str, reply: list[bytes], *_: object) -> list[str]:
    return [f"+{each.decode().lower()}" for each in reply]


def _scanned(replies: list[Any]) -> tuple[str, list[str]]:
    ((cursor, keys),) = replies
    return cursor.decode(), [key.decode() for key in keys]


class _Stage:
    """The clients, by the names of their journals, and what is done to them."""

    def __init__(self, folder: Path, proxy: Proxy, lock: Lock, keys: _Keys) -> None:
        self.killed: dict[str, float] = {}
        self.faults = dict.fromkeys(("kills", "pauses", "cuts"), 0)
        self._folder = folder
        self._proxy = proxy
        self._lock = lock
        self._keys = keys
        self._clients: dict[str, subprocess.Popen[bytes]] = {}

    def play(self, ttl: float, seconds: float, **store: Any) -> float:
        """Inject one fault after the other, the holder first; return when that was over.

        Args:
            ttl: of the lock, seconds.
            seconds: of faults, after all clients are there.
            store: as of :func:`.client.start`.
        """
        latest = boottime() + START + 2 * seconds

        def begin() -> None:
            journal = self._folder / f"client-{len(self._clients)}"
            self._clients[journal.name] = start(journal, ttl, latest, SKEW, **store)

        for _ in range(CLIENTS):
            begin()
        give_up = boottime() + START
        while boottime() < give_up and not all((self._folder / name).exists() for name in self._clients):
            self._rest(0.05)
        until = boottime() + seconds
        while boottime() + BETWEEN * ttl < until:
            self._rest(BETWEEN * ttl)
            fault = [*self.faults][sum(self.faults.values()) % len(self.faults)]
            self.faults[fault] += 1
            living = self._living(ttl)
            if fault == "kills":
                self._end(living[:1])
                begin()
            elif fault == "pauses":
                self._signal(signal.SIGSTOP, living[:2])
                self._rest(LONGER * ttl)
                self._signal(signal.SIGCONT, living[:2])
            else:
                self._proxy.is_silent = True
                self._rest(LONGER * ttl)
                self._proxy.reset()
                self._proxy.is_silent = False
        self.end()
        return boottime()

    def end(self) -> None:
        """End all clients, also those that stand still."""
        self._end([*self._clients])

    def _end(self, names: Sequence[str]) -> None:
        for name in names:
            self._clients[name].kill()
            self._clients[name].communicate()  # waits, and closes the pipe
            self.killed.setdefault(name, boottime())

    def _signal(self, number: signal.Signals, names: Sequence[str]) -> None:
        for name in names:
            self._clients[name].send_signal(number)

    def _rest(self, seconds: float) -> None:
        """Wait; raise where a client could not go on."""
        give_up = boottime() + seconds
        while boottime() < give_up:
            with suppress(LockUnavailable):  # it may be failed over meanwhile, or restart
                self._keys.bound()
            time.sleep(0.05)
        for name, client in self._clients.items():
            if client.poll() and name not in self.killed:
                errors = (self._folder / name).with_suffix(".error").read_text(errors="replace")
                lines = [f"{name} has died", *errors.splitlines()]
                told = next((line for line in lines if is_forbidden(line)), lines[-1])
                raise Trouble(told.replace(f"unix://{self._folder}/server?db=0", self._keys.server))

    def _living(self, ttl: float) -> list[str]:
        """Return who lives, the holder first; where nobody is, wait for one."""
        give_up = boottime() + ttl
        while True:
            living = [name for name, each in self._clients.items() if each.poll() is None]
            holder = None
            with suppress(LockUnavailable):
                holder = self._lock.holder()
            pid = holder.facts.get("pid") if holder else None
            living.sort(key=lambda name: self._clients[name].pid != pid)
            if pid in [self._clients[name].pid for name in living[:1]] or boottime() > give_up:
                return living
            time.sleep(0.02)

"""Locks on Redis or Valkey, without Celery; for coroutines, ``celery_redislock.locks.aio``.

The lease theory, written down once
===================================

**Who decides.** The server alone. A lock is a key with a time to live; who
may hold it is decided by one atomic script per verb, and expiry by the
server's clock. No client's wall clock decides anything.

**Terms.** Every hold has a fresh *token*, ``owner/nonce``, and every write
compares it. An owner is not enough: the same task id can run twice at once
(a broker redelivers), and a late release of the first run must not end the
second one's lock. A token is never used for two terms, so an answer that got
lost can be resolved by asking again with the same one: ``acquire`` says
"yours" and starts the ttl anew; ``release`` says "missing", which after a
repeated request and before the trust deadline means that the first one was
carried out; ``hand_on`` finds the new token; a renewal sets an absolute ttl.
Nothing is added up, so nothing is added twice.

**Marks.** A message has an identity of its own, the token of its publish. The
script that releases its run's hold can leave a mark under that identity:
``ending``, and later ``done``. ``acquire`` looks at the mark before it looks at
the holder, so a second copy of the message waits, or does nothing, and never
runs beside the last steps of the first one.

**Trust.** A holder may act until its *trust deadline*: the moment just before
the last answered request was sent, plus the ttl, less a margin (the larger of
1 % of the ttl plus 2 ms, and that request's round trip). The server began to
count later than that moment, so while the deadline has not passed it excludes
everybody else. The deadline is measured with a clock that counts
suspends where the system has one.

**Renewal.** The watchdog renews every third of the ttl; all that is due goes
in one call. An unanswered renewal is repeated until the deadline. With gevent
it is a native thread, which greenlets that never switch do not hold up.

**Loss.** A lease is lost when the server says so (missing, or another token)
or when its deadline passed and the server did not answer. It is not lost
merely because a thread came late: that thread sends a renewal first. A lost
lease stays lost; its token is renewed no more. Loss is announced once, to ``on_lost``,
and seen by ``check()``.

**What a lease cannot do.** A holder that is paused between ``check()`` and
its write may write after another holder began. After a failover of the
server, or a restart without its data, two holders can believe in their
leases until their next renewal. The *fence* is the answer to both: a number
that grows with each grant of a lock, to be stored with the data and compared
there. It is the server's time in microseconds (it grows while that clock is
not set back), or with ``strict_fence`` at least the last one plus one.

**Failures.**

=========================  ==================================================================
what fails                 what follows
=========================  ==================================================================
request or reply lost      repeated once with the same token, on a new connection
request delayed            may reach the server after its release; the hold ends with its ttl
server away at acquire     ``LockUnavailable``; a hold it may have taken is released later, but not a
                           claim that was taken in one step with its message
server away in a wait      who stands in line asks again until its own time is up, and is told once
server away at renewal     repeated until the deadline, then lost
server away at release     released in the background, tried once a second, or it expires
mark "done" lost           a copy of the message waits until "ending" expires, and runs again
replicas or the disk do    the hold is released, and ``LockUnavailable`` raised
not confirm
holder killed              expires one ttl after its last renewal; a task's lease is released at once by its
                           worker, where only its child died, or by the next one that it refuses on its
                           machine and in its pid namespace
holder paused              expires; on waking the holder's next ``check()`` raises
server loses its data      the next renewal finds the lease missing: lost
one of a quorum is away    the others decide; it is tried once a second, and keeps what it holds until that
                           expires. A majority away: as the server away, above
=========================  ==================================================================
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.terms import OF_CONNECT, check_connect, refuse_others

if TYPE_CHECKING:
    from celery_redislock.locks.lease import Lease
    from celery_redislock.locks.lock import Lock
    from celery_redislock.locks.readwrite import ReadWriteLock
    from celery_redislock.locks.semaphore import Permit, Semaphore
    from celery_redislock.locks.watchdog import Watchdog
    from celery_redislock.store.memory import MemoryStore
    from celery_redislock.store.redisstore import RedisStore
    from celery_redislock.store.store import Hold, LockStore
    from celery_redislock.wire.client import Named

__all__ = [
    "Hold", "Lease", "Lock", "LockStore", "MemoryStore", "Permit", "ReadWriteLock", "Semaphore", "Watchdog",
    "connect",
]  # fmt: skip

#: Where the classes are that are imported on first use: a process that declares tasks needs none of them.
_HOMES = {
    "Hold": "store.store",
    "Lease": "locks.lease",
    "Lock": "locks.lock",
    "LockStore": "store.store",
    "MemoryStore": "store.memory",
    "Permit": "locks.semaphore",
    "ReadWriteLock": "locks.readwrite",
    "Semaphore": "locks.semaphore",
    "Watchdog": "locks.watchdog",
}


if not TYPE_CHECKING:  # a checker would take every misspelt name for an object

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"celery_redislock.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def connect(
    url: "Named | list[Named] | tuple[Named, ...]",
    *,
    prefix: str = "redislock",
    socket_timeout: float = 1.0,
    strict_fence: bool = False,
    min_replicas: int = 0,
    **others: NoReturn,
) -> "RedisStore":
    """Return a store for the server at ``url``; opens no connection before the first verb.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, as redis-py's ``from_url`` reads them, and as Celery
            and Django write them (``?ssl=True``, ``?ssl_cert_reqs=CERT_NONE``, ``redis+socket://``);
            ``valkey://`` and ``valkeys://``; ``sentinel://host:port;sentinel://…/db?master_name=…``;
            ``redis+cluster://host:port,host:port``. Or a ``redis.Redis``, a ``redis.RedisCluster``, or a
            callable that returns a new one. Where its pool makes redis-py's own
            connections, its options are taken, and the store connects by itself: its timeouts, retries and
            decoding do not count. A client of any other kind is refused.
            A list of three or more, an odd number, of independent servers: a quorum of them keeps exclusive
            locks (``Lock``, nothing else) and goes on while fewer than half are away (docs/locks.md#redlock).
        prefix: put in front of every key; a text without braces and white space.
        socket_timeout: seconds, from 0.001 up; every verb is bounded by twice this, and by seven times
            where it must connect to a server that answers slowly. On a
            quorum each round to all servers is bounded by twice this, also where it must connect; acquiring
            takes two rounds, or three.
        strict_fence: draw fences from a counter on the server, which grows although the server's clock
            is set back, instead of that clock alone. A quorum always does.
        min_replicas: replicas that must confirm an acquire (``WAIT``), from 0 up. With fewer the hold is
            released, also one that was taken over, and ``LockUnavailable`` raised. It narrows the
            gap a failover opens, it does not close it, as renewals are not confirmed. Not on a quorum, which
            is instead of replicas.
        **others: none; an option that it does not have is refused with what to write instead.

    Raises:
        LockOptionError: the URL or the client cannot be used; a value is not in its range; an option is not
            known; or the servers of a list are too few, an even number, two the same, or have something to
            wait for.
    """
    from celery_redislock.store.cluster import store_on  # noqa: PLC0415  imports redis
    from celery_redislock.wire.client import reach  # noqa: PLC0415  imports redis

    refuse_others("connect", others, OF_CONNECT)
    check_connect("connect", prefix, socket_timeout)
    if isinstance(url, list | tuple):
        return _quorum(url, min_replicas, prefix=prefix, socket_timeout=socket_timeout)
    return store_on(
        reach(url, socket_timeout=socket_timeout),
        prefix=prefix,
        strict_fence=strict_fence,
        min_replicas=min_replicas,
    )


def _quorum(urls: "Sequence[Named]", confirms: object, **options: Any) -> "RedisStore":
    from celery_redislock.store.quorum import QuorumStore  # noqa: PLC0415  imports redis

    if confirms:
        problem = "min_replicas: the servers of a quorum confirm each other; leave it out"
        raise LockOptionError("connect", [problem])
    return QuorumStore([connect(each, **options) for each in urls], prefix=options["prefix"])

"""Two of three servers forget what is held: chance hardly ever shows what follows."""

import time
from contextlib import ExitStack, closing, suppress

from celery_redislock import RedisLockError
from celery_redislock.drill.verdict import Held
from celery_redislock.locks import Lock, connect
from celery_redislock.wire.clock import boottime
from tests.servers import EmbeddedServer

#: Seconds in which a server that is there grants.
_PATIENCE = 10.0


def play(seconds: float, ttl: float, away: float) -> list[Held]:
    """Play rounds for so many seconds, each with a holder, servers that return empty, and another holder.

    Args:
        seconds: after which no round begins.
        ttl: of each hold.
        away: seconds until the servers are back.
    """
    history: list[Held] = []
    until = boottime() + seconds
    with ExitStack() as stack:
        *forgetful, down = [stack.enter_context(EmbeddedServer(port=0)) for _ in range(3)]
        urls = [server.redis_url for server in (*forgetful, down)]
        stores = [stack.enter_context(closing(connect(urls, socket_timeout=0.3))) for _ in range(2)]
        down.kill()
        while boottime() < until:
            locks = [Lock(store, "resource", ttl=ttl) for store in stores]
            notes = []
            for place, lock in enumerate(locks):
                if place == 1:
                    for server in forgetful:
                        server.kill()
                    time.sleep(away)
                    for server in forgetful:
                        server.restart()
                assert lock.acquire(_PATIENCE)
                notes.append((lock, boottime(), lock._required().lease, lock.fence or 0))
            for place, (lock, start, lease, fence) in enumerate(notes):
                who, end = f"holder {place}", boottime()
                history.append(
                    Held(who, lease.token, fence, start, [start, end], end, lease.deadline, lease.lost)
                )
                with suppress(RedisLockError):
                    lock.release()
    return history

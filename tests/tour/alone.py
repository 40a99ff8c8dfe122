"""Locks without Celery.

`from celery_redislock.locks import Lock, connect`.
"""

from celery_redislock.locks import Lock, connect
from tests.tour.guide import Guide
from tests.tour.stop import stop

__all__: list[str] = []


@stop("A lock is busy")
def busy(guide: Guide) -> None:
    """`with lock:` waited for its `timeout`; `acquire()` returns `False` instead."""
    store = guide.store()
    with Lock(store, "nightly", owner="somebody-else"):
        in_time = Lock(store, "nightly", timeout=0)
        with in_time:
            pass


@stop("A lock is not held")
def not_held(guide: Guide) -> None:
    """Each thread holds for itself."""
    guide.lock("nightly").release()


@stop("A lock was lost inside its block")
def lost_inside(guide: Guide) -> None:
    """Raised by the end of the block, if nothing else was: until then it believed to be alone."""
    lock = guide.lock("nightly", auto_renew=False)
    with lock:
        lock._store.force_release("nightly")


@stop("A lock that cannot be")
def impossible(guide: Guide) -> None:
    """The name is the resource's; the ttl is a number of seconds."""
    for name, ttl in (("", 30.0), ("nightly", -1.0), ("nightly", float("inf"))):
        try:
            Lock(guide.store(), name, ttl=ttl)
        except ValueError as error:
            guide.say(error)


@stop("A URL that cannot be read")
def unreadable_url(guide: Guide) -> None:
    """User and password are never shown."""
    for url in (
        "redis://bob:secret@h/zero",
        "http://bob:secret@h",
        "redis://h/0?sockt_timeout=1",
        "redis://h/0?credential_provider=mine",
    ):
        try:
            connect(url)
        except ValueError as error:
            guide.say(error)

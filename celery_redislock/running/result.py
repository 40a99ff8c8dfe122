"""Release and result in one step, where the result backend is the lock server and nothing else follows.

The seam is ``_store_result`` of a thread's ``RedisBackend``, with the two methods it calls to look at what is
there and to write (Celery 5.5.0 to 5.7.0, ``backends/base.py``). What is stored, under which key and for how
long, is left to Celery.
"""

from types import MethodType
from typing import Any

from celery.backends.redis import RedisBackend
from celery.states import FAILURE, PENDING, SUCCESS

from celery_redislock.locks.lease import Lease
from celery_redislock.running.life import STORED_NEXT
from celery_redislock.running.run import Run
from celery_redislock.store.store import LARGEST, LockStore

#: What ``_store_result`` must call, or the seam is not where it was.
_CALLED = {"_get_task_meta_for", "_set_with_state"}


def join(backend: Any, store: LockStore) -> bool:
    """Let what a backend stores release locks, if it keeps it where the store keeps those; say whether."""
    if backend.__dict__.get("_redislock_beside") is store:
        return True
    code = getattr(RedisBackend._store_result, "__code__", None)
    if type(backend) is not RedisBackend or not _CALLED.issubset(getattr(code, "co_names", ())):
        return False
    if not store.leads_to(backend.connparams):
        return False
    backend._store_result = MethodType(_store_result, backend)  # a method, as Celery's log lines name it
    backend._redislock_beside = store
    return True


def _store_result(backend: Any, task_id: Any, result: Any, state: str, *args: Any, **more: Any) -> Any:
    """Store a result as Celery does; the one that a run waits for at its end releases its lock as well."""
    request: Any = more.get("request")
    run: Run | None = getattr(request, "redislock_run", None)
    if (
        run is not None
        and run.state is STORED_NEXT
        and run.lease is not None
        and not run.lease.ended
        and task_id == request.id
        and state in {SUCCESS, FAILURE}
    ):
        backend = _Ending(backend, run, run.lease)
    return RedisBackend._store_result(backend, task_id, result, state, *args, **more)


class _Ending(RedisBackend):  # type: ignore[misc]  # celery-types has it untyped
    """A backend as the end of a run sees it; the two share all they have."""

    __slots__ = ("_lease", "_run")

    def __init__(self, backend: Any, run: Run, lease: Lease) -> None:
        self.__dict__ = backend.__dict__  # type: ignore[misc]  # mypy takes the slots for all there is
        self._run = run
        self._lease = lease

    def _get_task_meta_for(self, task_id: Any) -> dict[str, Any]:  # noqa: ARG002  Celery's
        return {"status": PENDING}  # the script looks

    def set(self, key: bytes, value: Any, **more: Any) -> None:
        run = self._run
        expires = more.get("expires")
        seconds = (self.expires if expires is None else expires) or 0
        is_stored = False
        if isinstance(value, str) and len(value) <= LARGEST:
            is_stored = run.release_with_result(self._lease, key.decode(), value, seconds)
        else:
            run.release(self._lease)
        if not is_stored and super()._get_task_meta_for(run.request.id)["status"] != SUCCESS:
            super().set(key, value, **more)

"""The worker's main process: it knows each run's token, renews beside the child, and acts for dead ones.

All of this runs in the main process, in its event loop's thread (or, on the
threads, gevent, eventlet and solo pools, in the one process there is); every
call to the lock server is bounded by two socket timeouts.
"""

import logging
import os
from datetime import datetime, timezone
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request

from celery_redislock.copies import timeout_requeues
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.exceptions import RedisLockError
from celery_redislock.fate import LEAVES_EXITS, is_loss, will_be_requeued, will_be_retried
from celery_redislock.header import HEADER, Header
from celery_redislock.lifecycle import give_claim_back
from celery_redislock.locks.debts import NotYet
from celery_redislock.locks.store import Term, new_token
from celery_redislock.redeliver import RAW, raw_message
from celery_redislock.support import Locked, Support, is_alive, is_another_process

__all__ = ["LockRequest"]

logger = logging.getLogger("celery_redislock")

#: Seconds a lease is left after a hard time limit: the child gets SIGTERM, and SIGKILL 0.1 s later
#: (billiard 4.3.2, pool.py), and is reaped within a few seconds.
DYING_TTL = 5.0


class LockRequest(Request):
    """One delivery of a message of a unique task.

    Celery makes one per delivery, on receipt, before prefetching, ETAs and
    rate limits; a redelivery gets another. So the run's token is minted here:
    the main process knows it although it never sees the child's lease.
    """

    def __init__(self, message: Any, **kwargs: Any) -> None:
        """Receive a message; called by the worker's strategy."""
        super().__init__(message, **kwargs)
        self._run_token = new_token(self.id)
        # A copy, and not in request_dict itself: what is there leaks into the headers of a retry's message.
        self._request_dict["properties"] = {
            **self._request_dict["properties"],
            RAW: {
                **raw_message(message),
                "token": self._run_token,
                "settled_by": os.getpid() if LEAVES_EXITS else None,
            },
        }
        self._header = Header.of(self._request_dict, self.id)
        self._support: Support | None = None
        self._seen: Locked | None = None
        self._is_over = self._is_elsewhere = False
        self._watch_claim()

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """A child has taken the task: from now on its lease is renewed from here as well."""
        super().on_accepted(pid, time_accepted)
        self._is_elsewhere = is_another_process(pid)
        if self._is_elsewhere:
            self._watch_lease()
        else:
            self._stop_watching()

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """A time limit has passed; at the hard one the child is about to be killed."""
        if not soft:
            self._release_when_dead()
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """The run failed, or its child is gone: what a dead child held is settled before the outcome is."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, TimeLimitExceeded):
            self._release_when_dead()
        elif isinstance(error, WorkerLostError | Terminated | SystemExit | KeyboardInterrupt):
            self._settle_for_dead_child(error)
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def reject(self, requeue: bool = False) -> None:
        """Refuse the message; one that no pool was given is not to run: its ETA is no time (celery 5.7.0)."""
        if not requeue and self.time_start is None and self._apply_result is None:
            self._give_back_unrun()
            self._stop_watching()  # and not over: before 5.7 Celery runs it all the same
        super().reject(requeue)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if not terminated:
            # Revoked or expired before it ran. A terminated one's body may go on: on_failure will come.
            self._give_back_unrun()
            self._over()
        super()._announce_revoked(reason, terminated, signum, expired)

    def _settle_for_dead_child(self, error: BaseException) -> None:
        locked = self._locked()
        if self._is_over or locked is None:
            return
        if locked.options.is_window:
            if not will_be_requeued(self, error) and not (is_loss(self, error) and will_be_retried(self)):
                self._give_back_passing_claim()
            return
        if will_be_requeued(self, error):
            self._convert_to_claim(self._claim_token() or new_token(self.id))
        elif is_loss(self, error) and will_be_retried(self) and self._header is not None:
            token = new_token(self.id)
            if self._convert_to_claim(token):
                self._carry(token)
        else:
            self._give_back(self._run_token)
            self._give_back(self._claim_token())
        self._over()

    def _convert_to_claim(self, token: str) -> bool:
        """Keep a dead child's hold for the message that comes next; not one it had given back.

        Celery asks the result backend only later whether the run had succeeded (5.7.0), and then no
        message comes: a claim made of a free lock would stand in everybody's way.
        """
        locked = self._locked()
        if locked is None or not locked.options.holds_while_running or not self._is_still_held(locked):
            return False
        return locked.guard.convert(locked.work, self._run_token, token, ttl=locked.options.lock_queue_ttl)

    def _is_still_held(self, locked: "Locked") -> bool:
        term = Term(locked.work.key, self._run_token, locked.options.lock_ttl)
        try:
            return locked.guard.store.renew([term]).renewed[0] is True
        except RedisLockError:
            return True  # unknown; converting it will give both back later

    def _carry(self, token: str) -> None:
        """Let the message Celery is about to publish for this id carry the hold that was kept for it."""
        if self._header is None:
            return
        text = self._header._replace(token=token, claimed=True).dumps()
        self._request_dict[HEADER] = text
        if self._context.headers is not None:
            self._context.headers[HEADER] = text

    def _release_when_dead(self) -> None:
        """Shorten the lease now, and release it once the child is seen to be dead."""
        locked = self._locked()
        if self._is_over or locked is None:
            return
        if locked.options.is_window:
            if not timeout_requeues(self.task):
                self._give_back_passing_claim()
            return
        self._over()
        store, key, token = locked.guard.store, locked.work.key, self._run_token
        pid = self.worker_pid if self._is_elsewhere else None
        claim, goes_back = self._claim_token(), timeout_requeues(self.task)
        try:
            store.renew([Term(key, token, DYING_TTL)])
        except RedisLockError as error:
            logger.warning(
                "could not shorten the lease on %r after a hard time limit, so it is released later: %s",
                key,
                error,
            )

        def release() -> None:
            if pid is not None and is_alive(pid):
                message = f"the body in process {pid} has not ended yet"
                raise NotYet(message)
            if goes_back:
                # Not where SIGTERM ended the body, and its child released it: that delivery may be over.
                self._convert_to_claim(claim or new_token(self.id))
                return
            store.release(key, token)
            if claim is not None:
                store.release(key, claim)  # it was killed before it had started, in before_start

        within = max(DYING_TTL, locked.options.lock_ttl)
        locked.guard.watchdog.release_later(
            release, within=within, what=f"the lease on {key!r} of a timed out run"
        )

    def _give_back_unrun(self) -> None:
        """Give back the claim of a message that will not run; its window too, unless a copy may have."""
        header, locked = self._header, self._locked()
        may_be_copy = self.delivery_info.get("redelivered") or (header is not None and header.is_copy)
        may_be_copy = may_be_copy or self._request_dict.get("retries")  # its first run was accepted, and ran
        if may_be_copy and header is not None and header.is_window:
            return  # its claim is the window
        if locked is None:
            # The task takes no lock any more, or none that could be told here.
            give_claim_back(self.task.app, header, undo=not may_be_copy)
            return
        if header is not None:
            ttl = locked.options.lock_queue_ttl
            locked.guard.give_back_unrun(locked.work.key, header.token, ttl=ttl, undo=not may_be_copy)

    def _give_back_passing_claim(self) -> None:
        """Give back the claim of a run that holds nothing: killed before it started, it may be there still.

        Its task had another scope when it was published; the run itself gives it back when it starts.
        """
        if self._header is not None and self._header.has_passing_claim:
            self._give_back(self._header.token)

    def _give_back(self, token: str | None) -> None:
        locked = self._locked()
        if locked is not None and token is not None:
            locked.guard.give_back(locked.work.key, token, ttl=locked.options.lock_queue_ttl)

    def _claim_token(self) -> str | None:
        return self._header.token if self._header is not None else None

    def _watch_claim(self) -> None:
        """Renew the claim while the message waits here: prefetched, for its ETA, or for a rate limit."""
        if self._header is None or not self._header.claimed:
            return
        locked = self._locked()
        if locked is not None and not locked.options.is_window:
            # Not less than until the ETA and as long again: its claim was made for that.
            until_eta = (self.eta - datetime.now(timezone.utc)).total_seconds() if self.eta else 0.0
            self._watch(locked, self._header.token, locked.options.lock_queue_ttl + max(0.0, until_eta))

    def _watch_lease(self) -> None:
        self._stop_watching()
        locked = self._locked()
        if locked is not None and locked.options.holds_while_running:
            limit = self.time_limits[0] or self.task.time_limit
            self._watch(
                locked, self._run_token, locked.options.lock_ttl, max_hold=locked.options.max_hold(limit)
            )

    def _watch(self, locked: "Locked", token: str, ttl: float, *, max_hold: float | None = None) -> None:
        self._support = Support(locked.guard.store, Term(locked.work.key, token, ttl), self)
        locked.guard.watchdog.watch(self._support, max_hold=max_hold)

    def _stop_watching(self) -> None:
        if self._support is not None:
            self._support.end()
            self._support = None

    def _over(self) -> None:
        self._is_over = True
        self._stop_watching()

    @property
    def _result_is_in(self) -> bool:
        """Whether the pool has this run's result: it has ended, whatever was announced before."""
        if self._is_over or self.time_start is None or self._apply_result is None:
            # Not accepted yet, it may wait in the pool. A result that is gone says nothing then: the thread
            # pool refers to none of its own (celery 5.7.0, concurrency/thread.py).
            return self._is_over
        result = self._apply_result()
        return result is None or result.ready()

    def _locked(self) -> "Locked | None":
        """What this message locks; ``None`` for nothing, or if it cannot be told here: the child will say."""
        if self._seen is not None or (self._header is not None and self._header.key is None):
            return self._seen
        try:
            self._seen = Locked.of(declaration_of(self.task), self)
        except Exception as error:  # noqa: BLE001  from users' templates, models and settings; Celery goes on
            logger.debug("the main process cannot tell the lock of %s: %s", self, error)
        return self._seen

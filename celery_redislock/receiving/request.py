"""One delivery in the worker's main process: what Celery tells of it, in the order in which it is told.

All of this runs in the main process, in its event loop's thread (or, on the threads, gevent and solo
pools, in the one process there is); every call to the lock server is bounded by two socket timeouts.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Reject
from celery.worker.request import Request
from kombu.serialization import registry

from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.locks.lease import new_token
from celery_redislock.locks.process import name_of
from celery_redislock.log import logger
from celery_redislock.publishing.message import HEADER
from celery_redislock.receiving import death, line, parking, renewal, sweep
from celery_redislock.receiving.hand import (
    CONCLUDE,
    END,
    ENDING,
    HAND_BACK,
    IN_HAND,
    PARK,
    RECEIVED,
    RUNS_ELSEWHERE,
    START_ELSEWHERE,
    START_HERE,
    State,
    settling,
)
from celery_redislock.receiving.renewal import PAUSE, UNRENEWED, HoldInHand
from celery_redislock.running.delivery import IN_HAND_SINCE, RECEIPT, Delivery, Receipt
from celery_redislock.running.duplicate import Skipped
from celery_redislock.running.leavings import Fate, release_dropped
from celery_redislock.running.redelivery import PutOff, ToBeParked, jittered, put_off
from celery_redislock.running.transition import Transition
from celery_redislock.wire.thread import tell


class LockRequest(Request):
    """One delivery of a message of a unique task.

    Celery makes one per delivery, on receipt, before prefetching, ETAs and rate limits; a redelivery gets
    another. So the run's token is minted here: the main process knows it although it never sees the
    child's lease.
    """

    #: What is renewed of it; ``None`` until it has lasted.
    renewals: "tuple[HoldInHand, ...] | None" = None
    _renew_later: Callable[[Any], None] = UNRENEWED.add
    #: Where it is between its receipt and its end; changed by the transitions of ``receiving/hand.py`` alone.
    state: State = RECEIVED
    #: What ``receiving/line.py`` notes: identity of the first message of its key that was parked behind this
    #: one, and what is done with this one when its end is settled.
    first_behind = ""
    at_end: "Callable[[LockRequest], None] | None" = None

    #: What Celery does with an outcome.
    _take_outcome = Request.on_success

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let :meth:`on_success` be reached.

        The class that Celery derives for each task has a copy of ``Request.on_success``, which calls no other
        (5.5.0 to 5.7.0, ``create_request_cls``). It is called from here. A subclass of a project that
        overrides :meth:`on_success` is reached as well, and calls ``super()``: that acknowledges.
        """
        super().__init_subclass__(**kwargs)
        copy = cls.__dict__.get("on_success")
        if getattr(copy, "__module__", "") == Request.__module__:
            cls._take_outcome = copy
            del cls.on_success

    def __init__(self, message: Any, **kwargs: Any) -> None:
        """Receive a message; called by the worker's strategy."""
        super().__init__(message, **kwargs)
        request_dict = self._request_dict
        properties = request_dict["properties"]
        # In a copy: an entry of request_dict itself leaks into the headers of a retry's message.
        request_dict["properties"] = {
            **properties,
            RECEIPT: Receipt(
                new_token(str(self.id)),  # str: a number runs, as with plain Celery
                properties.get(IN_HAND_SINCE) or time.time(),
                registry.type_to_name.get(message.content_type),
                name_of(os.getpid()),
            ),
        }
        header = request_dict.get(HEADER)
        more, waits = _traits(self._task)
        # One with an ETA is not on its way yet: nobody waits behind it.
        if waits and header.__class__ is str and not request_dict.get("eta"):
            line.note(header, self)
        if more or (header.__class__ is str and '"o":' in header):
            own = str(header)
            if "short" in more or '"o":' in own:
                # At once: its ttl may be shorter than others wait there.
                self._renew_later = type(self).begin_renewal
            if "timed" in more or '"lock_rate"' in own or '"lock_period"' in own:
                # Its rate, or period, may let the next one start at a time that the sweep does not know.
                self.at_end = sweep.look_soon
        self._renew_later(self)

    @cached_property
    def delivery(self) -> Delivery | None:
        """The delivery, as its child makes it; ``None`` if it takes no lock, or only the child can tell."""
        try:
            return Delivery.of(self.task, self._context)
        except Exception as error:  # noqa: BLE001  from users' templates, models and settings; Celery continues
            tell(logger.debug, "the main process cannot tell the lock of %s: %s", self, error)
            return None

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """A child has taken the task: if it lasts, its lease is renewed from here as well."""
        # A greenlet of this process gives its identity for a pid.
        greenlet = sys.modules.get("greenlet")
        is_here = pid == os.getpid() or (greenlet is not None and pid == id(greenlet.getcurrent()))
        self.state = START_HERE[self.state] if is_here else START_ELSEWHERE[self.state]
        super().on_accepted(pid, time_accepted)
        if self.renewals is not None:
            renewal.stop_renewing(self)
            self._renew_later(self)

    def begin_renewal(self) -> None:
        """It has lasted: renew what it holds. Called in the thread of :class:`Unrenewed`, or at once."""
        renewal.begin(self)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """A time limit has passed; at the hard one the child is about to be killed.

        On prefork ``on_failure`` has been called before, with ``TimeLimitExceeded``. On gevent the body has
        ended, and nothing else is called (5.5.0 to 5.7.0).
        """
        if soft:
            super().on_timeout(soft, timeout)
            return
        former = self._end()
        end = death.let_die(self) if former in IN_HAND else HAND_BACK
        super().on_timeout(soft, timeout)
        if former in IN_HAND and former is not RUNS_ELSEWHERE:
            self._settle(end)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """The run failed, or its child is gone: a dead child's hold is released or handed on first."""
        former = self._end()
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        end = HAND_BACK
        if former not in IN_HAND:
            pass  # what it leaves has been released
        elif isinstance(error, TimeLimitExceeded):
            death.let_die(self)
        elif isinstance(error, WorkerLostError | Terminated | SystemExit | KeyboardInterrupt):
            death.release(self, error)
        elif isinstance(error, ToBeParked):
            try:
                self._park(error)
                end = PARK
            except Exception as instead:  # noqa: BLE001  it ends the delivery, as a task's own does
                error = instead
                exc_info = ExceptionInfo()
        elif not (isinstance(error, PutOff) or self._is_requeued(error)):
            self._settle(CONCLUDE)
        answer = super().on_failure(exc_info, *args, **kwargs)
        if self.state is ENDING:
            self._settle(end)
        # For an Ignore Celery sends no event: a monitor would see the task started for ever.
        if isinstance(error, Skipped):
            why = str(error.args[0])
            self.send_event("task-revoked", terminated=False, signum=None, expired=False, exception=why)
        elif isinstance(error, PutOff) or (isinstance(error, ToBeParked) and not error.args[2]):
            self.send_event("task-retried", exception=str(error.args[0]), traceback=None)
        return answer

    def _is_requeued(self, error: BaseException) -> bool:
        """Whether its body has its message delivered once more: one that was acknowledged is not."""
        return isinstance(error, Reject) and error.requeue and not self.acknowledged

    def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        """The pool has the outcome of the run, which may be a failure: then Celery calls ``on_failure``.

        On threads and gevent it is an ``ExceptionInfo`` where the body raised ``SystemExit``, for which
        Celery raises TypeError (5.5.0 to 5.7.0, ``concurrency/base.py``).
        """
        if failed__retval__runtime.__class__ is not tuple or not failed__retval__runtime[0]:
            # As ``_settle`` does, without a call for each message.
            with settling:
                self.state = CONCLUDE[self.state]
            if self.at_end is not None:
                self.at_end(self)
        return self._take_outcome(failed__retval__runtime, **kwargs)

    def _end(self) -> State:
        """Note that its end is heard, or is about to come; return its state before."""
        former = self.state
        self.state = END[former]
        return former

    def _settle(self, end: Transition[State]) -> None:
        """What it leaves is settled."""
        with settling:
            self.state = end[self.state]
        if self.at_end is not None:
            self.at_end(self)

    def _park(self, error: ToBeParked) -> None:
        """Put the message into the line of the lock that its run was refused; else raise what ends it."""
        renewal.stop_renewing(self)
        delivery = self.delivery
        if delivery is None:
            return  # only its child could tell its lock; it has said why
        why, name, is_copy = error.args
        if is_copy:
            delivery.earlier = "running"
        outcome = parking.park_refused(delivery, self._message, name, self)
        if outcome is not None:
            pause = jittered(delivery.options.lock_retry_delay)
            raise put_off(delivery, pause, f"{outcome}: {why}")

    def reject(self, requeue: bool = False) -> None:
        """Refuse the message; one that no pool was given does not run: its ETA is no time (celery 5.7.0)."""
        if not requeue and self.time_start is None and self._apply_result is None:
            self._drop()
        super().reject(requeue)

    def _announce_revoked(self, reason: str, terminated: bool, *args: Any) -> None:
        if not terminated:
            # Revoked or expired before it ran. A terminated one's body may go on: on_failure will come.
            self._drop()
        super()._announce_revoked(reason, terminated, *args)

    def _drop(self) -> None:
        release_dropped(self.task.app, self._request_dict, self.delivery_info, Fate.UNRUN)
        renewal.stop_renewing(self)
        self._settle(HAND_BACK)

    @property
    def has_result(self) -> bool:
        """Whether the pool has this run's result: it has ended, even if Celery announced its end before."""
        if self.state is not RUNS_ELSEWHERE or self._apply_result is None:
            # The thread pool refers to none of its own results (celery 5.7.0, concurrency/thread.py).
            return self.state not in IN_HAND
        result = self._apply_result()
        return result is None or result.ready()


@lru_cache(maxsize=1024)
def _traits(task: Any) -> tuple[str, bool]:
    """What is done when it is received: for ``short`` holds, a ``timed`` start; and whether it waits."""
    with suppress(Exception):  # a wrong declaration is the child's to report
        options = declaration_of(task).options
        is_short = min(options.lock_ttl, options.lock_queue_ttl) < 24 * PAUSE
        waits = parking.waits(options)
        is_timed = options.lock_rate is not None or (waits and options.lock_period is not None)
        return "short " * is_short + "timed" * is_timed, waits
    return "", False

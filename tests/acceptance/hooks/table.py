"""Which hooks are called, and where: what the package relies on, written by hand (celery 5.5.0 to 5.7.0)."""

from collections.abc import Mapping
from typing import NamedTuple

from tests.acceptance.hooks.reflection import Hook

PUBLISHER, MAIN, CHILD, BEAT = PROCESSES = ("publisher", "main process", "pool child", "beat")

#: The processes in which each hook is called. On pools without children the main process does what they do.
ROWS: Mapping[Hook, frozenset[str]] = {
    Hook(name, ours): frozenset(processes)
    for name, ours, *processes in (
        ("Task.apply_async", "SingletonTask", PUBLISHER, CHILD, BEAT),
        ("Task.apply", "SingletonTask", PUBLISHER),
        ("Task.AsyncResult", "SingletonTask", PUBLISHER, CHILD, BEAT),
        ("Task.on_bound", "SingletonTask", PUBLISHER, MAIN, BEAT),
        ("Task.start_strategy", "SingletonTask", MAIN),
        ("Task.__call__", "SingletonTask", PUBLISHER, CHILD),
        ("Producer._publish", "_Publish.send", PUBLISHER, CHILD, BEAT),
        ("Channel._put", "_Put.put", PUBLISHER, CHILD, BEAT),
        ("AsyncResult.get", "LockResult", PUBLISHER),
        ("AsyncResult.maybe_throw", "LockResult", PUBLISHER),
        ("AsyncResult.maybe_reraise", "LockResult", PUBLISHER),
        ("AsyncResult.__repr__", "LockResult", PUBLISHER),
        ("AsyncResult.__reduce__", "LockResult", PUBLISHER),
        ("AsyncResult.__del__", "LockResult", PUBLISHER),
        ("EagerResult.__repr__", "LockEagerResult", PUBLISHER),
        ("EagerResult.__reduce__", "LockEagerResult", PUBLISHER),
        ("Request.__init__", "LockRequest", MAIN),
        ("Request.on_accepted", "LockRequest", MAIN),
        ("Request.on_timeout", "LockRequest", MAIN),
        ("Request.on_success", "LockRequest", MAIN),
        ("Request.on_failure", "LockRequest", MAIN),
        ("Request.reject", "LockRequest", MAIN),
        ("Request._announce_revoked", "LockRequest", MAIN),
        ("BaseKeyValueStoreBackend._store_result", "_store_result", CHILD),
        ("RedisBackend.__init__", "_Ending", CHILD),
        ("RedisBackend.set", "_Ending", CHILD),
        ("BaseKeyValueStoreBackend._get_task_meta_for", "_Ending", CHILD),
        ("task_postrun", "_conclude", PUBLISHER, CHILD),
        ("task_unknown", "_release_unwanted", MAIN),
        ("task_rejected", "_release_unwanted", MAIN),
        ("worker_init", "_prepare_worker", MAIN),
        ("celeryd_after_setup", "check_worker", MAIN),
        ("worker_process_shutdown", "_last_call", CHILD),
        ("Step.include_if", "Unreceived", MAIN),
        ("Step.create", "Unreceived", MAIN),
        ("Step.include_if", "Sweeping", MAIN),
        ("Step.create", "Sweeping", MAIN),
        ("Step.include_if", "InHand", MAIN),
        ("StartStopStep.start", "InHand", MAIN),
        ("StartStopStep.stop", "InHand", MAIN),
        ("Consumer.on_decode_error", "_release_unread", MAIN),
        ("Node.handlers['revoke']", "_hear", MAIN),
        ("Node.handlers['terminate']", "_hear", MAIN),
        ("QoS.append", "WorkerName.write", MAIN),
        ("QoS.restore_unacked", "_restore", MAIN),
        ("beat_init", "prepare_beat", BEAT),
        ("Scheduler.tick", "Beat.tick", BEAT),
        ("Scheduler.is_due", "Beat.is_due", BEAT),
        ("Scheduler._when", "Beat.when", BEAT),
        ("Scheduler.reserve", "Beat.reserve", BEAT),
        ("Scheduler.apply_entry", "Beat.apply_entry", BEAT),
        ("Scheduler.apply_async", "Beat.apply_async", BEAT),
        ("Scheduler.send_task", "Beat.send_task", BEAT),
    )
}

#: Celery sends it in the children of a prefork pool alone.
OF_CHILDREN_ALONE = {Hook("worker_process_shutdown", "_last_call")}
#: Python calls it, sooner or later: elsewhere than its row says nobody waits for it.
AT_ANY_TIME = {Hook("AsyncResult.__del__", "LockResult")}

#: The hooks of one delivery, by the words of :data:`CELLS`.
WORDS = {
    "received": "Request.__init__",
    "accepted": "Request.on_accepted",
    "body": "Task.__call__",
    "postrun": "task_postrun",
    "timeout": "Request.on_timeout",
    "success": "Request.on_success",
    "failure": "Request.on_failure",
    "reject": "Request.reject",
    "revoked": "Request._announce_revoked",
}


class Cell(NamedTuple):
    """The hooks that an end of a run calls in some pools, in their order; with either acknowledgement.

    Attributes:
        end: of ``ends.PLAYS``.
        pools: where.
        main: in the main process.
        child: in the pool's.
        perhaps: what the child may call or not, as it is killed soon.
    """

    end: str
    pools: tuple[str, ...]
    main: str
    child: str = ""
    perhaps: str = ""


PREFORK, GREEN, THREADS, ALONE = ("prefork",), ("gevent",), ("threads",), ("solo",)
ONE_PROCESS = (*THREADS, *GREEN, *ALONE)

#: ``on_success`` is what pools call with every outcome, and calls ``on_failure``.
_FAILED = "received accepted success failure"
_FAILED_HERE = "received accepted body postrun success failure"
_SUCCEEDED = "received accepted success"
_SUCCEEDED_HERE = "received accepted body postrun success"

#: Not there: threads and solo cannot end a body that runs (``terminate``, limits), and gevent knows no soft
#: limit; where there are no children none is killed; SystemExit ends a solo worker.
CELLS = (
    Cell("success", PREFORK, _SUCCEEDED, "body postrun"),
    Cell("success", ONE_PROCESS, _SUCCEEDED_HERE),
    *(Cell(end, PREFORK, _FAILED, "body postrun") for end in ("failure", "retry", "Ignore", "skipped")),
    *(Cell(end, ONE_PROCESS, _FAILED_HERE) for end in ("failure", "retry", "Ignore", "skipped")),
    Cell("Reject", PREFORK, f"{_FAILED} reject", "body postrun"),
    Cell("Reject", ONE_PROCESS, f"{_FAILED_HERE} reject"),
    # Parked when its run is refused; then it is delivered again, and runs.
    Cell("parked", PREFORK, f"{_FAILED} {_SUCCEEDED}", "body postrun body postrun"),
    Cell("parked", ONE_PROCESS, f"{_FAILED_HERE} {_SUCCEEDED_HERE}"),
    # The child ends: the pool calls ``error_callback``. Elsewhere ``on_success`` gets no outcome, and raises.
    Cell("SystemExit", PREFORK, "received accepted failure", "body postrun"),
    Cell("SystemExit", (*THREADS, *GREEN), _SUCCEEDED_HERE),
    Cell("revoked", (*PREFORK, *ONE_PROCESS), "received revoked"),
    Cell("expired", (*PREFORK, *ONE_PROCESS), "received revoked"),
    Cell("terminated", PREFORK, "received accepted revoked failure", "body postrun"),
    # A greenlet that is killed returns an outcome without an error.
    Cell("terminated", GREEN, "received accepted body revoked postrun success"),
    Cell("soft limit", PREFORK, "received accepted timeout success failure", "body postrun"),
    # SIGKILL comes 0.1 s after SIGTERM (billiard 4.3.2).
    Cell("hard limit", PREFORK, "received accepted failure timeout", "body", perhaps="postrun"),
    Cell("hard limit", GREEN, "received accepted body postrun timeout"),
    Cell("child killed", PREFORK, "received accepted failure", "body"),
)

"""Which hooks are called, and where: what the package relies on, written by hand (celery 5.5.0 to 5.7.0)."""

from collections.abc import Mapping

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

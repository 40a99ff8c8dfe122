"""The times that acceptance tests depend on, and the words of the workers' log that they wait for.

Nowhere else: a slower machine, or another wording, is a change of one line.
"""

#: Seconds of a lease that is renewed, on a busy machine too.
LEASE = 4.0
#: Seconds of a lease that is left to expire.
SHORT_LEASE = 1.0
#: Seconds of a lease that cannot expire within a test: what is free before was released.
LONG_LEASE = 300.0
#: Seconds from one look of a waiting run to the next, at most (``lock_retry_delay``).
RETRY_DELAY = 0.3
#: Seconds a lock server may take to answer, before it counts as away.
SOCKET_TIMEOUT = 1.0
#: Seconds after which Redis delivers an unacknowledged message again; kombu takes whole ones.
VISIBILITY_TIMEOUT = 2
#: Seconds within which a lock is free that a worker's main process releases, or that is owed. Celery looks
#: for dead children every 5 s (5.7.0, ``concurrency/asynpool.py``).
FREED = 10.0
#: Seconds within which a lock is free whose worker was killed, for the next one that asks on its machine.
DEAD = 3.0
#: Seconds after which a fact that has not come counts as one that never will.
PATIENCE = 30.0
#: The same for a whole workflow.
WORKFLOW = 2 * PATIENCE

#: A copy of a message came after its run had ended, and did nothing.
DONE_BEFORE = "was delivered again after"
#: A run learns that its lease is gone.
LOST = "lost its lock"
#: A lease was released because its run is dead.
KILLED = "its worker was killed"
#: A claim expired before its message was run.
CLAIM_GONE = "was gone when it started"
#: A run is put off because the lock server does not answer.
CANNOT_START = "cannot start"

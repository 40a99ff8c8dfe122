"""A message in hand: its states in the worker's main process, from its receipt until its end is settled.

::

    received --+-- runs here -------+-- ending --+-- over
               +-- runs elsewhere --+            +-- parked
                                                 +-- handed back

    A run that succeeds is over at once; what never starts is handed back at once.

Everything that changes the state of a :class:`~celery_redislock.receiving.request.LockRequest` is a
transition of this file. Whoever Celery tells of a message changes it, one after the other; its end is settled
under :data:`settling`, as another thread may park a message behind it.
"""

from typing import Any, Final, Literal

from celery_redislock.running.transition import Transition
from celery_redislock.wire.thread import original

#: It has been received, and has not started.
RECEIVED: Final = "received"
#: This process runs it: in a thread, in a greenlet, or itself.
RUNS_HERE: Final = "runs here"
#: A pool child runs it.
RUNS_ELSEWHERE: Final = "runs elsewhere"
#: Its end has been heard, or is about to come, and what it leaves is not settled yet.
ENDING: Final = "ending"
#: Its run is over, and what it held is released.
OVER: Final = "over"
#: It was refused its lock, and waits in line.
PARKED: Final = "parked"
#: It comes again, will not run, or its child has died: what is left of it is not this delivery's any more.
HANDED_BACK: Final = "handed back"

State = Literal["received", "runs here", "runs elsewhere", "ending", "over", "parked", "handed back"]

#: It has not started.
WAITS: Final[frozenset[State]] = frozenset({RECEIVED})
#: It is run.
RUNS: Final[frozenset[State]] = frozenset({RUNS_HERE, RUNS_ELSEWHERE})
#: Its end has not been heard; what comes of its key stands behind it.
IN_HAND: Final[frozenset[State]] = WAITS | RUNS
#: What it leaves is settled, and nothing happens to it any more.
SETTLED: Final[frozenset[State]] = frozenset({OVER, PARKED, HANDED_BACK})

_On = Transition[State]
_ENDED: dict[State, State] = {state: state for state in (ENDING, OVER, PARKED, HANDED_BACK)}

#: Celery's ``on_accepted``, which may come after its end (billiard 4.3.2, ``ApplyResult._ack``).
START_HERE = _On("it starts here", {RECEIVED: RUNS_HERE, **_ENDED})
START_ELSEWHERE = _On("it starts elsewhere", {RECEIVED: RUNS_ELSEWHERE, **_ENDED})
#: Celery tells of its end, or of a hard time limit: of that twice. What the pool cannot take never starts.
END = _On("it ends", {**dict.fromkeys(IN_HAND, ENDING), **_ENDED})
#: What it leaves is settled, in one of three ways.
CONCLUDE = _On("it is over", dict.fromkeys((*IN_HAND, ENDING), OVER))
PARK = _On("it is parked", {ENDING: PARKED})
HAND_BACK = _On("it is handed back", {RECEIVED: HANDED_BACK, ENDING: HANDED_BACK})

#: Held while an end is settled. No greenlet switches then, so it is a native one, for threads beside them.
settling: Any = original("threading", "Lock")()

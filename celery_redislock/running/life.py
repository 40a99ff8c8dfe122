"""The life of a run: its states in the process of its body, until the copies of its message are told.

::

    not begun --+-- begun --+-- ended --+-----------------+-- over
                |           |           +-- stored next --+
                |           +-- requeued
                |           +-- broken off
                +-- ended, as above

Whatever changes the state of a :class:`~celery_redislock.running.run.Run` is a transition of this file. It
meets no other thread: only that of the body changes it.
"""

from typing import Final, Literal

from celery_redislock.running.transition import Transition

#: It asks for its lock, or was refused it.
NOT_BEGUN: Final = "not begun"
#: Its body is running.
BEGUN: Final = "begun"
#: The body has unwound, and the message is done with that.
ENDED: Final = "ended"
#: The same, and the step that stores its result, which is yet to come, releases the lock.
STORED_NEXT: Final = "stored next"
#: The body had its message go back to its queue.
REQUEUED: Final = "requeued"
#: It ends with its process: only the main process knows whether the message is delivered again.
BROKEN_OFF: Final = "broken off"
#: Its result is stored, what follows is published, and copies of its message find that it is done.
OVER: Final = "over"

State = Literal["not begun", "begun", "ended", "stored next", "requeued", "broken off", "over"]

#: Its message is done, and nobody has been told yet.
DONE: Final[frozenset[State]] = frozenset({ENDED, STORED_NEXT})

_On = Transition[State]

BEGIN = _On("its body begins", {NOT_BEGUN: BEGUN})
END = _On("its body ends", {BEGUN: ENDED})
REQUEUE = _On("its body has it requeued", {BEGUN: REQUEUED})
BREAK_OFF = _On("its body ends with its process", {BEGUN: BROKEN_OFF})
#: In line, for longer than it may: a copy of its message, as a broker may have, has nothing to do.
GIVE_UP = _On("it has waited in vain", {NOT_BEGUN: ENDED})
STORE_NEXT = _On("its result is stored next", {ENDED: STORED_NEXT})
CONCLUDE = _On("its copies are told", dict.fromkeys(DONE, OVER))

"""A ``with`` block of a thread, by the frame that runs it: so that one is known whose end was cut short.

A signal's exception may come between a block and the first instruction of ``__exit__``, which nothing can
catch there (CPython looks for signals as that begins).
"""

import sys
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from opcode import opmap
from types import FrameType
from typing import NamedTuple

#: Its frame may rest, although it does not run.
_RESTS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
#: What enters a block; anything else is a call, as of an ``ExitStack``, whose frame ends before its block.
_ENTERS = {opmap.get(name) for name in ("SETUP_WITH", "BEFORE_WITH")}

INTERRUPTED = RuntimeError("the end of its block was interrupted")


class Block(NamedTuple):
    """A block.

    Attributes:
        frame: has entered it.
        at: the place of the instruction that did.
    """

    frame: FrameType
    at: int

    @classmethod
    def entered(cls) -> "Block":
        """Return the block that is entered by the call of the present function."""
        frame = sys._getframe(2)
        return cls(frame, frame.f_lasti)

    def is_over(self, following: "Block") -> bool:
        """Whether it must be over, as this thread enters another one now; what cannot be told is not.

        Its function has returned, or enters the very same block once more.
        """
        code = self.frame.f_code
        if code.co_flags & _RESTS or code.co_code[self.at] not in _ENTERS or "greenlet" in sys.modules:
            return False  # a greenlet sees its own frames alone
        frame: FrameType | None = following.frame
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is None or self == following

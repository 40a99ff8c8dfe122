"""A home: the broker that a process publishes to, as its URL spells it, where that is not the lock server.

What waits in line there names its home, and only a process of that home publishes it. Two spellings may lead
to one broker, so workers prove it (``receiving/proof.py``): the lock server has for each spelling a name that
only its broker knows, and when a worker has proved that last.
"""

from collections.abc import Mapping
from mmap import mmap
from typing import NamedTuple

#: Seconds after the last proof for which a worker of that home is taken to be there: three proofs may fail.
LIVES = 60.0

#: Seconds after which a spelling that nobody proves is forgotten.
KEPT = 7 * 24 * 3600.0

#: Bytes of the spellings that a process and its children know: a hundred and more.
LONGEST = 16_384

#: Before the text: which half counts; before each half: its length.
_HEAD, _LENGTH = 1, 4


class Proof(NamedTuple):
    """What is known of a spelling.

    Attributes:
        name: what only its broker knows; '' where that cannot be proved.
        age: seconds since a worker proved it.
    """

    name: str
    age: float

    @property
    def is_living(self) -> bool:
        """Whether a worker that uses this spelling is there."""
        return self.age < LIVES


def spellings_of(own: str, proofs: Mapping[str, Proof]) -> list[str]:
    """Return all spellings of the broker that this one leads to, as far as is proved; itself first."""
    name = proofs[own].name if own in proofs else ""
    others = [each for each, proof in proofs.items() if name and proof.name == name and each != own]
    return [own, *sorted(others)]


def is_served(home: str, proofs: Mapping[str, Proof]) -> bool:
    """Whether a worker is there that publishes what is for this home."""
    return any(proofs[each].is_living for each in spellings_of(home, proofs) if each in proofs)


class SharedText:
    """A text of lines that a thread of this process writes, and that its forked children read, old and new.

    It lies in memory that they share. There are two halves, so that a child reads the last text, or the one
    before it. Of a text that is too long the last lines are left out.
    """

    def __init__(self) -> None:
        """Begin with an empty text."""
        self._memory = mmap(-1, _HEAD + 2 * (_LENGTH + LONGEST))

    @property
    def text(self) -> str:
        """What was written last."""
        memory = self._memory
        start = self._start_of(memory[0])
        end = start + int.from_bytes(memory[start - _LENGTH : start], "big")
        return memory[start:end].decode()

    @text.setter
    def text(self, text: str) -> None:
        encoded = text.encode()
        if len(encoded) > LONGEST:
            encoded = encoded[:LONGEST].rpartition(b"\n")[0]
        half = 1 - self._memory[0]
        start = self._start_of(half)
        self._memory[start - _LENGTH : start] = len(encoded).to_bytes(_LENGTH, "big")
        self._memory[start : start + len(encoded)] = encoded
        self._memory[0] = half

    @staticmethod
    def _start_of(half: int) -> int:
        return _HEAD + half * (_LENGTH + LONGEST) + _LENGTH

"""What an example's processes write and what its story tells: shown in order, and kept to look for it."""

import os
import sys
import threading

__all__ = ["Transcript"]

#: Begins a line of the story's, and is a line that says that all before it has been read.
_STORY, _READ = "\0", "\0\0"
#: Seconds until a line that was written has been read, on the busiest machine.
_PATIENCE = 30.0


class Transcript:
    """One pipe for everybody, so that lines stand in the order they were written in.

    Attributes:
        pipe: the file descriptor for processes to write to.

    Args:
        shows_lines: show what processes write; without that only the story is shown.
    """

    def __init__(self, *, shows_lines: bool = True) -> None:
        """Begin to read, in a thread."""
        end, self.pipe = os.pipe()
        self._lines: list[str] = []
        self._shows_lines = shows_lines
        self._told = threading.Semaphore(0)
        self._reader = threading.Thread(target=self._read, args=(end,), daemon=True)
        self._reader.start()

    def say(self, *lines: str) -> None:
        """Tell something, after all that was written before; by one thread only."""
        told = [f"{_STORY}{line}\n" for line in lines]
        os.write(self.pipe, "".join([*told, f"{_READ}\n"]).encode())
        self._told.acquire(timeout=_PATIENCE)

    def lines(self, *words: str) -> list[str]:
        """Return the processes' lines so far that contain all these words, in order."""
        self.say()
        return [line for line in self._lines.copy() if all(word in line for word in words)]

    def show(self) -> None:
        """Show the processes' lines that were not shown."""
        if not self._shows_lines:
            for line in self.lines():
                _show(f"    {line}")

    def close(self) -> None:
        """Show what is left; to be called when all processes have ended."""
        os.close(self.pipe)
        self._reader.join(_PATIENCE)

    def _read(self, end: int) -> None:
        with os.fdopen(end, errors="replace") as written:
            for line in written:
                text = line.rstrip()
                if text == _READ:
                    self._told.release()
                elif text.startswith(_STORY):
                    _show(text.removeprefix(_STORY))
                elif text:
                    self._lines.append(text.strip())
                    if self._shows_lines:
                        _show(text if text.startswith("    ") else f"    {text}")


def _show(line: str) -> None:
    """Write a line in one piece: print() writes its end apart, and another thread's may come between."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

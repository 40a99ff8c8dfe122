"""A Redis broker's own record of its messages: the append-only file, which holds each write in its order."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: What the broker was last told about a message.
PUSHED, IN_HAND, ACKNOWLEDGED = "pushed", "in hand", "acknowledged"


class Record:
    """The last write about each message, while the server goes on."""

    def __init__(self, folder: Path, queue: str) -> None:
        """Of a server that keeps its data in this folder, and messages in this queue."""
        self._folder, self._queue, self._read = folder, queue.encode(), 0
        self._last: dict[bytes, tuple[str, str]] = {}

    def messages(self) -> Mapping[str, frozenset[str]]:
        """Return by task id what was last told about each of its messages.

        Redis does not write who takes a message: one that was last pushed, and is in no queue, was sent to a
        worker that has not stored it.
        """
        for command in self._new_commands():
            self._note(*command)
        found: dict[str, frozenset[str]] = {}
        for task_id, last in self._last.values():
            found[task_id] = found.get(task_id, frozenset()) | {last}
        return found

    def _note(self, verb: bytes, key: bytes = b"", *arguments: bytes) -> None:
        step = verb.upper(), key
        if step in {(b"LPUSH", self._queue), (b"RPUSH", self._queue)}:
            for payload in map(json.loads, arguments):
                tag = payload["properties"]["delivery_tag"].encode()
                self._last[tag] = payload["headers"]["id"], PUSHED
        elif step == (b"HSET", b"unacked"):
            for tag, text in zip(arguments[::2], arguments[1::2], strict=True):
                self._last[tag] = json.loads(text)[0]["headers"]["id"], IN_HAND
        elif step == (b"HDEL", b"unacked"):
            for tag in self._last.keys() & set(arguments):
                task_id, last = self._last[tag]
                # What is pushed again before it is deleted was not acknowledged.
                self._last[tag] = task_id, ACKNOWLEDGED if last == IN_HAND else last

    def _new_commands(self) -> Iterator[list[bytes]]:
        for command, end in _commands(self._folder, self._read):
            self._read = end
            yield command


def written(folder: Path) -> Iterator[list[bytes]]:
    """Return every command that a server which keeps its data in this folder has written, in its order."""
    return (command for command, _end in _commands(folder, 0))


def _commands(folder: Path, start: int) -> Iterator[tuple[list[bytes], int]]:
    """Return the commands from a place in the file on, each with the place behind it."""
    for path in folder.glob("appendonlydir/*.incr.aof"):
        with path.open("rb") as file:
            file.seek(start)
            while command := _command(file):
                yield command, file.tell()


def _command(file: Any) -> list[bytes]:
    """Return a command as clients send it; nothing where it is not written to its end."""
    command = []
    for _ in range(int(file.readline()[1:] or b"0")):
        size = int(file.readline()[1:] or b"0") + 2
        command.append(file.read(size))
        if len(command[-1]) < size:
            return []
    return [text[:-2] for text in command]

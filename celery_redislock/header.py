"""What a message carries about its lock: one JSON header named ``redislock``.

The key travels, so the worker never computes it again: a deploy that changes
``lock_key`` affects new messages only, and publisher and worker cannot
disagree. The token is the message's identity, new for every publish: a second
copy of a message has the same one, publishing a task id again has another.

::

    {"v": 1, "k": key, "t": token, "at": epoch seconds, "c": claimed, "w": in a workflow,
     "o": {per-call options}, "p": its key was given per call, "f": {"id": …, "same": …},
     "n": deliveries put off, "r": a copy, "a": fingerprint of the arguments, "i": its claim is a window}
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from celery_redislock.locks.store import owner_of

__all__ = ["HEADER", "Header", "HolderSeen"]

#: The message header's name.
HEADER = "redislock"

_VERSION = 1

#: Made once: json.dumps builds an encoder per call for any separators but its own.
_encode = json.JSONEncoder(separators=(",", ":")).encode


_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class HolderSeen(NamedTuple):
    """The holder a workflow's duplicate waits for.

    Attributes:
        task_id: whose outcome to look for.
        is_same_work: same task and same arguments, so that its outcome may be taken.
        is_gone: the lock was found free before that outcome was recorded: it is looked for once more.
    """

    task_id: str
    is_same_work: bool
    is_gone: bool = False


class Header(NamedTuple):
    """What a message carries about its lock.

    Attributes:
        key: the lock's name; ``None`` where locking is off for this message.
        token: the message's identity, and the claim's token where there is a claim.
        claimed: the publisher took a claim under ``token``.
        published_at: seconds since the epoch by the publisher's clock.
        is_workflow_member: part of a group, chord or chain, or with links: somebody waits for it.
        options: per-call options that travel.
        has_own_key: ``lock_key`` was given per call, so nobody can compute the key again.
        waits_for: the holder this duplicate met, at publish or when it was put off.
        put_off: how many times it was put off already for somebody else: an outcome of its own id
            would be that of another delivery of it.
        is_copy: a second copy of a message, published again by a worker: the broker's ``redelivered``
            flag does not survive that.
        fingerprint: ``Work.arguments`` of the publisher's, so that nobody decodes and digests the
            arguments again; ``None`` where it was not known.
        is_window: the claim stands for ``lock_period``, and is not given back when the run starts or ends.
    """

    key: str | None
    token: str
    claimed: bool = False
    published_at: float = 0.0
    is_workflow_member: bool = False
    options: Mapping[str, Any] = _NO_OPTIONS
    has_own_key: bool = False
    waits_for: HolderSeen | None = None
    put_off: int = 0
    is_copy: bool = False
    fingerprint: str | None = None
    is_window: bool = False

    def dumps(self) -> str:
        """Return the header's text."""
        data: dict[str, Any] = {
            "v": _VERSION,
            "k": self.key,
            "t": self.token,
            "at": round(self.published_at, 3),
        }
        if self.claimed:
            data["c"] = 1
        if self.is_workflow_member:
            data["w"] = 1
        if self.options:
            data["o"] = dict(self.options)
        if self.has_own_key:
            data["p"] = 1
        if self.waits_for is not None:
            data["f"] = {"id": self.waits_for.task_id, "same": self.waits_for.is_same_work}
            if self.waits_for.is_gone:
                data["f"]["gone"] = 1
        if self.put_off:
            data["n"] = self.put_off
        if self.is_copy:
            data["r"] = 1
        if self.fingerprint is not None:
            data["a"] = self.fingerprint
        if self.is_window:
            data["i"] = 1
        return _encode(data)

    @classmethod
    def of(cls, headers: Mapping[str, Any] | None, task_id: str) -> "Header | None":
        """Return the header among a message's, if it is this task id's own.

        Somebody else's came along where a task handed all its request's headers to the next:
        its claim is not this message's to use or to give back.
        """
        header = cls.loads((headers or {}).get(HEADER))
        # The token of a message put off that had come without a header is its task id, slashes and all.
        is_own = header is not None and task_id in {header.token, owner_of(header.token)}
        return header if is_own else None

    @classmethod
    def loads(cls, text: object) -> "Header | None":
        """Read a header; ``None`` for none, a foreign one, or one of a version not known here.

        A message whose header cannot be read is treated as one without: the
        worker computes the key itself. Nothing is lost, and never raises.
        """
        if not isinstance(text, str):
            return None
        try:
            data = json.loads(text)
            key, token = data["k"], data["t"]
            if data["v"] != _VERSION or not isinstance(key, str | None) or not isinstance(token, str):
                return None
            seen = data.get("f")
            return cls(
                key=key,
                token=token,
                claimed=bool(data.get("c")),
                published_at=float(data.get("at", 0.0)),
                is_workflow_member=bool(data.get("w")),
                options=dict(data.get("o", {})),
                has_own_key=bool(data.get("p")),
                waits_for=_seen(seen) if seen else None,
                put_off=int(data.get("n", 0)),
                is_copy=bool(data.get("r")),
                fingerprint=data.get("a"),
                is_window=bool(data.get("i")),
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            return None

    @property
    def has_passing_claim(self) -> bool:
        """There is a claim under its token that is given back when the run starts or ends: no window.

        Also where the task's scope is one of windows by now: a deploy may have changed it since.
        """
        return self.claimed and not self.is_window

    def put_off_for(self, seen: HolderSeen) -> "Header":
        """Return the header for the next delivery of a message that waits for this holder."""
        return self._replace(waits_for=seen, put_off=self.put_off + 1)

    def as_copy(self) -> "Header":
        """Return the header for the next delivery of a second copy."""
        return self._replace(is_copy=True)


def _seen(data: Mapping[str, Any]) -> HolderSeen:
    return HolderSeen(data["id"], bool(data["same"]), bool(data.get("gone")))

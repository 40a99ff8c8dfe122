"""The claim of a call: ask for it, know the answer, and release it if the publish fails.

Where the lock server is the broker, the claim is asked for together with the message (:meth:`Claim.push`).
Elsewhere the request is sent while the message is built (:meth:`Claim.begin`), and answered before it leaves
(:meth:`Claim.ask`).
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final, Literal

from celery_redislock.declaring.scopes import WAITING
from celery_redislock.exceptions import LockKeyError, LockUnavailable, RedisLockError
from celery_redislock.locks.notes import NOTES
from celery_redislock.log import logger
from celery_redislock.publishing.call import Call
from celery_redislock.publishing.message import NO_OPTIONS, Message
from celery_redislock.publishing.turn import band_of, facts_of_turn, hand_off
from celery_redislock.store.store import ACCEPTED, QUEUED, Answer, Hold, Parked, Refusal, Turn

#: How many names are kept of keys and tasks whose last call in this process was refused.
MOST_REFUSED = 1000
_refused: set[str] = set()

#: Nothing is known.
UNDECIDED: Final = "undecided"
#: A look has found nobody who would refuse the claim.
FREE: Final = "free"
#: The request was sent whose answer decides.
ASKED: Final = "asked"
#: The claim is held, and its message has not left.
GRANTED: Final = "granted"
#: The claim is held, and its message has left.
PUBLISHED: Final = "published"
#: Somebody else holds the key, and nothing has left.
REFUSED: Final = "refused"
#: Somebody else holds the key, and the same step has put the message into the line; or, where that is full or
#: a period counts, has published it without a claim.
PARKED: Final = "parked"
#: It has taken the place of a call that waits, whose task id its message has now.
MERGED: Final = "merged"
#: The server did not answer: the claim may be held, and the message is to leave without it.
UNANSWERED: Final = "unanswered"
#: The message leaves without a claim, or has left.
WITHOUT: Final = "without"

State = Literal[
    "undecided",
    "free",
    "asked",
    "granted",
    "published",
    "refused",
    "parked",
    "merged",
    "unanswered",
    "without",
]

#: It is not known yet whether the message leaves.
OPEN: Final = frozenset({UNDECIDED, FREE})
#: The claim is held for the message.
HELD: Final = frozenset({GRANTED, PUBLISHED})
#: One step has decided and published.
LEFT: Final = frozenset({PUBLISHED, PARKED, MERGED})


class Claim:
    """The claim of a call, as a ``with`` block around its publish.

    A publish that fails releases the claim, unless the message has left. Used by the thread that publishes.

    Attributes:
        call: whose claim it is; its lock is ``lock``, the call's ``claim_lock``.
        is_doubtful: this process was refused the key lately, or the task's last call.
        state: what is known of it, and of its message.
        may_wait: where one step claims and pushes, it parks the message of a claim that is refused.
        refused_by: who holds the key, ``None`` for nobody; where it was merged, the call whose place it has.
        merged: how many calls have taken the place that this one has.
    """

    state: State = UNDECIDED
    may_wait = False
    refused_by: Hold | None = None
    merged = 0
    #: Reads the answer to a request that was begun.
    _read: Callable[[], Answer] | None = None
    #: What it asks for beyond a free lock.
    _terms: Mapping[str, Any] = NO_OPTIONS

    def __init__(self, call: Call, ttl: float) -> None:
        """Describe the claim of a call, which lives for ``ttl`` seconds; sends nothing."""
        self.call = call
        self._ttl = ttl
        self.lock = lock = call.claim_lock
        self._names = {lock.key, lock.task}
        self.is_doubtful = not _refused.isdisjoint(self._names)
        self._kind = QUEUED
        if lock.period or lock.limit:
            self._terms = {"period": lock.period, "limit": lock.limit}
        if not call.lock_options.claims_plainly:
            self.may_wait = call.lock_options.client in WAITING and call.may_be_parked
            if call.scope.claim == "period":
                # The claim is the period: no run releases it, and no other period refuses it.
                self._kind = ACCEPTED
                self._terms = NO_OPTIONS

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return  # the message has left, and keeps its claim; or it was refused, and there is none
        if self._read is not None and isinstance(error, Exception):
            with suppress(RedisLockError):
                self.ask()
        token = self.call.token
        if self.state is GRANTED:
            self.lock.release(token, opened_by=token)
        elif self.state is ASKED or self.state is UNANSWERED:
            self.lock.release_later(token, opened_by=token)

    def look(self) -> None:
        """See who would refuse the claim, and take nothing; one round trip. Raises as :meth:`ask` does.

        Of the refusals of a key within a second this process tells the server once.
        """
        lock = self.lock
        refusals = None if self.may_wait else NOTES.refusals(lock)
        facts = lock.facts(self._kind) if refusals is None else ""
        ask = partial(lock.store.look, lock.key, self.call.token, facts=facts, **self._terms)
        try:
            answer = lock.past_the_dead(ask)
        except LockUnavailable as error:
            self._go_without(WITHOUT, error, f"{lock} was not published")
            return
        if answer is not None and not self.may_wait:
            holder = answer.holds[0]
            if refusals is None:
                NOTES.begin(lock)
            else:
                refusals.last = lock, self._kind, self.call.token, holder
                refusals.times += 1
            self._refuse(REFUSED, holder)
            return
        self.state = FREE
        _refused.difference_update(self._names)

    def push(self, queue: str, text: str, priority: object, channel: Any) -> bool:
        """Take the claim and put the message's text into a queue of its server, in one step and round trip.

        Where it may wait and the claim is refused, the message is put into the line of the lock instead.
        ``channel``: kombu's, to that server.

        Returns:
            ``False`` where the server refuses to do both. Then it did neither.

        Raises:
            LockUnavailable: it is not known what was done, and the claim is required.
        """
        lock = self.lock
        facts = lock.facts(self._kind, None, True)
        turn = self._turn(text, priority, channel) if self.may_wait else None
        push = partial(
            lock.store.claim_and_push, lock.key, self.call.token, self._ttl,
            queue=queue, text=text, facts=facts, turn=turn, **self._terms,
        )  # fmt: skip
        try:
            answer = lock.past_the_dead(push)
        except LockKeyError:
            return False
        except LockUnavailable as error:
            if error.was_refused:
                return False
            is_unknown = f"it is not known whether {lock} was published"
            self._go_without(WITHOUT, error, is_unknown if error.was_sent else f"{lock} was not published")
            return True
        if isinstance(answer, Refusal):
            self._refuse(REFUSED, answer.holds[0])
        elif isinstance(answer, Parked) and answer.word == "merged":
            self.state = MERGED
            self.refused_by = answer.held_by
            self.merged = answer.place
        elif isinstance(answer, Parked):
            self.state = PARKED
            if answer.held_by is not None:
                self._refuse(PARKED, answer.held_by)
                lock.release_if_dead(answer.held_by)
        else:
            self.state = PUBLISHED
        return True

    def _turn(self, text: str, priority: object, channel: Any) -> Turn | None:
        """Return how the message waits; ``None`` where its header is not as it is known here."""
        call = self.call
        said = Message.loads(call.header)
        if said is None:
            return None
        unclaimed = said._replace(claimed=False)
        # Where there is a period, it is accepted when it starts: another one may have begun meanwhile.
        parked = said._replace(claimed=self.lock.period is None, parked_at=time.time())
        turn = Turn(
            header=quoted(call.header),
            unclaimed=quoted(unclaimed.dumps()),
            parked=quoted(parked.dumps()),
            facts=facts_of_turn(self.lock, f"{channel.global_keyprefix}{channel.unacked_key}"),
            band=band_of(priority, has_waited=False),
            most=call.lock_options.lock_max_waiting,
            hand_off=hand_off(call.declaration.settings),
            within=call.lock_options.lock_wait_timeout,
            merge=call.merge(),
        )
        return turn if text.count(turn.header) == 1 else None

    def begin(self) -> Callable[[], Answer]:
        """Send the request whose answer :meth:`ask` reads, with the function that is returned."""
        lock = self.lock
        facts = lock.facts(self._kind)
        self.state = ASKED
        self._read = lock.store.begin(lock.key, self.call.token, self._ttl, facts=facts, **self._terms)
        return self._read

    def ask(self) -> None:
        """Ask for the claim of a message that leaves later; one round trip.

        One that is put off takes none: its worker lets it wait, with the number that it is told here.

        Raises:
            LockKeyError: the key on the server is not a lock.
            LockUnavailable: the server did not answer, and the claim is required.
        """
        lock = self.lock
        if self.may_wait and self.call.is_put_off:
            self._take_number()
            return
        try:
            answer = (self._read or self.begin())()
            if isinstance(answer, Refusal) and any(map(lock.release_if_dead, answer.holds)):
                answer = self.begin()()
        except LockUnavailable as error:
            self._go_without(UNANSWERED if error.was_sent else WITHOUT, error, f"{lock} was not published")
            return
        except LockKeyError:
            self.state = UNDECIDED
            raise
        finally:
            self._read = None
        if isinstance(answer, Refusal):
            if answer.number is not None and self.call.coalesces:
                self._say(answer.number)
            self._refuse(REFUSED, answer.holds[0])
            return
        self.state = GRANTED
        _refused.difference_update(self._names)

    def _take_number(self) -> None:
        """Ask the server for its clock: of two calls the one that was made later counts."""
        try:
            seconds = self.lock.store.clock(self.lock.key)
        except LockUnavailable as error:
            self._go_without(WITHOUT, error, f"{self.lock} was not published")
            return
        self.state = WITHOUT
        if seconds is not None:
            self._say(round(1_000_000 * seconds))

    def _say(self, number: int) -> None:
        self.call.says = {**self.call.says, "number": number}

    def _refuse(self, state: State, hold: Hold) -> None:
        self.state = state
        self.refused_by = hold
        if not self._names <= _refused:
            if len(_refused) > MOST_REFUSED:
                _refused.clear()
            _refused.update(self._names)

    def _go_without(self, state: State, error: LockUnavailable, remark: str) -> None:
        self.state = state
        # A member of a workflow that is not published breaks it; without a claim, its run takes the lock.
        if self.call.lock_options.on_lock_error == "raise" and not self.call.must_run:
            raise error.with_remark(f"{remark}; on_lock_error='run' publishes without a claim") from error
        logger.warning("publishing %s without a claim, so a duplicate of it may follow: %s", self.lock, error)

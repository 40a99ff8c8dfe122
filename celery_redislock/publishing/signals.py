"""Signals of this package. Celery's own dispatcher: a receiver's error is logged and swallowed.

The sender is the task. Connect as to Celery's signals::

    @lock_conflict.connect
    def count(sender, key, task_id, holder, **_): ...
"""

from celery.utils.dispatch import Signal

#: A run holds its lock (in the process and thread that runs it), or a publish took its claim
#: (``lease`` is ``None`` then). Arguments: ``key``, ``task_id``, ``lease``.
lock_acquired = Signal(name="lock_acquired", providing_args={"key", "task_id", "lease"})

#: A run released its lock, in the process and thread of its body. Not sent where the lease becomes the claim
#: of another message, where the scope holds no lock while it runs, or where the main process releases for a
#: dead child. Arguments: ``key``, ``task_id``, ``lease``.
lock_released = Signal(name="lock_released", providing_args={"key", "task_id", "lease"})

#: A running task's lease was found gone; sent in the thread that learns of it, the watchdog's (with gevent
#: in a greenlet instead) or that of the body's ``check()``. Arguments: ``key``, ``task_id``, ``lease``.
lock_lost = Signal(name="lock_lost", providing_args={"key", "task_id", "lease"})

#: A publish or a run found its key held.
#: Arguments: ``key``, ``task_id`` (the duplicate's), ``holder``
#: (:class:`~celery_redislock.store.store.Hold`), ``side`` (``client``, ``server``) and ``strategy``: what is
#: done about it, ``skip``, ``raise`` or ``wait`` (it runs later, in its turn). That need not be what
#: ``on_conflict`` says: a workflow's member, a retry and a redelivery are not dropped.
lock_conflict = Signal(name="lock_conflict", providing_args={"key", "task_id", "holder", "side", "strategy"})

"""What a task and its app say about locks: options, scopes, keys, and where the lock server is.

::

    attribute of the task  >  setting redislock_*  >  default        options.read_options
    keyword of apply_async  >  all of these                          call_options
    on the worker: the message's header  >  the worker's own         call_options

``None`` means "not said here", as everywhere in Celery, and the next source decides. The one exception is
``lock``: there ``None`` and ``False`` switch locking off, and "not said here" is spelled ``table.INHERIT``.
"""

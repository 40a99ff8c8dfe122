"""Every error and warning a user can meet, provoked for real: the page ``docs/messages.md`` is made of it.

::

    stop      one message: a heading, a sentence for users, and what provokes it
    guide     what a stop may use: shops, a server, a command line; and what was said there
    stand_ins what differs from run to run, and what stands for it in the page
    sites     every ``raise`` and every log line of the package, and which of them a tour has passed
    stops     the groups in their order
    page      makes the page
"""

__all__: list[str] = []

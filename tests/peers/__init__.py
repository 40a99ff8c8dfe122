"""What other libraries do, as tables of cases that are played with them and with their stand-ins here.

A table imports neither pytest nor celery_redislock, so that it is played in an environment of the library's
own, too: ``python -m tests.peers TABLE MODULE URL``.
"""

"""The package's one logger: what to configure to see, or to silence, what it says."""

import logging

logger = logging.getLogger("celery_redislock")

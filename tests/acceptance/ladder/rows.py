"""All rows of the ladder."""

from tests.acceptance.ladder.broker import BROKER
from tests.acceptance.ladder.ending import Group
from tests.acceptance.ladder.in_body import AGAIN, BODY
from tests.acceptance.ladder.kills import KILLS
from tests.acceptance.ladder.limits import LIMITS
from tests.acceptance.ladder.messages import MESSAGES
from tests.acceptance.ladder.revokes import EXPIRED, REVOKED
from tests.acceptance.ladder.shutdowns import SHUTDOWNS
from tests.acceptance.ladder.without import WITHOUT

__all__ = ["GROUPS"]

GROUPS: tuple[Group, ...] = (
    BODY,
    AGAIN,
    LIMITS,
    KILLS,
    REVOKED,
    EXPIRED,
    MESSAGES,
    SHUTDOWNS,
    BROKER,
    WITHOUT,
)

"""What a published message carries, as the publishing tests read it."""

from typing import Any

from celery_redislock.publishing.message import HEADER, Message
from tests.unit.shop import Shop


def body(account_id: int = 1, amount: int = 0) -> int:
    return account_id + amount


def header_of(message: Any) -> Message:
    """Return what a message carries about its lock."""
    header = Message.loads(message.headers.get(HEADER))
    assert header is not None
    return header


def only_header(shop: Shop) -> Message:
    """Return what the one message in the queue carries."""
    return header_of(shop.message())

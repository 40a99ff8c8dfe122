"""What differs from run to run, and what stands for it in the page."""

import re
from typing import Final

__all__ = ["stable"]

_FIXED: Final = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<task id>"),
    (r"tour-[0-9a-f]{12}", "redislock"),
    (r"\bshop-[0-9a-f]{12}", "shop"),
    (r"(?<=127\.0\.0\.1:)\d{4,5}", "<port>"),
    (r"0x[0-9a-f]{6,}", "0x<address>"),
    # Times that are measured; those that were asked for have no decimal.
    (r"(?<=for )\d+\.\d(?= s\b)", "<seconds>"),
    (r"(?<=for another )\d+\.\d(?= s\b)", "<seconds>"),
    (r"(?<=accepted )\d+\.\d(?= s\b)", "<seconds>"),
    (r"(?<=expires in )\d+\.\d(?= s\b)", "<seconds>"),
    # The system's numbers of its errors.
    (r"Error \d+ (?=connecting)", "Error <number> "),
)


def stable(text: str) -> str:
    """Return the text of a message as every run says it."""
    for pattern, stand_in in _FIXED:
        text = re.sub(pattern, stand_in, text)
    return text

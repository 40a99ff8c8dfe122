"""Slips of the pen: names that can hardly be anything but an option's, misspelt.

Likeness alone would refuse users' own attributes: ``block_key``,
``clock_period``, ``stock_limit`` and ``no_conflict`` are as near to ours as
any misspelling. So a slip in ``lock`` is a letter left out, or two swapped,
never another or one more: those make other words of it.
"""

__all__ = ["is_slip"]

#: What a letter left out of our names makes a word of another trade.
_OTHER_WORDS = ("loc_", "on_loc_")


def is_slip(name: str, option: str) -> bool:
    """Whether *name*, which is no option, was most likely meant for *option*."""
    if name[:1] != option[0] or name.startswith(_OTHER_WORDS):
        return False
    if name.replace("_", "") == option.replace("_", ""):
        return True
    return _lacks_a_letter(name, option) or _swaps_two(name, option) or _is_a_misspelt_conflict(name, option)


def _lacks_a_letter(name: str, option: str) -> bool:
    return len(name) == len(option) - 1 and any(
        option[:place] + option[place + 1 :] == name for place in range(len(option))
    )


def _swaps_two(name: str, option: str) -> bool:
    if len(name) != len(option):
        return False
    places = [place for place, (one, other) in enumerate(zip(name, option, strict=True)) if one != other]
    if len(places) != 2 or places[1] != places[0] + 1:
        return False
    first, second = places
    return name[first] == option[second] and name[second] == option[first]


def _is_a_misspelt_conflict(name: str, option: str) -> bool:
    """A word so long that likeness is enough: no other one comes near it."""
    if option != "on_conflict" or not name.startswith("on") or not 9 <= len(name) <= 13:
        return False
    from difflib import SequenceMatcher  # noqa: PLC0415  seldom needed

    return SequenceMatcher(None, name, option).ratio() >= 0.85

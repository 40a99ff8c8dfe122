"""Values that kombu's JSON sends in a form of their own, or not at all."""

from enum import Enum, IntEnum


class Colour(str, Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Plain(Enum):
    ONE = 1


class Custom:
    def __init__(self, number):
        self.number = number

    def __json__(self):
        return {"number": self.number}

"""What a node says of itself after a tick."""

from enum import Enum
from typing import Final


class Status(Enum):
    """The value is the letter that traces use."""

    IDLE = "I"
    RUNNING = "R"
    SUCCESS = "S"
    FAILURE = "F"
    SKIPPED = "K"


# Ticks compare by identity with these: an attribute of the class would cost more than the comparison.
IDLE: Final = Status.IDLE
RUNNING: Final = Status.RUNNING
SUCCESS: Final = Status.SUCCESS
FAILURE: Final = Status.FAILURE
SKIPPED: Final = Status.SKIPPED

"""A secret as a value: whoever needs it reveals it, and nothing else ever shows it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Prints as `***` everywhere, so that no log, error or dump can carry it."""

    value: str

    def reveal(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

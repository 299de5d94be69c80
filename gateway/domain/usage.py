"""What calls of models used: tokens, and money where that is known."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call. `estimated`: the provider did not say, or what it said was absurd."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None  # None: not known
    estimated: bool = False
    written_tokens: int = 0  # of the input, into the provider's cache

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens


# What a call of a provider's model costs in USD; None: nobody knows.
Price = Callable[[str, str, Usage], float | None]


def unpriced(_provider: str, _model: str, _usage: Usage) -> None:
    """Where nobody asks for a cost."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What stands behind a tool's result that models worked on; counted to the run that asked."""

    usage: Usage
    provider: str
    model: str

"""The options that belong to every verb. `exogate version` imports nothing else of a verb's surroundings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CliContext:
    """The options that stand before the verb."""

    config_path: Path | None = None
    data_dir: Path | None = None
    json: bool = False
    debug: bool = False


# Options that belong to every verb may stand anywhere; these take a value.
FLAGS = frozenset({"--json", "--debug"})
VALUED = frozenset({"--config", "-c", "--data-dir"})
TEXT_FOLLOWS = frozenset({"-m", "--message"})  # whatever it looks like


def gathered(words: Sequence[str]) -> list[str]:
    """The words of a command with the options of every verb in front."""
    front, rest = parted(words)
    return [*front, *rest]


def parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of every verb, and all other words."""
    front: list[str] = []
    rest = list(words)
    place = 0
    while place < len(rest) and rest[place] != "--":
        word = rest[place]
        if word in FLAGS or _holds_its_value(word):
            front.append(rest.pop(place))
        elif word in VALUED and place + 1 < len(rest):
            front += [rest.pop(place), rest.pop(place)]
        else:
            place += 2 if word in TEXT_FOLLOWS else 1
    return front, rest


def _holds_its_value(word: str) -> bool:
    if word.startswith("-c") and not word.startswith("--"):
        return len(word) > len("-c")
    name, is_given, _ = word.partition("=")
    return bool(is_given) and name in VALUED

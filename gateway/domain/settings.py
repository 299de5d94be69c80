"""How a field of a value is written in config.toml: what it means, its bounds and its form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Needed(Enum):
    """The key has no default."""

    NEEDED = "needed"


NEEDED: Final = Needed.NEEDED


@dataclass(frozen=True, slots=True)
class Setting:
    """What makes a field a key of the file. A field with a default is declared as
    `tools: int = setting(5, "At a time.", 1, 10)`, another one as `Annotated[int, Setting(...)]`."""

    help: str
    least: float | None = None  # of a number; of a list: its shortest length
    most: float | None = None
    above: float | None = None  # a bound that is not allowed itself
    form: str = "text"  # of the texts in the value
    refers: str | None = None  # to what the text is the name of: agent, project, plugin ...
    unique: str | None = None  # the key in which the tables of a list differ; "": its texts differ
    names: str = "text"  # form of the names in a table that the operator fills
    key: str | None = None  # the name in the file, if the field has another
    usual: object = NEEDED  # the default in the file, if the field has another or none
    words: Mapping[str, int] = field(default_factory=dict)  # that stand for numbers
    scale: int = 1  # the value is so many times the number in the file
    by_name: bool = False  # a tuple that the file writes as tables by name
    needs: tuple[str, ...] = ()  # keys of the section below that are needed here
    only: tuple[str, ...] = ()  # keys that the section below has here; none: all


def setting(
    default: T, help_text: str, least: float | None = None, most: float | None = None, **more: Any
) -> T:
    """A field of a dataclass with a default, and what the file says of it; `more`: of `Setting`."""
    about = Setting(help_text, least, most, **more)
    made: T = field(default=default, metadata={"setting": about})
    return made

"""Declares how a field of a value is written in config.toml: its meaning, bounds and form."""

from collections.abc import Callable, Mapping
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
    """Makes a field a key of the file. A field with a default is declared as `tools: int =
    setting(5, "At a time.", 1, 10)`, a field without one as `Annotated[int, Setting(...)]`."""

    help: str
    least: float | None = None  # of a number; of a list: its shortest length
    most: float | None = None
    above: float | None = None  # an exclusive lower bound
    form: str = "text"  # of the texts in the value
    refers: str | None = None  # the kind of thing that the text names: agent, project, plugin …
    unique: str | None = None  # key that is unique in a list of tables; "": the texts are unique
    names: str = "text"  # form of the keys in a table whose keys the operator chooses
    key: str | None = None  # name in the file, if it differs from the field's
    usual: object = NEEDED  # default in the file, if it differs from the field's
    words: Mapping[str, int] = field(default_factory=dict)  # words that mean a number
    scale: int = 1  # factor from the number in the file to the value
    by_name: bool = False  # the file writes the tuple as tables by name
    needs: tuple[str, ...] = ()  # required keys of the nested section
    only: tuple[str, ...] = ()  # allowed keys of the nested section; empty: all


def setting(
    default: T, help_text: str, least: float | None = None, most: float | None = None, **more: Any
) -> T:
    """Declares a field with a default; `more` are further arguments of `Setting`."""
    about = {"setting": Setting(help_text, least, most, **more)}
    if isinstance(default, dict):
        copy: Callable[[], Any] = default.copy
        made: T = field(default_factory=copy, metadata=about)
    else:
        made = field(default=default, metadata=about)
    return made

"""What rules want done: whoever runs the turn carries it out."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.domain.events import Severity
from gateway.domain.notices import Notice


@dataclass(frozen=True, slots=True)
class Notify:
    notice: Notice


@dataclass(frozen=True, slots=True)
class Log:
    level: str  # debug, info, warning or error
    message: str


@dataclass(frozen=True, slots=True)
class SetState:
    """Done already for the rules of this run; it is told so that it can be shown."""

    key: str
    value: object


@dataclass(frozen=True, slots=True)
class Emit:
    type: str
    payload: Mapping[str, object]
    severity: Severity


@dataclass(frozen=True, slots=True)
class Interrupt:
    why: str


@dataclass(frozen=True, slots=True)
class SetModel:
    model: str


@dataclass(frozen=True, slots=True)
class AddTool:
    name: str


@dataclass(frozen=True, slots=True)
class RemoveTool:
    name: str


Act = Notify | Log | SetState | Emit | Interrupt | SetModel | AddTool | RemoveTool

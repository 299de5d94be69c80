"""The built-in tool that tells the time."""

from collections.abc import Mapping
from datetime import timedelta, timezone

from gateway.domain.errors import ToolFailed
from gateway.domain.model import ToolSpec
from gateway.domain.ports import Clock, ToolScope

SPEC = ToolSpec(
    name="clock",
    description="Tells the current date, time and weekday, in UTC or at a given offset from it.",
    parameters=(
        '{"type":"object","properties":{"utc_offset_hours":{"type":"number","minimum":-14,'
        '"maximum":14,"description":"hours east of UTC; 0 if absent"}},'
        '"additionalProperties":false}'
    ),
)


class ClockTool:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @property
    def spec(self) -> ToolSpec:
        return SPEC

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str:
        offset = arguments.get("utc_offset_hours", 0)
        if not isinstance(offset, int | float):
            raise ToolFailed("utc_offset_hours has to be a number")
        here = self._clock.now().astimezone(timezone(timedelta(hours=offset)))
        return here.strftime("%A, %d %B %Y, %H:%M:%S (UTC%z)")

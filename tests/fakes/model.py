"""A model that answers from a script and keeps what it was asked."""

from collections.abc import Awaitable, Callable

import anyio

from gateway.domain.errors import ModelFailed
from gateway.domain.messages import ToolCall
from gateway.domain.model import (
    Delta,
    Hear,
    ModelReply,
    ModelRequest,
    TextDelta,
    Usage,
)

Step = ModelReply | ModelFailed | Callable[[ModelRequest, Hear], Awaitable[ModelReply]]


def says(text: str, *calls: ToolCall, tokens: int = 10) -> ModelReply:
    half = tokens // 2
    usage = Usage(half, tokens - half)
    return ModelReply("fake", "fake-1", text, tool_calls=calls, usage=usage)


class ScriptedModel:
    """The last step is repeated for ever."""

    def __init__(self, *script: Step) -> None:
        self.script = list(script)
        self.asked: list[ModelRequest] = []

    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        self.asked.append(request)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, ModelFailed):
            raise step
        if not isinstance(step, ModelReply):
            return await step(request, hear)
        if step.text:
            hear(TextDelta(step.text))
        return step


class StallingModel:
    """Says its deltas, then never finishes; `reached` tells when it got there."""

    def __init__(self, *deltas: Delta) -> None:
        self.deltas = deltas
        self.reached = anyio.Event()
        self.cancelled = False

    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        for delta in self.deltas:
            hear(delta)
        self.reached.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled = True
        raise AssertionError("unreachable")

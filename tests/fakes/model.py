"""A model that answers from a script and keeps what it was asked."""

from collections.abc import Awaitable, Callable

import anyio

from gateway.domain.errors import ModelFailed
from gateway.domain.messages import ToolCall, Usage
from gateway.domain.model import Delta, ModelReply, ModelRequest, OnDelta, TextDelta

Step = ModelReply | ModelFailed | Callable[[ModelRequest, OnDelta], Awaitable[ModelReply]]


def says(text: str, *calls: ToolCall, tokens: int = 10) -> ModelReply:
    half = tokens // 2
    usage = Usage(half, tokens - half)
    return ModelReply("fake", "fake-1", text, tool_calls=calls, usage=usage)


def say(request: ModelRequest, on_delta: OnDelta, delta: Delta) -> None:
    """As a wire does: what was heard counts, in case that no more comes."""
    if request.progress is not None:
        request.progress.size += len(delta.text.encode())
    on_delta(delta)


class ScriptedModel:
    """The last step is repeated for ever."""

    def __init__(self, *script: Step) -> None:
        self.script = list(script)
        self.asked: list[ModelRequest] = []

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        self.asked.append(request)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, ModelFailed):
            raise step
        if not isinstance(step, ModelReply):
            return await step(request, on_delta)
        if step.text:
            say(request, on_delta, TextDelta(step.text))
        return step


class GatedModel:
    """Says its deltas, then answers a question only when it is let: `to` and the questions since
    the last answer; or, if the newest says `use`, with a call of `echo`."""

    def __init__(self, *deltas: Delta) -> None:
        self.deltas = deltas
        self.questions: list[list[str]] = []  # since the last answer, of each request
        self.seen: list[list[str]] = []  # all of what each request holds
        self._asked = anyio.Event()
        self._let = anyio.Semaphore(0)

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._let.release()

    async def until_asked(self, count: int) -> None:
        while len(self.questions) < count:
            self._asked = anyio.Event()
            await self._asked.wait()

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        self.seen.append([message.text for message in request.messages])
        asked: list[str] = []
        for message in reversed(request.messages):
            if message.role != "user":
                break
            asked.insert(0, message.text)
        self.questions.append(asked)
        self._asked.set()
        for delta in self.deltas:
            say(request, on_delta, delta)
        await self._let.acquire()
        text = " ".join(["to", *asked])
        if asked and asked[-1].startswith("use"):
            return says("", ToolCall(f"c{len(self.seen)}", "echo"))
        say(request, on_delta, TextDelta(text))
        return says(text)


class StallingModel:
    """Says its deltas, then never finishes; `reached` tells when it got there."""

    def __init__(self, *deltas: Delta, characters: int = 0) -> None:
        self.deltas, self.characters = deltas, characters
        self.reached = anyio.Event()
        self.cancelled = False

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        for delta in self.deltas:
            say(request, on_delta, delta)
        if request.progress is not None:
            request.progress.size = max(request.progress.size, self.characters)
        self.reached.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled = True
        raise AssertionError("unreachable")

"""A run heard from its first event to its last by one who waits, live or long ended."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from gateway.domain.errors import Busy
from gateway.domain.inbox import RunRecord
from gateway.domain.ports import Decode
from gateway.sessions.runs import LiveRun


@dataclass(slots=True)
class Ear:
    """Listens to a run for one who waits. What it holds for a slow reader are the run's own
    events, so it costs nothing while the run is live and is bounded by it afterwards."""

    events: list[bytes] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)
    ended: bool = False

    def hear(self, event: bytes, last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
        if event:
            self.events.append(event)
        self.ended = last
        self.news.set()

    async def more(self) -> Sequence[bytes]:
        """The events since the last call; none: it has ended."""
        while not self.events and not self.ended:
            self.news = anyio.Event()
            await self.news.wait()
        taken, self.events = self.events, []
        return taken


async def events_of(run: LiveRun | RunRecord) -> AsyncIterator[bytes]:
    """All events of a run, from its first to its last."""
    if isinstance(run, RunRecord):
        for event in run.log.split(b"\n"):
            yield event
        return
    ear = Ear()
    stop = run.listen(ear.hear)
    try:
        while events := await ear.more():
            for event in events:
                yield event
    finally:
        stop()


async def whole(run: LiveRun | RunRecord, decode: Decode) -> Sequence[Mapping[str, Any]]:
    """All events of a run once it has ended. Raises Busy if the gateway stops before."""
    events: list[Any] = [decode(event) async for event in events_of(run)]
    if not events or events[-1]["type"] not in {"done", "error"}:
        run_id = run.run_id if isinstance(run, LiveRun) else run.entry.new.run_id
        raise Busy(f"the gateway restarts before {run_id} has ended; ask again")
    return events


def spoken(events: Sequence[Mapping[str, Any]]) -> str:
    """The answer of a run: what was said last, after the last tools or else before them."""
    end = events[-1]
    if not end.get("truncated"):
        return str(end["response"])
    said: list[str] = []
    after_tools = False
    for event in events:
        if event["type"] == "tool_result":
            after_tools = True
        elif event["type"] == "content":
            if after_tools:
                said.clear()
            said.append(event["content"])
            after_tools = False
    return "".join(said)

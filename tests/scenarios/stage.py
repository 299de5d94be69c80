"""A whole gateway with a scripted model on one wire, an agent on one tree, and a client that hears all."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio

from gateway.config.values import GatewayConfig
from tests.fakes.boundaries import inside
from tests.fakes.client import TERMINAL, Client, Event, connected, seqs_of
from tests.fakes.gateway import ENGINE, Change, Setup, running, unchanged
from tests.fakes.model_server import Asked, ModelServer, Reply, Script, Wire, scripted_server
from tests.fakes.tools import FakeTool
from tests.forms import is_long

WIRES: tuple[Wire, ...] = ("openai", "anthropic")
TREES = ("default", "oracle-agent")


def pairs() -> list[tuple[Wire, str]]:
    """Wires and trees that are played together: in the bounded form each is in one pair."""
    if not is_long():
        return list(zip(WIRES, TREES, strict=True))
    return [(wire, tree) for wire in WIRES for tree in TREES]


# What differs between two runs that are alike.
OF_ONE_RUN = frozenset(
    {"timestamp", "duration_ms", "execution_time_ms", "run_id", "message_id", "context_id"}
)
TIMES = OF_ONE_RUN | {"current_value", "percent"}


@dataclass
class Scene:
    """What was played: the runs in order, all that their client heard, all that the model was asked.
    It stays when the gateway is gone."""

    model: ModelServer
    client: Client
    url: str
    runs: list[str] = field(default_factory=list)
    pages: list[dict[str, Any]] = field(default_factory=list)
    inspected: list[dict[str, Any]] = field(default_factory=list)  # each run, when it had ended
    beside: list[Client] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)  # of the pages that tools have read
    earlier: list["Scene"] = field(default_factory=list)

    async def send(self, content: str, **more: object) -> dict[str, Any]:
        sent = await self.client.send(content, **more)
        self.runs.append(sent["run_id"])
        return sent

    async def ended(self, run_id: str) -> list[Event]:
        """The chunks of a run, once its last chunk and its last event have come."""
        chunks = await self.client.ended(run_id)
        await self.client.until_told(lambda told: "session.end" in kinds_of(told, run_id))
        self.inspected.append(await self.client.call("run.inspect", run_id=run_id))
        return chunks

    async def ask(self, content: str, **more: object) -> list[Event]:
        return await self.ended((await self.send(content, **more))["run_id"])

    async def read(self, peer: str = "main") -> None:
        """The session's history becomes one of the pages."""
        key = f"main:websocket:local:{peer}"
        self.pages.append(await self.client.call("chat.history", session_key=key))

    def chunks(self, number: int = 0) -> list[Event]:
        return self.client.events[self.runs[number]]

    def events(self, number: int = 0) -> list[Event]:
        run_id = self.runs[number]
        return [event for event in self.client.told if event["run_id"] == run_id]

    def kinds(self, number: int = 0) -> list[str]:
        """The types of a run's events in order, without those that only tell of steps."""
        return [one["type"] for one in self.events(number) if one["severity"] != "debug"]

    def kinds_of_all(self) -> list[list[str]]:
        return [self.kinds(number) for number in range(len(self.runs))]

    def told_alike(self) -> list[list[object]]:
        """The chunks of all runs, without what differs between two runs that are alike."""
        return [[without_marks(one) for one in self.chunks(n)] for n in range(len(self.runs))]


class Pace:
    """Lets the model say a piece when the client has heard the one before: pieces that come together
    may be told together, and then two runs that are alike would not look alike."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._gates: dict[str, anyio.Event] = {}  # by what is heard before

    def reply(self, asked: Asked) -> Reply:
        script = self._script
        reply = script(asked) if callable(script) else script[min(asked.number, len(script)) - 1]
        texts = [reply.text] if isinstance(reply.text, str) else reply.text
        self._gates = {before: anyio.Event() for before in texts[:-1]}
        first = 1 if asked.wire == "openai" else 3  # so many pieces come before any text
        gates = dict(enumerate(self._gates.values(), first + 1))
        return replace(reply, gates={**gates, **reply.gates})

    def hear(self, frame: Mapping[str, Any]) -> bool:
        heard = frame.get("params", {}).get("content")
        if heard in self._gates:
            self._gates.pop(heard).set()
        return True


ECHOED = '{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}'


async def echoed(arguments: Mapping[str, object]) -> str:
    return str(arguments["text"])


@dataclass(frozen=True)
class Stage:
    wire: Wire
    tree: str
    folder: Path

    def setup(self, model_url: str, **more: Any) -> Setup:
        """`more` as in Setup; what it says of the agent comes after the tree."""
        agent = f'tree = "{self.tree}"\n{more.pop("agent", "")}'
        return Setup(model_url, wire=self.wire, agent=agent, **more)

    @asynccontextmanager
    async def open(
        self,
        script: Script,
        *,
        tools: tuple[str, ...] = (),
        change: Change = unchanged,
        is_plugin: bool = False,
        **more: Any,
    ) -> AsyncIterator[Scene]:
        """The tool `echo` works in this process, unless it `is_plugin`: no worker is started for it alone."""
        pace = Pace(script)
        plugins = tools if is_plugin else tuple(one for one in tools if one != "echo")

        def offered(config: GatewayConfig) -> GatewayConfig:
            first, *others = change(config).agents
            return replace(change(config), agents=(replace(first, tools=tools), *others))

        async with (
            scripted_server(pace.reply) as model,
            running(self.setup(model.url, tools=plugins, **more), self.folder, offered) as site,
            connected(site.url) as client,
        ):
            if plugins != tools:
                site.rooms.current.gate.register(FakeTool("echo", echoed, parameters=ECHOED))
            client.hear = pace.hear
            await client.call("events.subscribe")
            yield Scene(model, client, site.url)


Plot = Callable[[Stage], Awaitable[Scene]]
_played: dict[tuple[Plot, Wire, str, bool], Scene] = {}


async def play(plot: Plot, stage: Stage) -> Scene:
    """Once for all tests that look at it: a scene that was played is only read."""
    key = (plot, stage.wire, stage.tree, bool(ENGINE.section))
    if key not in _played:
        _played[key] = await plot(stage)
    return _played[key]


def kinds_of(told: Sequence[Event], run_id: str) -> list[str]:
    return [event["type"] for event in told if event["run_id"] == run_id]


def without_marks(value: object) -> object:
    if isinstance(value, str):
        value = re.sub(r"tool-result-[0-9a-f]{16}", "tool-result-RANDOM", value)
        value = re.sub(r"r_\w{26}/[0-9a-f]{16}", "REFERENCE", value)
        return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", value)
    if isinstance(value, Mapping):
        marks = TIMES if value.get("limit_type") == "timeout" else OF_ONE_RUN
        return {name: without_marks(v) for name, v in value.items() if name not in marks}
    if isinstance(value, list):
        return [without_marks(one) for one in value]
    return value


def line_of(chunk: Event) -> str:
    """What matters of a chunk."""
    match chunk["type"]:
        case "content" | "thinking" as kind:
            return f"{kind} {chunk['content']}"
        case "tool_call" | "tool_result" as kind:
            call = chunk["tool_call"]
            return f"{kind} {call['id']} {call['status']}"
        case "system":
            return f"{chunk['system_type']}: {chunk['system_message']}"
        case "done":
            return f"done {chunk['reason']}" + (" partial" if chunk["partial"] else "")
        case "error":
            return f"error {chunk['error_type']}"
        case kind:
            return str(kind)


def outline(chunks: Sequence[Event]) -> list[str]:
    """The chunks in order, a line each, without how full the context is."""
    return [line_of(chunk) for chunk in chunks if chunk["type"] != "context_update"]


def of_system(chunks: Sequence[Event], system_type: str) -> list[Event]:
    return [one for one in chunks if one["type"] == "system" and one["system_type"] == system_type]


def is_whole(chunks: Sequence[Event]) -> bool:
    """Numbered without a gap, with one end, which is the last."""
    ends = [chunk for chunk in chunks if chunk["type"] in TERMINAL]
    return seqs_of(chunks) == list(range(1, len(chunks) + 1)) and ends == [chunks[-1]]


def shown_to(asked: Asked) -> list[tuple[str, str]]:
    """A request's messages in order, alike for both wires: question, notice, answer, call, result."""
    parts: list[tuple[str, str]] = []
    for message in asked.body["messages"]:
        parts += _parts(message)
    return parts


def _parts(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    role, content = message["role"], message["content"] or []
    if role == "system":
        return []
    if role == "tool":
        return [("result", inside(str(content)))]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    calls = [("call", call["id"]) for call in message.get("tool_calls", ())]
    return [_part(role, block) for block in blocks] + calls


def _part(role: str, block: Mapping[str, Any]) -> tuple[str, str]:
    match block["type"]:
        case "tool_use":
            return "call", block["id"]
        case "tool_result":
            content = block["content"]
            text = content if isinstance(content, str) else "".join(b["text"] for b in content)
            return "result", inside(text)
        case _ if role == "assistant":
            return "answer", block["text"]
        case _:
            text = block["text"]
            return ("notice" if "<system-notice>" in text else "question"), text


def notices_to(asked: Asked) -> list[str]:
    return [text for kind, text in shown_to(asked) if kind == "notice"]


def talk_to(asked: Asked) -> list[tuple[str, str]]:
    """What a request shows of the conversation itself."""
    return [part for part in shown_to(asked) if part[0] != "notice"]


def is_told(asked: Asked) -> bool:
    """Whether a tool has answered since the last question."""
    kinds = [kind for kind, _ in talk_to(asked)]
    return kinds[-1] == "result"

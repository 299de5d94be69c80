"""A hundred runs of all kinds, each with its own plan, driven over real sockets and recorded."""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from bench.model_server import Call, anthropic_events, openai_events
from gateway.agent.effects import Steered
from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.errors import ToolFailed
from gateway.domain.ids import RunId
from tests.fakes.client import Client, Event
from tests.fakes.gateway import Setup, Site, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.fakes.plans import TEXTS
from tests.fakes.tools import FakeTool

KINDS = (
    "text",
    "whole",
    "thinking",
    "tools",
    "broken calls",
    "many calls",
    "endless",
    "budget",
    "retried",
    "refused",
    "cut off",
    "error inside",
    "fallback",
    "demo",
    "cancelled at once",
    "cancelled in tools",
    "cancelled after turn",
    "too late",
    "conversation",
    "estimated",
    "no progress",
    "failing",
    "steered",
    "ruled",
    "slow tool",
    "hasty",
    "impatient call",
    "impatient tree",
    "impatient tool",
)
AGENTS = ("openai", "anthropic", "openai-oracle", "anthropic-oracle")  # both wires, both trees
WORDS = ("one ", "two\n", "thrée ", '"four" ', "fünf 🙂 ", "six: {7} ", "<b>8</b> ")
AT_ONCE = {"retry-after": "0"}


@dataclass(frozen=True)
class Plan:
    """What a run does: its seed decides over all that its kind leaves open."""

    number: int
    kind: str

    @property
    def agent(self) -> str:
        own = {"demo", "fallback", "too late", "whole"}
        if self.kind in own or self.kind.startswith("impatient"):
            return self.kind.replace(" ", "-")
        return "too-late" if self.kind == "hasty" else AGENTS[self.number // len(KINDS)]

    @property
    def gate(self) -> str:
        """What its tools wait for."""
        return f"run {self.number}"

    @property
    def message(self) -> str:
        return json.dumps({"number": self.number, "kind": self.kind})


PLANS = tuple(Plan(number, KINDS[number % len(KINDS)]) for number in range(100))


@dataclass(frozen=True)
class Recorded:
    plan: Plan
    run_id: str
    session_key: str
    events: Sequence[Event]


def plan_of(asked: Asked) -> tuple[Plan, int]:
    """The plan of the last question, and how many rounds have been answered since."""
    rounds = 0
    for message in reversed(asked.body["messages"]):
        content = message["content"] or ""
        text = content if isinstance(content, str) else content[0].get("text", "")
        if message["role"] == "user" and text.startswith('{"number"'):
            return Plan(**json.loads(text)), rounds
        rounds += message["role"] == "assistant"
    raise AssertionError("no plan was asked for")


@dataclass(frozen=True)
class Turn:
    """One request of a plan: which round it is, and whether it is the first of all."""

    asked: Asked
    plan: Plan
    done: int
    first: bool
    random: Random
    texts: Sequence[str]

    @property
    def cut(self) -> list[bytes]:
        return cut(self.asked, self.random, self.texts)


def script(asked: Asked) -> Reply:
    plan, done = plan_of(asked)
    random = Random(f"{plan.number} {done}")
    texts = [random.choice(WORDS) for _ in range(random.randint(1, 9))]
    first = plan.number not in SEEN
    SEEN.add(plan.number)
    turn = Turn(asked, plan, done, first, random, texts)
    return SCRIPTS.get(plan.kind, last)(turn)


def last(turn: Turn) -> Reply:
    return Reply(raw=turn.cut)


def broken_calls(turn: Turn) -> Reply:
    wrong = [("a", "missing", "{}"), ("b", "work", "{broken"), ("c", "work", '{"fail":1}')]
    return last(turn) if turn.done or turn.asked.wire == "anthropic" else Reply("", calls=wrong)


def retried(turn: Turn) -> Reply:
    failing = [Reply(status=500, headers=AT_ONCE), Reply("x", stop_after=1)]
    return turn.random.choice(failing) if turn.first else last(turn)


def error_inside(turn: Turn) -> Reply:
    error = b'event: error\ndata: {"type":"error","error":{"type":"api_error"}}\n\n'
    whole = b"".join(turn.cut)
    return Reply(raw=[whole[: len(whole) // 2].rpartition(b"\n\n")[0] + b"\n\n", error])


def with_calls(turn: Turn, **more: object) -> Reply:
    return Reply(turn.texts[:1], calls=calls(turn.random, **more))  # type: ignore[arg-type]


def endless(turn: Turn) -> Reply:
    return Reply(turn.texts[:1], calls=calls(turn.random, 1), usage=(200, 50))


def same(turn: Turn, arguments: str) -> Reply:
    """Asks for one call again and again."""
    return Reply(turn.texts[:1], calls=[(f"c{turn.done}", "work", arguments)])


def held(turn: Turn) -> Reply:
    return Reply(turn.texts, gates={4: anyio.Event()})


SCRIPTS: dict[str, Callable[[Turn], Reply]] = {
    "whole": lambda turn: Reply(turn.texts),
    "thinking": lambda turn: Reply(turn.texts, thinking=turn.texts[:2]),
    "tools": lambda turn: last(turn) if turn.done == 2 else with_calls(turn),
    "cancelled in tools": lambda turn: with_calls(turn, count=3, hold="for ever"),
    "cancelled after turn": lambda turn: with_calls(turn, hold=turn.plan.gate),
    "broken calls": broken_calls,
    "many calls": lambda turn: last(turn) if turn.done else with_calls(turn, count=8),
    "endless": endless,
    "no progress": lambda turn: same(turn, '{"turns":1,"hold":""}'),
    "failing": lambda turn: same(turn, json.dumps({"fail": turn.done})),
    "steered": lambda turn: last(turn) if turn.done else with_calls(turn, hold=turn.plan.gate),
    "ruled": lambda turn: last(turn) if turn.done == 2 else with_calls(turn),
    "slow tool": lambda turn: last(turn) if turn.done else with_calls(turn, hold="for ever"),
    "budget": endless,
    "retried": retried,
    "refused": lambda _: Reply(status=400),
    "cut off": lambda turn: Reply(raw=turn.cut[:3], ending="reset"),
    "error inside": error_inside,
    "cancelled at once": held,
    "too late": held,
    "hasty": lambda _: Reply(status=500),
    "impatient call": held,
    "impatient tree": held,
    "impatient tool": lambda turn: last(turn) if turn.done else with_calls(turn, hold="for ever"),
    "estimated": lambda turn: Reply(turn.texts, usage=None),
}
SEEN: set[int] = set()


GATES: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)


def calls(random: Random, count: int = 0, hold: str = "") -> list[Call]:
    """Calls that take their time, in any order; the second of them until its gate is opened."""
    ids = random.sample("abcdefgh", count or random.randint(2, 4))
    held = ["", hold, *("" for _ in ids)]
    waits = [json.dumps({"turns": random.randint(0, 30), "hold": held.pop(0)}) for _ in ids]
    return [(id, "work", wait) for id, wait in zip(ids, waits, strict=True)]


def cut(asked: Asked, random: Random, texts: Sequence[str]) -> list[bytes]:
    """A stream in pieces that end anywhere, also inside a character."""
    events = openai_events if asked.wire == "openai" else anthropic_events
    whole = b"".join(events(texts))
    ends = sorted(random.sample(range(1, len(whole)), min(9, len(whole) - 1)))
    return [whole[a:b] for a, b in zip([0, *ends], [*ends, len(whole)], strict=True)]


async def work(arguments: Mapping[str, Any]) -> str:
    if "fail" in arguments:
        raise ToolFailed("it cannot be done")
    for _ in range(arguments["turns"]):
        await checkpoint()
    if arguments["hold"]:
        await GATES[arguments["hold"]].wait()
    sources = [{"id": str(arguments["turns"]), "title": "t", "url": None}]
    return json.dumps({"did": arguments, "sources": sources})


ORACLE = 'tree = "oracle-agent"'
RULE = """
[[rules]]
id = "told"
on = ["tool.call.success"]
when = "turn.number > 1"
once_per = "session"
do = [{ notify = "That was {payload.tool}.", inject_at = "after_tool" }, { set_state = { seen = true } }]
"""


def setup_of(url: str) -> Setup:
    def agent(name: str, provider: str, more: str = "") -> str:
        return f'[[agents]]\nid = "{name}"\nprovider = "{provider}"\nmodel = "m-{name}"\n{more}\n'

    rest = f"""
[providers.claude]
wire = "anthropic"
base_url = "{url}"
api_key = "sk-2-of-the-test"
{agent("openai", "fake")}{agent("anthropic", "claude", "thinking = true")}
{agent("openai-oracle", "fake", ORACLE)}{agent("anthropic-oracle", "claude", ORACLE)}
{agent("impatient-call", "fake")}{agent("impatient-tree", "claude")}
{agent("impatient-tool", "fake")}
{agent("demo", "demo")}{agent("too-late", "claude")}{agent("whole", "fake", "stream = false")}
{agent("fallback", "nowhere")}
[agents.fallback]
provider = "claude"
model = "m-spare"
[providers.nowhere]
wire = "openai"
base_url = "http://127.0.0.1:1/v1"
api_key = "sk-3-of-the-test"
max_retries = 0
"""
    return Setup(url, provider="max_retries = 2", rest=rest + RULE)


ASKED, CALLED = "(llm-call :messages $messages :tools $tools)", "(tool-call $call)"
# Whose trees wait for nobody for long, yet longer than a replay waits for its next mark.
IMPATIENT = {
    "impatient-call": (ASKED, ASKED.replace(")", " :timeout 1.2)")),
    "impatient-tree": (ASKED, f"(timeout 1.2 {ASKED})"),
    "impatient-tool": (CALLED, CALLED.replace(")", " :timeout 1.2)")),
}


def with_tools(config: GatewayConfig) -> GatewayConfig:
    def changed(agent: AgentDef) -> AgentDef:
        seconds: Any = 0.2 if agent.id == "too-late" else 20  # sooner than any file may say
        limits = replace(
            agent.limits,
            max_iterations=8 if "oracle" in agent.id else 3,
            timeout_seconds=seconds,
            tool_timeout_s=5.0 if agent.id in IMPATIENT else 0.3,
        )
        folder = config.gateway.data_dir.parent
        tree = str(folder / f"{agent.id}.bt") if agent.id in IMPATIENT else agent.tree
        soul = str(folder / "soul.md")
        return replace(agent, tools=("work",), limits=limits, soul_path=soul, tree=tree)

    return replace(config, agents=tuple(map(changed, config.agents)))


@asynccontextmanager
async def a_site(folder: Path, change: Any = with_tools) -> AsyncIterator[Site]:
    for agent, change_of in IMPATIENT.items():
        text = TEXTS["default"].replace(*change_of)
        await anyio.Path(folder / f"{agent}.bt").write_text(text, encoding="utf-8")
    SEEN.clear()
    GATES.clear()
    async with (
        scripted_server(script) as model,
        running(setup_of(model.url), folder, change) as site,
    ):
        site.rooms.current.gate.register(FakeTool("work", work))
        yield site


async def record(site: Site, client: Client, plan: Plan) -> Recorded:
    more: dict[str, Any] = {"agent": plan.agent, "peer": f"p{plan.number}"}
    if plan.kind == "budget":
        more["limits"] = {"token_budget": 300}
    content = "what is my name? my name is Ada." if plan.kind == "demo" else plan.message
    if plan.kind == "conversation":
        await client.ask(plan.message, **more)
    sent = await client.send(content, **more)
    run_id = sent["run_id"]
    stop_at = {
        "cancelled at once": ("content", "immediate"),
        "cancelled in tools": ("tool_result", "immediate"),
        "cancelled after turn": ("tool_call", "after_turn"),
    }.get(plan.kind)
    if stop_at is not None:
        kind, mode = stop_at
        await client.until(run_id, lambda seen: any(event["type"] == kind for event in seen))
        await client.call("chat.abort", run_id=run_id, mode=mode)
        GATES[plan.gate].set()
    if plan.kind == "steered":
        await client.until(run_id, lambda seen: any(event["type"] == "tool_call" for event in seen))
        live = site.rooms.front.live.get(run_id)
        assert live is not None
        live.control.steer(Steered(RunId("r_more"), "And more."))
        GATES[plan.gate].set()
    events = await client.ended(run_id)
    return Recorded(plan, run_id, sent["session_key"], events)


async def record_all(site: Site, client: Client, plans: Sequence[Plan]) -> list[Recorded]:
    """Eight at a time."""
    recorded: list[Recorded] = []
    slots = anyio.CapacityLimiter(8)

    async def one(plan: Plan) -> None:
        async with slots:
            recorded.append(await record(site, client, plan))

    await all_of(one, plans)
    return recorded


async def all_of(act: Callable[[Any], Coroutine[Any, Any, None]], each: Sequence[Any]) -> None:
    """Side by side."""
    async with anyio.create_task_group() as group:
        for one in each:
            group.start_soon(act, one)

"""Agents that work for an agent: each is a tool of its parent, and spends what the parent has left."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from gateway.agent.aside import Aside, Errand
from gateway.agent.job import Answer, add_usage
from gateway.agent.patience import until_stored
from gateway.agent.story import Json, NoJournal, Story
from gateway.agent.wishes import Fail
from gateway.agent.words import EMPTY
from gateway.domain.agents import MEMORY, AgentDef
from gateway.domain.chunks import Chunk
from gateway.domain.errors import ToolFailed
from gateway.domain.events import Event
from gateway.domain.ids import AgentId, RunId
from gateway.domain.messages import ToolResult, within_boundary
from gateway.domain.model import ToolSpec
from gateway.domain.ports import Journal, Tool, ToolScope
from gateway.domain.settings import UserSettings, chain_of
from gateway.domain.subagents import MOST_DEPTH, SubagentDef
from gateway.domain.tokens import BYTES_A_TOKEN, estimate_tokens
from gateway.domain.usage import Spent, Usage
from gateway.memory.souls import Souls

ENDING_S = 10.0  # that the gate grants beyond its time: then it can still tell what it has
MOST_TASK = 20_000  # characters
NEVER = 200  # percent of the turns: who has one need not be told that it is the last
REPLY_SHARE = 0.25  # of its window at most, for what it makes of a text that it condenses
READ_SHARE = 0.8  # of the rest and of its tokens, for the text itself
_CUT = "\n[It is cut here: it was longer than a reply may be.]"
_TASK = (
    f'{{"type":"object","properties":{{"task":{{"type":"string","minLength":1,"maxLength":{MOST_TASK},'
    '"description":"What to do, with all that one has to know for it."}},'
    '"required":["task"],"additionalProperties":false}'
)
# Of an agent, what goes with its model.
_MODEL = (
    "provider",
    "model",
    "max_tokens",
    "temperature",
    "context_window",
    "thinking",
    "stream",
    "fallback",
)


@dataclass(frozen=True, slots=True)
class Subagents:
    """All that the configuration defines. `aside` is over the gate that their tools are behind."""

    known: Mapping[str, SubagentDef]
    aside: Aside
    souls: Souls
    settings: Callable[[str], Awaitable[UserSettings]]  # of a principal
    journal: Journal
    json: Json
    agents: Mapping[AgentId, AgentDef] = field(default_factory=dict)  # as they are configured
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def tools(self) -> Sequence[Tool]:
        return [_Delegate(one, self) for one in self.known.values()]

    async def delegate(self, name: str, task: str, scope: ToolScope) -> str:
        """Its answer. Raises ToolFailed with a sentence for the parent's model."""
        if scope.depth >= MOST_DEPTH:
            raise ToolFailed(f"{name} cannot be asked by one who is asked that way itself. Do it.")
        answer = await self._answer(await self._child(name, scope), task, scope)
        end = answer.end
        if isinstance(end, Fail):
            raise ToolFailed(f"{name} could not do it: {end.told}")
        if end.partial:
            return f"[{name} was stopped before it was done ({end.reason}). It has so far:]\n{end.text}"
        return _whole(answer)

    async def condense(
        self, name: str, question: str, result: ToolResult, scope: ToolScope, *, least: int
    ) -> str:
        """What it makes of a result for whoever asked the question: in one turn and without tools,
        because what others say must not get hands. Raises ToolFailed, also where so few tokens are
        left that it could not read the least."""
        child = await self._child(name, scope)
        once = replace(child.limits, max_iterations=1, soft_warning_percent=NEVER)
        reply = min(child.max_tokens, int(REPLY_SHARE * child.context_window))
        alone = replace(child, tools=(), limits=once, max_tokens=reply)
        room = min(child.context_window - reply, child.limits.token_budget)
        most = int(READ_SHARE * room) - estimate_tokens(question)
        if most < min(least, estimate_tokens(result.content)):
            raise ToolFailed(f"{name} could not read enough of it: too few tokens are left.")
        shown = within_boundary(within(result.content, most), result.boundary)
        asked = f"{question}\n\n{shown}"
        answer = await self._answer(alone, asked, scope)
        end = answer.end
        if isinstance(end, Fail) or end.partial:
            why = end.told if isinstance(end, Fail) else end.reason
            raise ToolFailed(f"{name} could not sum it up: {why}")
        if end.text == EMPTY:
            raise ToolFailed(f"{name} said nothing about it.")
        return _whole(answer)

    async def _child(self, name: str, scope: ToolScope) -> AgentDef:
        parent = scope.agent
        if parent is None:
            raise ToolFailed(f"{name} can only be asked by an agent.")
        settings = await until_stored(self.aside.clock, lambda: self.settings(scope.principal))
        whole = self.agents.get(parent.id)  # a person may have chosen one of its fallbacks
        child = child_of(self.known[name], parent, settings.valid, whole)
        tokens, seconds = child.limits.token_budget, child.limits.timeout_seconds
        if scope.carve is not None:
            left = scope.carve()
            tokens, seconds = min(tokens, left.tokens), min(seconds, int(left.seconds))
        limits = replace(child.limits, token_budget=tokens, timeout_seconds=seconds)
        tools = tuple(tool for tool in child.tools if scope.is_kept or tool != MEMORY)
        return replace(child, limits=limits, tools=tools)

    async def _answer(self, child: AgentDef, question: str, scope: ToolScope) -> Answer:
        limits, soul = child.limits, self.souls.of(child.id)
        needed = estimate_tokens(question) + (soul.token_count if soul else 0)
        if limits.timeout_seconds < 1 or needed >= limits.token_budget:
            what = "time" if limits.timeout_seconds < 1 else "of its token budget"
            raise ToolFailed(f"Too little {what} is left in this run for {child.id}. Do without.")
        run = RunId(f"{scope.run_id}/{child.id}-{next(self._numbers)}")
        tell = partial(_published, self.aside.publish, run, child.id)
        errand = Errand(
            child,
            question,
            replace(scope, depth=scope.depth + 1, agent=None, part="", carve=None),
            child.id,
            soul,
        )
        journal = self.journal if scope.is_kept else NoJournal()
        story = Story(scope.run_id, journal, self.aside.clock, self.json, scope.part)
        bill = _Bill(scope.spend)
        answer = await replace(self.aside, publish=tell).answer(errand, story, bill.hear)
        bill.settle(answer)
        return answer


@dataclass(frozen=True, slots=True)
class _Delegate:
    """Implements the Tool port."""

    definition: SubagentDef
    subagents: Subagents

    @property
    def spec(self) -> ToolSpec:
        its = self.definition
        what = f": {its.description.rstrip('.')}" if its.description else ""
        told = (
            f"Hands a task to the agent {its.name}{what}. It works alone and gives back its answer; it "
            "sees nothing of this conversation, so say all that it has to know."
        )
        return ToolSpec(its.tool, told, _TASK, timeout_s=its.timeout_seconds + ENDING_S)

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str:
        return await self.subagents.delegate(self.definition.name, str(arguments["task"]), scope)


@dataclass(slots=True)
class _Bill:
    """Tells what a child's models used, reply by reply."""

    spend: Callable[[Spent], None]
    told: Usage = Usage()

    def hear(self, chunk: Chunk) -> None:
        if chunk.type != "usage":
            return
        data = dict(chunk.data)
        provider, model = str(data.pop("provider")), str(data.pop("model"))
        usage = Usage(**data)  # type: ignore[arg-type]  # as usage_chunk made it
        self.told = add_usage(self.told, usage)
        self.spend(Spent(usage, provider, model))

    def settle(self, answer: Answer) -> None:
        """Of a reply that was cut there is no chunk, but the child has counted it."""
        used, told = answer.usage, self.told
        more = (used.input_tokens - told.input_tokens, used.output_tokens - told.output_tokens)
        if any(more):
            usage = Usage(*more, estimated=True)
            self.spend(Spent(usage, answer.provider, answer.model))


def child_of(
    its: SubagentDef,
    parent: AgentDef,
    settings: Mapping[str, object],
    whole: AgentDef | None = None,
) -> AgentDef:
    """The agent that it is for this parent and this person; what it does not say is its parent's.
    `whole`: the parent as it is configured."""
    wanted, own = settings.get("subagent_model"), _with_own_model(its, parent)
    chain = (own, *chain_of(parent), *chain_of(whole))
    served = next((one for one in chain if one.model == wanted), own)
    longest = settings.get("librarian_timeout", its.timeout_seconds)
    assert isinstance(longest, int)  # it is valid
    return replace(
        parent,
        **{name: getattr(served, name) for name in _MODEL},
        id=AgentId(its.name),
        system_prompt="",
        soul_path=its.prompt_path,
        prompt_template=None,
        tools=its.tools,
        tree="default",
        limits=replace(
            parent.limits,
            max_iterations=its.max_turns,
            timeout_seconds=min(its.timeout_seconds, longest),
        ),
    )


def _with_own_model(its: SubagentDef, parent: AgentDef) -> AgentDef:
    provider, model = its.provider or parent.provider, its.model or parent.model
    if (provider, model) == (parent.provider, parent.model):
        return parent
    return replace(
        parent,
        provider=provider,
        model=model,
        fallback=None,
        max_tokens=min(parent.max_tokens, its.output_limit or parent.max_tokens),
        context_window=its.context_window or parent.context_window,
    )


def within(text: str, tokens: int) -> str:
    """Without its middle, if it is longer. By bytes, as tokens are estimated: characters may be
    dense where it begins and ends."""
    whole, half = text.encode(), max(0, int(tokens * BYTES_A_TOKEN / 2))
    if len(whole) <= 2 * half:
        return text
    begin = whole[:half].decode(errors="ignore")
    end = whole[len(whole) - half :].decode(errors="ignore")
    out = f"[{len(text) - len(begin) - len(end)} characters are left out here]"
    return f"{begin}\n{out}\n{end}"


def _whole(answer: Answer) -> str:
    return answer.end.text + (_CUT if answer.finish == "length" else "")


def _published(
    publish: Callable[[Event], None], run: RunId, subagent: AgentId, event: Event
) -> None:
    """As what happened in a run of its own, which belongs to another."""
    within_ = {"parent_run_id": event.run_id, "subagent": subagent}
    publish(replace(event, run_id=run, payload={**event.payload, **within_}))

"""What a tree may do and ask in a turn, and the trees of the agents."""

import logging
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import cast

import anyio

from gateway.agent.effects import Gate, Reins, Stop
from gateway.agent.turn import EXECUTE, ROOTS, Leaves, Turn
from gateway.control.notices import Moment as Point
from gateway.control.policy import DecisionTrees
from gateway.control.trees.loading import load
from gateway.control.trees.nodes import Call
from gateway.control.trees.plan import Registry, TreePlan
from gateway.control.trees.reader import Source, TreeInvalid
from gateway.domain.agents import AgentDef
from gateway.domain.errors import SoulUnreadable
from gateway.domain.ids import AgentId
from gateway.domain.mcp import Lacking
from gateway.domain.ports import Texts

Leaf = Callable[[Turn, Call], object]

FRUITLESS = "Not executed: this call gave the same result before. Do something else, or answer."
QUERY_SHOWN = 200  # characters of a question that an event tells
POINTS = ("immediate", "turn_start", "after_tool")

_LEAVES: dict[str, Leaf] = {}
_REGISTRY = Registry(roots={**ROOTS, "flags": ()})


def _leaf(
    name: str, *, writes: Mapping[str, str] | None = None, options: tuple[str, ...] = ()
) -> Callable[[Leaf], Leaf]:
    """Offers the decorated function under this name."""

    def offer(leaf: Leaf) -> Leaf:
        _LEAVES[name] = leaf
        _REGISTRY.action(name, writes=writes, options=options)(leaf)
        return leaf

    return offer


# -- before the first question


@_leaf("oracle.reset_state")
def reset_state(turn: Turn, _: Call) -> None:
    """A run starts clean by itself; this makes it so again in the middle of one."""
    turn.exchange.messages.clear()
    turn.course.context_tokens = 0


@_leaf("oracle.emit_query_start")
def emit_query_start(turn: Turn, _: Call) -> None:
    job = turn.job
    told = {
        "query": job.context.question.text[:QUERY_SHOWN],
        "user": job.scope.principal,
        "project": turn.course.project_id,
        "context_id": job.context_id,
    }
    turn.voice.event("query.start", told)


@_leaf("oracle.load_tree_node")
def load_tree_node(turn: Turn, _: Call) -> bool:
    """The conversation goes on from the node that the message names."""
    return turn.job.context_id is not None


@_leaf("oracle.get_or_create_tree")
def get_or_create_tree(turn: Turn, _: Call) -> bool:
    """The conversation goes on from where it is, or begins."""
    return turn.job.context_id is None


@_leaf("oracle.load_cross_session")
def load_cross_session(turn: Turn, _: Call) -> None:
    """What other sessions of this person have left for it; told at the start of the turn."""
    for notice in turn.job.waiting:
        turn.voice.notices.push(notice, turn.moment.wall)


@_leaf("oracle.build_system_prompt")
def build_system_prompt(turn: Turn, _: Call) -> None:
    context = turn.job.context
    turn.exchange.system = context.system
    turn.course.context_tokens += context.system_tokens


@_leaf("oracle.add_tree_history")
def add_tree_history(turn: Turn, _: Call) -> None:
    context = turn.job.context
    if not context.history:
        return
    turn.exchange.messages.extend(context.history)
    turn.course.context_tokens += context.history_tokens
    turn.voice.event("session.resumed", {"messages": len(context.history)})


@_leaf("oracle.add_user_question")
def add_user_question(turn: Turn, _: Call) -> None:
    context = turn.job.context
    if context.memory is not None:
        turn.exchange.tell(context.memory, is_kept=False)
    turn.exchange.tell(context.question, is_kept=False)  # its node is there already


@_leaf("oracle.get_tool_schemas")
def get_tool_schemas(turn: Turn, _: Call) -> None:
    turn.course.context_tokens += turn.job.context.tools_tokens
    turn.course.show_context()


# -- in each turn


@_leaf("decision.should_continue")
def should_continue(turn: Turn, _: Call) -> bool:
    turn.exchange.close_round()
    return turn.course.reason is None and turn.course.may_continue()


@_leaf("decision.alive")
def alive(turn: Turn, _: Call) -> bool:
    return turn.course.reason is None


@_leaf("decision.on_turn_start")
def on_turn_start(turn: Turn, _: Call) -> None:
    turn.course.start_turn()


@_leaf("notify.drain", options=("point",))
def drain(turn: Turn, call: Call) -> None:
    point = call.options.get("point", "turn_start")
    if point not in POINTS:
        raise ValueError(f"notices are told at {', '.join(POINTS)}, not at {point!r}")
    turn.exchange.drain(cast(Point, point))


@_leaf("llm-call", writes={"tool_calls": "list"})
def llm_call(turn: Turn, call: Call) -> object:
    return turn.ask(call)


@_leaf("decision.detect_loop", writes={"tool_calls": "list"})
def detect_loop(turn: Turn, call: Call) -> bool:
    """Takes the calls out that were fruitless before; fails once the run does not take the hint."""
    calls = turn.round.calls
    refused = turn.course.refused(calls)
    if turn.course.reason is not None:
        return False
    for wanted in calls:
        if wanted.id in refused and wanted.id not in turn.round.results:
            turn.round.refuse(wanted, FRUITLESS)
    call.write("tool_calls", turn.round.as_data())
    return True


@_leaf("tool-call")
def tool_call(turn: Turn, call: Call) -> object:
    [wanted] = call.values
    id_ = wanted.get("id") if isinstance(wanted, Mapping) else None
    found = turn.round.named(id_)
    if found is None:
        return call.failed("this is none of the calls that the model asked for", "unknown_call")
    return turn.call_tool(call, found)


@_leaf("oracle.append_tool_results")
def append_tool_results(turn: Turn, _: Call) -> None:
    turn.exchange.close_round()


# -- the end


@_leaf("oracle.save_exchange")
def save_exchange(turn: Turn, _: Call) -> bool:
    """Question and answer are kept: in one commit, once the tree is over."""
    turn.saved = "exchange"
    return turn.exchange.is_answered


@_leaf("oracle.yield_sources")
def yield_sources(turn: Turn, _: Call) -> None:
    turn.round.tell_sources()


@_leaf("oracle.emit_termination")
def emit_termination(turn: Turn, _: Call) -> None:
    turn.exchange.close_round()
    turn.find_reason()
    turn.course.tell_stop()


@_leaf("oracle.save_partial")
def save_partial(turn: Turn, _: Call) -> None:
    """What there is, is kept: in one commit, once the tree is over."""
    turn.saved = turn.saved or "partial"


@_leaf("oracle.save_partial_cleanup")
def save_partial_cleanup(turn: Turn, call: Call) -> None:
    save_partial(turn, call)


@_leaf("oracle.emit_session_end")
def emit_session_end(turn: Turn, _: Call) -> None:
    """Told once the end is durable, also by a tree that does not ask for it."""
    turn.round.tell_sources()


# -- other names, under which older trees know the same


@_leaf("oracle.load_legacy_context")
@_leaf("oracle.extract_xml_tools")
@_leaf("oracle.emit_done")
def nothing(_turn: Turn, _: Call) -> None:
    """There is one history, so no flat one to load; calls that were written as text are found while
    the reply is read; and the end is told once it is durable."""


@_leaf("has-context-id?")
def has_context_id(turn: Turn, _: Call) -> bool:
    return turn.job.context_id is not None


@_leaf("has-tool-calls?")
def has_tool_calls(turn: Turn, _: Call) -> bool:
    return bool(turn.round.as_data())


@_leaf("has-xml-tools?")
def has_xml_tools(_turn: Turn, _: Call) -> bool:
    return False


@_leaf(EXECUTE)
def execute_item(turn: Turn, call: Call) -> object:
    """The call that the loop around is at. An error is a result too, and the next call is made."""
    item = call.read("item")
    found = turn.round.named(item.get("id") if isinstance(item, Mapping) else None)
    return turn.call_tool(call, found) if found else call.failed("there is no such call")


@_leaf("oracle.drain_after_tool")
def drain_after_tool(turn: Turn, _: Call) -> bool:
    """Fails while the round is not closed: older trees leave that to the next question, and repeat
    until success, which only an answer is."""
    turn.exchange.drain("after_tool")
    return not turn.round.calls


def _draining(point: Point) -> Leaf:
    return lambda turn, _: turn.exchange.drain(point)


for _name, _same in {
    "not-cancelled?": alive,
    "budget-check": alive,
    "oracle.check_iteration_budget": on_turn_start,
    "oracle.emit_iteration_exceeded": emit_termination,
    "oracle.emit_done_warning": emit_termination,
    "oracle.inject_notifications": _draining("turn_start"),
    "oracle.drain_turn_start": _draining("turn_start"),
    "oracle.drain_immediate": _draining("immediate"),
}.items():
    _leaf(_name)(_same)
_leaf("oracle.detect_loop", writes={"tool_calls": "list"})(detect_loop)

LEAVES: Leaves = _LEAVES
REGISTRY = _REGISTRY

log = logging.getLogger(__name__)

NO_OTHERS = DecisionTrees()

SHIPPED = Path(__file__).parent / "trees"


Tell = Callable[[str, Mapping[str, object]], None]  # a type of event and its payload


def _nobody(_type: str, _payload: Mapping[str, object]) -> None:
    """Hears it."""


class Plans:
    """`paths`: the file of each agent's tree."""

    def __init__(
        self,
        texts: Texts,
        paths: Mapping[AgentId, str],
        tell: Tell = _nobody,
        *,
        decisions: DecisionTrees = NO_OTHERS,
    ) -> None:
        self._texts, self._paths, self._tell = texts, dict(paths), tell
        self._decisions = decisions
        self._plans: dict[str, TreePlan] = {}
        self._digests: dict[str, str] = {}
        self._problems: dict[str, str] = {}

    async def load(self) -> None:
        """Raises TreeInvalid, or SoulUnreadable, for the first that cannot be used."""
        for path in self._files:
            self._plans[path] = await self._read(path)

    def of(self, agent: AgentId) -> TreePlan:
        return self._plans[self._paths[agent]]

    def digest(self, agent: AgentId) -> str:
        """Another one for every other text."""
        return self._digests[self._paths[agent]]

    @property
    def problems(self) -> tuple[str, ...]:
        """Why a newer version of a tree is not in use."""
        return tuple(self._problems.values())

    async def keep_fresh(self) -> None:
        """Follows the files until cancelled."""
        await self._texts.watch(self._files, self.refresh)

    async def refresh(self, path: str) -> None:
        """Takes the new version; runs that are at work end under the one before."""
        try:
            plan = await self._read(path)
        except (SoulUnreadable, TreeInvalid) as error:
            self._problems[path] = f"{error}; the version before stays in use"
            log.warning("tree not reloaded", extra={"path": path, "why": str(error)})
            self._tell("tree.refused", {"path": path, "why": str(error)})
            return
        self._problems.pop(path, None)
        self._plans[path] = plan
        log.info("tree reloaded", extra={"path": path, "tree": plan.name})
        self._tell("tree.reloaded", {"path": path, "tree": plan.name})

    @property
    def _files(self) -> list[str]:
        return sorted(set(self._paths.values()))

    async def _read(self, path: str) -> TreePlan:
        text = await self._texts.read(path)
        plan = load(text, PurePath(path).name, REGISTRY)
        self._check_decision(plan, text)
        self._digests[path] = blake2b(text.encode(), digest_size=8).hexdigest()
        for warning in plan.warnings:
            log.warning("tree", extra={"why": warning.render()})
        return plan

    def _check_decision(self, plan: TreePlan, text: str) -> None:
        names = self._decisions.names
        if plan.decision is None or plan.decision in names:
            return
        source = Source(plan.file, text)
        message = f'no decision tree is called "{plan.decision}"; there are {", ".join(names)}'
        source.error("BT027", text.index(":decision", plan.at), message)
        raise TreeInvalid(source.problems())


async def prepared(gate: Gate, agent: AgentDef, reins: Reins) -> Sequence[Lacking]:
    """What the agent has and cannot have now. Whoever stops the run waits for no server."""
    with anyio.CancelScope() as scope:

        def wake() -> None:
            if any(isinstance(one, Stop) for one in reins.pulled):
                scope.cancel()

        reins.wake = wake
        wake()
        return await gate.prepare(agent)
    return ()

"""The leaves of behaviour trees: the actions and conditions of a turn. And the trees of the agents."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path, PurePath
from typing import get_args

from gateway.agent.turn import EXECUTE, ROOTS, Turn
from gateway.control.notices import Moment as Point
from gateway.control.policy import BUILT_IN, DecisionTrees
from gateway.control.trees.engine import LeafRegistry, TreePlan
from gateway.control.trees.loading import load
from gateway.control.trees.nodes import LeafCall
from gateway.control.trees.reader import TreeInvalid, TreeSource
from gateway.domain.ids import AgentId
from gateway.domain.ports import Texts

FRUITLESS = "Not executed: this call gave the same result before. Do something else, or answer."
QUERY_SHOWN = 200  # characters of the question in an event
POINTS: Sequence[Point] = get_args(Point)
CALLS = {"tool_calls": "list"}  # the key for the calls of the last reply

Plain = Callable[[Turn], object]
REGISTRY = LeafRegistry(roots={**ROOTS, "flags": ()})  # with the names that older trees use


def _plain(*names: str) -> Callable[[Plain], Plain]:
    """Registers a function under these names. It gets no LeafCall and answers at once."""

    def offer(act: Plain) -> Plain:
        for name in names:
            REGISTRY.action(name, is_plain=True)(act)
        return act

    return offer


# -- before the first question


@_plain("oracle.reset_state")
def reset_state(turn: Turn) -> None:
    """Clears the messages in the middle of a run. A new run has none."""
    turn.messages.clear()
    turn.old_messages = 0
    turn.state.context_tokens = 0


@_plain("oracle.emit_query_start")
def emit_query_start(turn: Turn) -> None:
    job = turn.job
    facts = {
        "query": job.context.question.text[:QUERY_SHOWN],
        "user": job.scope.principal,
        "project": turn.state.project_id,
        "context_id": job.context_id,
    }
    turn.output.event("query.start", facts)


@_plain("oracle.load_tree_node", "has-context-id?")
def load_tree_node(turn: Turn) -> bool:
    """True if the message names the node to continue from."""
    return turn.job.context_id is not None


@_plain("oracle.get_or_create_tree")
def get_or_create_tree(turn: Turn) -> bool:
    """True if the conversation continues from HEAD, or begins."""
    return turn.job.context_id is None


@_plain("oracle.load_cross_session")
def load_cross_session(turn: Turn) -> None:
    """Queues notices from other sessions of this person."""
    for notice in turn.job.waiting:
        turn.output.notices.push(notice, turn.moment.wall)


@_plain("oracle.build_system_prompt")
def build_system_prompt(turn: Turn) -> None:
    context = turn.job.context
    turn.system = context.system
    turn.state.context_tokens += context.system_tokens


@_plain("oracle.add_tree_history")
def add_tree_history(turn: Turn) -> None:
    context = turn.job.context
    if not context.history:
        return
    turn.old_messages = 0 if turn.messages else len(context.history)
    turn.messages.extend(context.history)
    turn.state.context_tokens += context.history_tokens
    turn.output.event("session.resumed", {"messages": len(context.history)})


@_plain("oracle.add_user_question")
def add_user_question(turn: Turn) -> None:
    context = turn.job.context
    if context.memory is not None:
        turn.add_message(context.memory, is_kept=False)
    turn.add_message(context.question, is_kept=False)  # the question has its node already


@_plain("oracle.get_tool_schemas")
def get_tool_schemas(turn: Turn) -> None:
    turn.state.context_tokens += turn.job.context.tools_tokens
    turn.state.show_context()


# -- in each turn


@_plain("decision.should_continue")
def should_continue(turn: Turn) -> bool:
    if turn.calls:
        turn.close_round()
    return turn.state.reason is None and turn.state.may_continue()


@_plain("decision.alive", "not-cancelled?", "budget-check")
def alive(turn: Turn) -> bool:
    return turn.state.reason is None


@_plain("decision.on_turn_start", "oracle.check_iteration_budget")
def on_turn_start(turn: Turn) -> None:
    turn.state.ask_policy("on_turn_start")
    turn.output.event("agent.turn.started", {"turn": turn.state.turn})


@REGISTRY.action("notify.drain", options=("point",))
def drain(turn: Turn, call: LeafCall) -> None:
    wanted = call.option("point") or "turn_start"
    for point in POINTS:
        if point == wanted:
            turn.drain(point)
            return
    raise ValueError(f"notices are drained at {', '.join(POINTS)}, not at {wanted!r}")


REGISTRY.action("llm-call", writes=CALLS)(Turn.ask)


@REGISTRY.action("decision.detect_loop", writes=CALLS)
@REGISTRY.action("oracle.detect_loop", writes=CALLS)
def detect_loop(turn: Turn, call: LeafCall) -> bool:
    """Refuses calls that were fruitless before. Fails if they stop the run."""
    calls = turn.calls
    refused = turn.state.refuse_repeats(calls)
    if turn.state.reason is not None:
        return False
    for wanted in calls:
        if wanted.id in refused and wanted.id not in turn.results:
            turn.refuse(wanted, FRUITLESS)
    call.write("tool_calls", turn.waiting_calls())
    return True


@REGISTRY.action("tool-call")
def tool_call(turn: Turn, call: LeafCall) -> object:
    [named] = call.values
    return turn.call_tool(call, named)


_plain("oracle.append_tool_results")(Turn.close_round)


# -- the end


# The commit after the tree saves the exchange. The leaf only says whether there is an answer.
_plain("oracle.save_exchange")(attrgetter("is_answered"))

# `session.end` is published once the end is durable, also for trees without this leaf.
_plain("oracle.yield_sources", "oracle.emit_session_end")(Turn.send_sources)


@_plain("oracle.emit_termination", "oracle.emit_iteration_exceeded", "oracle.emit_done_warning")
def emit_termination(turn: Turn) -> None:
    turn.close_round()
    turn.find_reason()
    turn.state.report_stop()


# -- for older trees


@_plain("oracle.save_partial", "oracle.save_partial_cleanup", "oracle.emit_done")
@_plain("oracle.load_legacy_context", "oracle.extract_xml_tools")
def nothing(_turn: Turn) -> None:
    """Does nothing. The commit after the tree saves the turn and publishes its end; there is no flat history
    to load; providers find calls that a model wrote as text."""


@_plain("has-tool-calls?")
def has_tool_calls(turn: Turn) -> bool:
    return bool(turn.calls and turn.waiting_calls())


@_plain("has-xml-tools?")
def has_xml_tools(_turn: Turn) -> bool:
    return False


@REGISTRY.action(EXECUTE)
def execute_item(turn: Turn, call: LeafCall) -> object:
    """Executes the current call of the loop around it. Succeeds for an error result too."""
    return turn.call_tool(call, call.read("item"))


@_plain("oracle.drain_after_tool")
def drain_after_tool(turn: Turn) -> bool:
    """Drains notices. Fails while a round is open: older trees repeat until success, and close a round with
    the next question."""
    turn.drain("after_tool")
    return not turn.calls


_plain("oracle.inject_notifications", "oracle.drain_turn_start")(
    partial(Turn.drain, point="turn_start")
)
_plain("oracle.drain_immediate")(partial(Turn.drain, point="immediate"))


log = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent / "trees"


@lru_cache(64)
def _plan_of(text: str, name: str) -> TreePlan:
    """A reload reads all trees again, and most are as they were. A plan never changes."""
    return load(text, name, REGISTRY)


class Plans:
    """The trees of the agents of one configuration. `paths` holds the file of each agent's tree."""

    def __init__(
        self,
        texts: Texts,
        paths: Mapping[AgentId, str],
        *,
        decisions: DecisionTrees = BUILT_IN,
    ) -> None:
        self._texts, self._paths, self._decisions = texts, dict(paths), decisions
        self._plans: dict[str, tuple[TreePlan, str]] = {}  # with the digests of their texts

    @property
    def files(self) -> Sequence[str]:
        return sorted(set(self._paths.values()))

    async def load(self) -> None:
        """Reads all trees. Raises TreeInvalid or SoulUnreadable for the first invalid one."""
        for path in self.files:
            await self.read(path)

    def of(self, agent: AgentId) -> tuple[TreePlan, str]:
        """Returns the agent's tree, and the digest of its text."""
        return self._plans[self._paths[agent]]

    def name(self, path: str) -> str:
        """Returns the name of the tree in that file."""
        return self._plans[path][0].name

    async def read(self, path: str) -> None:
        """Reads one tree. Raises TreeInvalid and SoulUnreadable."""
        text, names = await self._texts.read(path), self._decisions
        plan = _plan_of(text, PurePath(path).name)
        if plan.decision is not None and plan.decision not in names:
            source = TreeSource(plan.file, text)
            message = f'no decision tree is called "{plan.decision}"; there are {", ".join(names)}'
            source.error("BT027", text.index(":decision", plan.at), message)
            raise TreeInvalid(source.problems())
        for warning in plan.warnings:
            log.warning("tree_warning", extra={"why": warning.render()})
        self._plans[path] = plan, blake2b(text.encode(), digest_size=8).hexdigest()

"""A turn played on paper: it is told what happened, and all that it says and wants is noted in order."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.agent.effects import (
    AskModel,
    CallTool,
    Cancel,
    Effect,
    Finish,
    Job,
    ModelBroke,
    ModelReplied,
    Moment,
    Steered,
    StopRequested,
    TimePassed,
    ToolReturned,
    TurnEvent,
)
from gateway.agent.leaves import REGISTRY
from gateway.agent.turn import Turn
from gateway.control.policy import DefaultDecisionTree, MakeDecisionTree
from gateway.control.rules import load_rules
from gateway.control.trees.engine import TreePlan
from gateway.control.trees.loading import load
from gateway.domain.agents import AgentDef, Limits
from gateway.domain.errors import FailureKind, ModelFailed
from gateway.domain.events import Event, Notice
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.messages import (
    BYTES_A_TOKEN,
    Chunk,
    DoneReason,
    Message,
    ToolCall,
    ToolResult,
)
from gateway.domain.model import ToolSpec
from gateway.domain.ports import ToolScope
from gateway.memory.context import Context
from gateway.tools import ToolSource
from tests.fakes.model import says
from tests.fakes.plans import shipped
from tests.fakes.rules import core_definitions, definitions

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
AGENT = AgentDef(AgentId("a"), "fake", "fake-1", tools=("echo", "other"))
SCOPE = ToolScope(SessionKey(AGENT.id, "c", "p"), RunId("r_1"), "somebody")
TOOLS = (ToolSpec("echo", "Echoes."), ToolSpec("other", "Does other things."))
SHIPPED = ("default", "oracle-agent")


def call(id_: str, arguments: str | None = None, *, name: str = "echo") -> ToolCall:
    """Each with arguments of its own, if none are given."""
    return ToolCall(id_, name, arguments if arguments is not None else f'{{"n":"{id_}"}}')


def tree(body: str, *, keys: str = "", final: str = "") -> TreePlan:
    """A tree of somebody's own; `tool_calls` and `done` are declared, and functions are names."""
    body, final = (
        re.sub(r"\((action|condition) :fn", r"(\1 own :fn", one) for one in (body, final)
    )
    ending = f":finally {final}" if final else ""
    text = f'(tree "own" :blackboard-schema {{:tool_calls [] :done false {keys}}} {body} {ending})'
    return load(text, "own.bt", REGISTRY)


def looped(body: str, *, most: str = "(config max_iterations)", keys: str = "") -> TreePlan:
    """The usual preparations, then this again and again until it sets `done`."""
    return tree(
        f"""(sequence
              (action :fn "oracle.build_system_prompt")
              (action :fn "oracle.add_user_question")
              (repeat :max {most} :until "done" {body}))""",
        keys=keys,
    )


EXECUTE = "(for-each $tool_calls :as call :parallel 3 :on-child-fail continue (tool-call $call))"
ANSWERED = '(if (check "len(tool_calls) == 0") (set! :done true))'


def context(*history: Message) -> Context:
    return Context("be kind", history, Message("user", "hi"), 2, 10 * len(history), 5, 20)


@dataclass
class Paper:
    """`trace` has a word for each event (!), chunk and wish (?), in the order in which they came."""

    plan: TreePlan | str = "default"
    limits: Limits = Limits()
    agent: AgentDef = AGENT
    history: Sequence[Message] = ()
    rules: str = ""  # besides the core rules
    decision: MakeDecisionTree = DefaultDecisionTree
    context_id: NodeId | None = None
    known: Mapping[tuple[int, str], ToolResult] = field(default_factory=dict)
    waiting: tuple[Notice, ...] = ()
    trace: list[str] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    wishes: list[Effect] = field(default_factory=list)
    open: dict[int, AskModel | CallTool] = field(default_factory=dict)
    story: list[TurnEvent] = field(default_factory=list)
    at: float = 0.0
    turn: Turn = field(init=False)

    def __post_init__(self) -> None:
        plan = shipped(self.plan) if isinstance(self.plan, str) else self.plan
        own = definitions(self.rules) if self.rules else core_definitions()
        job = Job(
            agent=replace(self.agent, limits=self.limits),
            plan=plan,
            context=context(*self.history),
            tools=TOOLS,
            scope=SCOPE,
            rules=load_rules(own),
            publish=self._hear,
            decision=self.decision,
            context_id=self.context_id,
            known=lambda step, wanted: self.known.get((step, wanted.id)),
            waiting=self.waiting,
            near_at=self.agent.context_window * self.agent.context.warning_percent // 100,
        )
        self.turn = Turn(job, self._emit, self.moment)

    @property
    def moment(self) -> Moment:
        return Moment(NOON + timedelta(seconds=self.at), self.at)

    # -- telling it something

    def begin(self) -> "Paper":
        self.turn.advance()
        return self._noted()

    def tell(self, told: TurnEvent) -> "Paper":
        self.story.append(told)
        self.turn.on(told, self.moment)
        return self._noted()

    def reply(self, text: str, *calls: ToolCall, tokens: int = 10) -> "Paper":
        """To the question that is open; without having been heard in pieces."""
        reply = says(text, *calls, tokens=tokens)
        return self.tell(ModelReplied(self.question.ticket, reply, was_heard=False))

    def hear(self, text: str) -> "Paper":
        """As the driver passes a piece of the reply on."""
        self.turn.pieces.append(text)
        self._emit(Chunk("content", {"content": text}))
        return self.count(text)

    def count(self, text: str) -> "Paper":
        state, ticket = self.turn.state, self.question.ticket
        state.live += len(text.encode()) / BYTES_A_TOKEN
        if state.live >= state.calm:
            self.turn.exceed(ticket)
        return self._noted()

    def break_off(self, kind: FailureKind = "network", *, started: bool = False) -> "Paper":
        failed = ModelFailed("fake", kind, "secret detail", started=started)
        return self.tell(ModelBroke(self.question.ticket, failed))

    def give(
        self,
        id_: str,
        content: str | None = None,
        *,
        is_error: bool = False,
        sources: tuple[ToolSource, ...] = (),
        items: int | None = None,
    ) -> "Paper":
        """The result of an open call, other than those of all others if none is given."""
        [wish] = [one for one in self.calls if one.call.id == id_]
        told = content if content is not None else f"result {id_}"
        result = ToolResult(id_, wish.call.name, told, is_error=is_error)
        return self.tell(ToolReturned(wish.ticket, result, sources, items))

    def give_all(self, content: str | None = None, *, is_error: bool = False) -> "Paper":
        while self.calls:
            self.give(self.calls[0].call.id, content, is_error=is_error)
        return self

    def round(self, *calls: ToolCall, result: str | None = None, **given: Any) -> "Paper":
        """One whole turn of calls."""
        is_error = given.pop("is_error", False)
        return self.reply("", *calls, **given).give_all(result, is_error=is_error)

    def say(self, text: str, run_id: str = "r_2") -> "Paper":
        return self.tell(Steered(RunId(run_id), text))

    def stop(self, reason: DoneReason = "cancelled", *, at_once: bool = True) -> "Paper":
        return self.tell(StopRequested(reason, at_once=at_once))

    def pass_time(self, seconds: float) -> "Paper":
        self.at += seconds
        return self.tell(TimePassed())

    # -- what came of it

    @property
    def question(self) -> AskModel:
        """The one that is open."""
        [wish] = [one for one in self.open.values() if isinstance(one, AskModel)]
        return wish

    @property
    def calls(self) -> list[CallTool]:
        """Those that are open."""
        return [one for one in self.open.values() if isinstance(one, CallTool)]

    @property
    def asked(self) -> list[AskModel]:
        return [one for one in self.wishes if isinstance(one, AskModel)]

    @property
    def called(self) -> list[str]:
        return [one.call.id for one in self.wishes if isinstance(one, CallTool)]

    @property
    def reason(self) -> str | None:
        """Of the end; the type of the error, if it is one."""
        end = self.turn.end
        if end is None:
            return None
        return end.reason if isinstance(end, Finish) else end.error_type

    @property
    def said(self) -> list[Message]:
        return self.turn.said

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [chunk.data for chunk in self.chunks if chunk.type == kind]

    @property
    def system(self) -> list[str]:
        return [shown["system_message"] for shown in self.of("system")]

    def told_of(self, type_: str) -> list[Mapping[str, Any]]:
        return [event.payload for event in self.events if event.type == type_]

    @property
    def results(self) -> list[tuple[str, str, bool]]:
        found = [message.result for message in self.said if message.result]
        return [(result.call_id, result.content, result.is_error) for result in found]

    @property
    def notices(self) -> list[str]:
        """What the model that is asked now is told between the lines."""
        lines = [m.text for m in self.question.messages if m.text.startswith("<system-notice>")]
        return [line for text in lines for line in text.splitlines()[1:-1]]

    # -- taking notes

    def _noted(self) -> "Paper":
        wishes, self.turn.effects[:] = list(self.turn.effects), []
        for wish in wishes:
            self.wishes.append(wish)
            if isinstance(wish, Cancel):
                self.trace.append("?cancel")
                del self.open[wish.ticket]
                continue
            self.open[wish.ticket] = wish
            self.trace.append("?ask" if isinstance(wish, AskModel) else f"?{wish.call.id}")
        for ticket in set(self.open) - set(self.turn.open):
            del self.open[ticket]  # it is granted
        return self

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self.trace.append(f"!{event.type}")

    def _emit(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        kind = chunk.data["system_type"] if chunk.type == "system" else chunk.type
        self.trace.append(str(kind))


def is_valid_for_a_model(messages: Iterable[Message]) -> bool:
    """Every call has its one result right after it, none is orphaned, nobody answers nothing."""
    waiting: list[str] = []
    for message in messages:
        if message.result is not None:
            if not waiting or message.result.call_id != waiting.pop(0):
                return False
        elif waiting:
            return False
        waiting = waiting or [one.id for one in message.tool_calls]
    return not waiting

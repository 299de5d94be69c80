"""One assembly of a run, for lanes, callers who keep their conversation, and subagents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import anyio

from gateway.agent.driver import Driver
from gateway.agent.effects import Emit, Gate, Job, RunControl, RunResult, StopRequest
from gateway.agent.journal import RunJournal
from gateway.agent.leaves import Plans
from gateway.control.notices import notice_of
from gateway.control.policy import DecisionTrees
from gateway.control.rules import RuleSet, RunRules
from gateway.domain.agents import AgentDef, Soul
from gateway.domain.events import Event, Notice
from gateway.domain.ids import AgentId, NodeId
from gateway.domain.mcp import FAMILY, Lacking
from gateway.domain.messages import Message, Node, Price, unpriced
from gateway.domain.ports import Decode, Model, ToolScope
from gateway.memory.context import Besides, Packer


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is wanted of whom, on whose behalf. `earlier` was said before, oldest first; the tree is
    that of the agent `plan_of`; `notices` wait for the run, `kept` is what rules kept for it."""

    agent: AgentDef
    question: str
    scope: ToolScope
    plan_of: AgentId
    soul: Soul | None = None
    earlier: tuple[Node, ...] = ()
    besides: Besides = field(default_factory=Besides)
    notices: tuple[Notice, ...] = ()
    kept: Mapping[str, object] = field(default_factory=dict)
    context_id: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Runner:
    """Builds the job of a run and drives it. The model is metered, and pays from the budgets of the
    session in the assignment's scope."""

    model: Model
    gate: Gate
    plans: Plans
    decisions: DecisionTrees
    rules: Callable[[], RuleSet]
    decode: Decode
    publish: Callable[[Event], None] = field(default=lambda event: None)
    hears: Callable[[str], bool] = field(default=lambda event_type: True)  # does anybody listen?
    price: Price = unpriced
    packer: Packer = field(default_factory=Packer)

    async def answer(
        self,
        assignment: Assignment,
        journal: RunJournal,
        emit: Emit,
        control: RunControl | None = None,
    ) -> RunResult:
        """Cancelling this cancels the turn."""
        control = control or RunControl()
        lacking = await self.lacking(assignment.agent, control)
        job = self.job(assignment, self.rules(), journal, lacking)
        return await self.driver(job, journal, emit, control).drive()

    async def lacking(self, agent: AgentDef, control: RunControl) -> Sequence[Lacking]:
        """The tool servers of the agent that cannot be had now. A run that is stopped meanwhile waits
        for none."""
        if FAMILY not in " ".join(agent.tools):
            return ()
        with anyio.CancelScope() as scope:

            def wake() -> None:
                if any(isinstance(one, StopRequest) for one in control.requests):
                    scope.cancel()

            control.wake = wake
            if control.requests:
                wake()
            return await self.gate.prepare(agent)
        return ()

    def job(
        self,
        assignment: Assignment,
        rules: RuleSet,
        journal: RunJournal,
        lacking: Sequence[Lacking] = (),
    ) -> Job:
        agent, tools = assignment.agent, self.gate.offered(assignment.agent)
        plan = self.plans.of(assignment.plan_of)
        decision = self.decisions.chosen(agent.decision, plan.decision)
        if decision != agent.decision:
            agent = replace(agent, decision=decision)
        question = Message("user", assignment.question)
        soul, earlier, besides = assignment.soul, assignment.earlier, assignment.besides
        return Job(
            agent=agent,
            plan=plan,
            context=self.packer.pack(agent, soul, earlier, question, tools, besides=besides),
            tools=tools,
            scope=assignment.scope,
            rules=RunRules(rules, only=agent.rules, kept=assignment.kept),
            publish=self.publish,
            hears=self.hears,
            decode=self.decode,
            decision=self.decisions.named(decision),
            context_id=assignment.context_id,
            known=journal.result,
            waiting=(*assignment.notices, *map(notice_of, lacking)),
            price=self.price,
        )

    def driver(self, job: Job, journal: RunJournal, emit: Emit, control: RunControl) -> Driver:
        begun = journal.moment()
        return Driver(job, self.model, self.gate, journal, emit, begun, control)

"""A turn beside the lanes: somebody waits for it, and no conversation of ours grows by it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.agent.driver import Driver
from gateway.agent.job import Answer, Emit, Gate, Job
from gateway.agent.plans import Plans
from gateway.agent.preparing import prepared
from gateway.agent.reins import Reins
from gateway.agent.story import Story
from gateway.control.notices import notice_of
from gateway.control.policy import DecisionTrees
from gateway.control.rules.engine import RuleSet, RunRules
from gateway.domain.agents import AgentDef
from gateway.domain.events import Event
from gateway.domain.ids import AgentId
from gateway.domain.messages import Message, Node
from gateway.domain.ports import Clock, Decode, Model, ToolScope
from gateway.domain.prompts import Template
from gateway.domain.souls import Soul
from gateway.domain.usage import Price, unpriced
from gateway.memory.context import Besides, pack


@dataclass(frozen=True, slots=True)
class Errand:
    """What is wanted of whom, on whose behalf. `earlier` was said before, oldest first; the tree is
    that of the agent `plan_of`."""

    agent: AgentDef
    question: str
    scope: ToolScope
    plan_of: AgentId
    soul: Soul | None = None
    earlier: tuple[Node, ...] = ()
    template: Template | None = None


@dataclass(frozen=True, slots=True)
class Aside:
    """The model is metered, and pays from the budgets of the session in the errand's scope."""

    model: Model
    gate: Gate
    plans: Plans
    decisions: DecisionTrees
    rules: Callable[[], RuleSet]
    clock: Clock
    decode: Decode
    publish: Callable[[Event], None] = field(default=lambda event: None)
    price: Price = unpriced

    async def answer(
        self, errand: Errand, story: Story, emit: Emit, reins: Reins | None = None
    ) -> Answer:
        """Whoever cancels this cancels the turn."""
        agent = errand.agent
        reins = reins or Reins()
        lacking = await prepared(self.gate, agent, reins)
        tools = self.gate.offered(agent)
        question = Message("user", errand.question)
        plan = self.plans.of(errand.plan_of)
        besides = Besides(template=errand.template)
        decision = self.decisions.chosen(agent.decision, plan.decision)
        await story.recall()
        job = Job(
            agent=agent,
            plan=plan,
            context=pack(agent, errand.soul, errand.earlier, question, tools, besides=besides),
            tools=tools,
            scope=errand.scope,
            rules=RunRules(self.rules(), only=agent.rules),
            publish=self.publish,
            decode=self.decode,
            decision=self.decisions.named(decision),
            known=story.result,
            waiting=tuple(map(notice_of, lacking)),
            price=self.price,
        )
        driver = Driver(
            job=job,
            model=self.model,
            gate=self.gate,
            story=story,
            clock=self.clock,
            emit=emit,
            reins=reins,
        )
        return await driver.drive()

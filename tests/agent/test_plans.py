"""Trees of agents are told apart by their text."""

from gateway.agent.plans import Plans
from gateway.domain.ids import AgentId
from tests.fakes.plans import TEXTS
from tests.fakes.texts import FakeTexts

ONE, OTHER = AgentId("one"), AgentId("other")


async def test_another_text_has_another_digest() -> None:
    texts = FakeTexts(**{"a.bt": TEXTS["default"], "b.bt": TEXTS["oracle-agent"]})
    plans = Plans(texts, {ONE: "a.bt", OTHER: "b.bt"})
    await plans.load()
    before = plans.digest(ONE)
    texts.texts["a.bt"] = TEXTS["default"] + "; a remark\n"
    await plans.refresh("a.bt")

    assert len({before, plans.digest(ONE), plans.digest(OTHER)}) == 3

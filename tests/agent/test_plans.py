"""The trees of one generation are read; one that cannot be used is an error with its place."""

import pytest

from gateway.agent.leaves import SHIPPED, Plans
from gateway.control.policy import DefaultDecisionTree, add_built_in, choose_decision
from gateway.control.trees.reader import TreeInvalid
from gateway.domain.errors import SoulUnreadable
from gateway.domain.ids import AgentId
from tests.agent.paper import Paper, call
from tests.fakes.plans import TEXTS
from tests.fakes.texts import FakeTexts

ME, YOU = AgentId("me"), AgentId("you")
ONCE = '(tree "once" (llm-call))'
TWICE = '(tree "twice" (sequence (llm-call) (llm-call)))'
BAD = {
    "no tree": "(",
    "an unknown function": '(tree "t" (action x :fn "rm.rf"))',
    "an unknown subtree": '(tree "t" (subtree nowhere))',
    "an unknown root": '(tree "t" (check "secrets.key == 1"))',
    "nothing": "",
}


async def loaded(texts: FakeTexts) -> Plans:
    plans = Plans(texts, {ME: "mine.bt", YOU: "yours.bt"})
    await plans.load()
    return plans


def two(mine: str = ONCE) -> FakeTexts:
    return FakeTexts(**{"mine.bt": mine, "yours.bt": ONCE})


@pytest.mark.requirement("S-002-BT-12")
@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
async def test_a_tree_that_cannot_be_used_is_refused_at_start(text: str) -> None:
    with pytest.raises(TreeInvalid, match="mine.bt:1"):
        await loaded(two(text))


async def test_a_file_that_is_not_there_is_refused_at_start() -> None:
    with pytest.raises(SoulUnreadable, match="yours.bt"):
        await loaded(FakeTexts(**{"mine.bt": ONCE}))


async def test_warnings_of_a_tree_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    await loaded(two('(tree "t" :blackboard-schema {:unread 1} (llm-call))'))

    said = [str(vars(one).get("why", "")) for one in caplog.records]
    assert any("mine.bt:1" in why and ":unread is never read" in why for why in said)


async def test_agents_with_one_file_share_one_tree() -> None:
    reads: list[str] = []

    class Counting:
        async def read(self, path: str) -> str:
            reads.append(path)
            return ONCE

    plans = Plans(Counting(), {ME: "one.bt", YOU: "one.bt"})
    await plans.load()

    assert plans.of(ME) is plans.of(YOU)
    assert reads == ["one.bt"]


@pytest.mark.parametrize("name", sorted(TEXTS))
async def test_the_shipped_trees_can_be_used(name: str) -> None:
    path = str(SHIPPED / f"{name}.bt")
    plans = Plans(FakeTexts(**{path: TEXTS[name]}), {ME: path})
    await plans.load()

    paper = Paper(plans.of(ME)[0]).begin().round(call("0")).reply("done")

    assert plans.of(ME)[0].name == name
    assert paper.reason == "answered"


async def test_another_text_has_another_digest() -> None:
    texts = two()
    plans = await loaded(texts)
    before = plans.of(ME)[1]
    texts.texts["mine.bt"] = ONCE + "; a remark\n"
    await plans.read("mine.bt")

    assert before == plans.of(YOU)[1]
    assert before != plans.of(ME)[1]


async def test_a_tree_that_names_a_policy_which_nobody_offers_is_refused_with_its_place() -> None:
    text = '(tree "t"\n  :decision "thrifty"\n  (llm-call))'
    plans = Plans(FakeTexts(**{"mine.bt": text}), {ME: "mine.bt"})
    knowing = Plans(
        FakeTexts(**{"mine.bt": text}),
        {ME: "mine.bt"},
        decisions=add_built_in({"thrifty": DefaultDecisionTree}),
    )

    with pytest.raises(TreeInvalid, match='mine.bt:2:3: error BT027: no decision tree .*"thrifty"'):
        await plans.load()
    await knowing.load()

    assert knowing.of(ME)[0].decision == "thrifty"


@pytest.mark.parametrize(
    ("by_agent", "by_tree", "chosen"),
    [
        ("default", None, "default"),
        ("default", "default", "default"),
        ("default", "thrifty", "thrifty"),
        ("strict", "thrifty", "strict"),
        ("strict", None, "strict"),
    ],
)
def test_what_a_tree_says_of_its_policy_holds_unless_the_agent_says_otherwise(
    by_agent: str, by_tree: str | None, chosen: str
) -> None:
    assert choose_decision(by_agent, by_tree) == chosen

"""The souls of one generation are read; what cannot be used is an error."""

import pytest

from gateway.domain.errors import SoulUnreadable
from gateway.domain.ids import AgentId
from gateway.memory.souls import Souls
from tests.fakes.clock import FakeClock
from tests.fakes.texts import FakeTexts

A, B = AgentId("a"), AgentId("b")


async def test_agents_have_their_souls_and_templates() -> None:
    texts = FakeTexts(one="I am.", two="You are.", prompt="a {soul}")
    souls = Souls(texts, {A: "one", B: "two"}, clock=FakeClock(), templates={B: "prompt"})
    await souls.load()
    soul, template = souls.by_agent[A], souls.templates.get(B)

    assert (soul.content, soul.loaded_from, soul.token_count) == ("I am.", "one", 2)
    assert template is not None
    assert template.render({"soul": "x"}) == "a x"
    assert souls.templates.get(A) is None


async def test_a_template_that_is_wrong_at_start_is_an_error() -> None:
    souls = Souls(FakeTexts(p="}"), {}, clock=FakeClock(), templates={A: "p"})

    with pytest.raises(SoulUnreadable, match="p:1:1: write {{ or }} for"):
        await souls.load()


async def test_a_soul_that_is_missing_at_start_is_an_error() -> None:
    with pytest.raises(SoulUnreadable, match="nowhere cannot be read"):
        await Souls(FakeTexts(), {A: "nowhere"}, clock=FakeClock()).load()

"""Souls are read at start and reloaded; a bad version never replaces a good one."""

import anyio
import pytest

from gateway.domain.errors import SoulUnreadable
from gateway.domain.ids import AgentId
from gateway.memory.souls import Souls
from tests.fakes.clock import FakeClock
from tests.fakes.texts import FakeTexts

A, B = AgentId("a"), AgentId("b")


@pytest.mark.requirement("S-003-Soul-01", "S-003-Soul-03", "S-003-Soul-04")
async def test_a_changed_soul_is_used_and_a_bad_one_is_not() -> None:
    clock, texts = FakeClock(), FakeTexts(one="first", two="other")
    souls = Souls(texts, {A: "one", B: "two"}, clock=clock)
    await souls.load()
    before = souls.by_agent.get(A)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(souls.keep_fresh)
            await texts.watching.wait()
            clock.move(60)
            await texts.write("one", "second")
            after = souls.by_agent.get(A)
            await texts.write("one", None)
            kept, problems = souls.by_agent.get(A), souls.problems
            await texts.write("one", "third")
            group.cancel_scope.cancel()

    assert before is not None
    assert after is not None
    assert (before.content, after.content) == ("first", "second")
    assert after.loaded_at > before.loaded_at
    assert (after.loaded_from, after.token_count) == ("one", 2)
    assert kept == after
    assert len(problems) == 1
    assert "stays in use" in problems[0]
    assert souls.problems == ()


async def test_a_changed_template_is_used_and_a_bad_one_is_not() -> None:
    texts = FakeTexts(soul="I am.", prompt="a {soul}")
    souls = Souls(texts, {A: "soul", B: "soul"}, clock=FakeClock(), templates={B: "prompt"})
    await souls.load()
    used = []

    def use() -> None:
        template = souls.templates.get(B)
        used.append((template and template.render({"soul": "x"}), souls.problems))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(souls.keep_fresh)
            await texts.watching.wait()
            for text in ("b {soul}", "c {sole}", None, "d"):
                await texts.write("prompt", text)
                use()
            group.cancel_scope.cancel()

    kept = "; the version before stays in use"
    assert used == [
        ("b x", ()),
        ("b x", (f"prompt:1:3: there is no placeholder {{sole}}{kept}",)),
        ("b x", (f"prompt cannot be read: No such file{kept}",)),
        ("d", ()),
    ]
    assert souls.templates.get(A) is None


async def test_a_template_that_is_wrong_at_start_is_an_error() -> None:
    souls = Souls(FakeTexts(p="}"), {}, clock=FakeClock(), templates={A: "p"})

    with pytest.raises(SoulUnreadable, match="p:1:1: this brace"):
        await souls.load()


async def test_a_soul_that_is_missing_at_start_is_an_error() -> None:
    with pytest.raises(SoulUnreadable, match="nowhere cannot be read"):
        await Souls(FakeTexts(), {A: "nowhere"}, clock=FakeClock()).load()

"""What a model or its line gets wrong costs one call or one try, never the run."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_server import Asked, Reply, Script
from tests.scenarios.stage import Stage, is_told, line_of, shown_to

SENDABLE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def calling(name: str) -> Script:
    """Calls a tool by this name, and answers with what came of it. As servers do, it refuses a
    request that names a tool as no tool can be named."""

    def reply(asked: Asked) -> Reply:
        if any(not SENDABLE.fullmatch(one) for one in names_in(asked.body["messages"])):
            return Reply(status=400)
        if not is_told(asked):
            return Reply("", calls=[("c1", name, "{}")])
        return Reply("I see.")

    return reply


def names_in(messages: list[dict[str, Any]]) -> list[str]:
    names = [call["function"]["name"] for one in messages for call in one.get("tool_calls") or ()]
    for one in messages:
        blocks = one["content"] if isinstance(one["content"], list) else []
        names += [block["name"] for block in blocks if block["type"] == "tool_use"]
    return names


@pytest.mark.parametrize("name", ["", "f" * 65, "f" * 5_000, "no such tool!", "näme"])
async def test_a_call_with_a_name_that_no_tool_can_have_is_answered_to_the_model(
    stage: Stage, name: str
) -> None:
    async with stage.open(calling(name), tools=("echo",)) as scene:
        first = await scene.ask("Do it.")
        second = await scene.ask("And again?")
        history = await scene.client.call("chat.history", session_key="main:websocket:local:main")

    [told] = [text for kind, text in shown_to(scene.model.requests[1]) if kind == "result"]
    assert "There is no tool" in told
    assert [line_of(chunks[-1]) for chunks in (first, second)] == ["done answered"] * 2
    assert history["messages"][-1]["content"] == "I see."


BROKEN = b"data: {nonsense\n\n"


@pytest.mark.parametrize("broken", [BROKEN, b'data: {"a": "\xff"}\n\n'])
async def test_a_stream_of_broken_json_is_asked_for_again_before_any_text(
    stage: Stage, broken: bytes
) -> None:
    script = [Reply(raw=[broken]), Reply("It is so.")]
    async with stage.open(script, provider="max_retries = 1") as scene:
        chunks = await scene.ask("Is it so?")

    assert line_of(chunks[-1]) == "done answered"
    assert len(scene.model.requests) == 2


async def test_a_whole_answer_of_broken_json_is_asked_for_again(stage: Stage) -> None:
    script = [Reply(body=b"<html>busy</html>"), Reply("It is so.")]
    agent = "stream = false"
    async with stage.open(script, agent=agent, provider="max_retries = 1") as scene:
        chunks = await scene.ask("Is it so?")

    assert line_of(chunks[-1]) == "done answered"


async def test_broken_json_after_text_is_not_asked_for_again(tmp_path: Path) -> None:
    def reply(asked: Asked) -> Reply:
        piece = b'data: {"id":"1","choices":[{"delta":{"content":"It "}}]}\n\n'
        return Reply(raw=[piece, BROKEN]) if asked.number == 1 else Reply("It is so.")

    async with Stage("openai", "default", tmp_path).open(
        reply, provider="max_retries = 1"
    ) as scene:
        chunks = await scene.ask("Is it so?")

    assert line_of(chunks[-1]) == "error provider_error"
    assert len(scene.model.requests) == 1

"""What a model or its line gets wrong costs one call or one try, never the run."""

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.model_server import Asked, Reply, Script, Wire
from tests.scenarios.stage import WIRES, Stage, is_told, line_of, shown_to

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


TREE = """
(tree "mine"
  :blackboard-schema {{:messages [] :tools [] :tool_calls []}}
  (sequence
    (action system :fn "oracle.build_system_prompt")
    (action history :fn "oracle.add_tree_history")
    (action question :fn "oracle.add_user_question")
    (llm-call :messages $messages :tools $tools)
    {before}
    (for-each $tool_calls :as call :on-child-fail continue (sequence (tool-call $call) {during}))
    {after}
    (action results :fn "oracle.append_tool_results")
    (llm-call :messages $messages :tools $tools)
    (action keep :fn "oracle.save_exchange")))
"""
MIDDLE = '(action again :fn "oracle.add_user_question")'
OLD = '(action old :fn "oracle.add_tree_history")'
CLEAR = '(action clear :fn "oracle.reset_state")'
ODD = {
    "a question before the calls": {"before": MIDDLE},
    "a question between the results": {"during": MIDDLE},
    "the history in the middle": {"before": OLD, "after": MIDDLE},
    "a reset in the middle": {"before": CLEAR, "after": MIDDLE},
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("odd", ODD)
async def test_no_tree_comes_between_calls_and_their_results(
    odd: str, wire: Wire, tmp_path: Path
) -> None:
    steps = {name: ODD[odd].get(name, "") for name in ("before", "during", "after")}
    file = tmp_path / "mine.bt"
    await anyio.Path(file).write_text(TREE.format(**steps), encoding="utf-8")
    calls = [(f"c{n}", "echo", json.dumps({"text": str(n)})) for n in range(3)]

    def reply(asked: Asked) -> Reply:
        return Reply("I see.") if asked.number % 2 == 0 else Reply("", calls=calls)

    async with Stage(wire, str(file), tmp_path).open(reply, tools=("echo",)) as scene:
        ends = [line_of((await scene.ask(text))[-1]) for text in ("one", "two")]

    assert ends == ["done answered"] * 2
    assert all(is_in_order(asked) for asked in scene.model.requests)
    assert "two" in [text for _, text in shown_to(scene.model.requests[3])]


def is_in_order(asked: Asked) -> bool:
    """Each answer's calls are followed by their results at once."""
    kinds = "".join({"call": "c", "result": "r"}.get(kind, "-") for kind, _ in shown_to(asked))
    rounds = [match.span() for match in re.finditer("c+r+", kinds)]
    outside = re.sub("c+r+", "", kinds)
    return not {"c", "r"} & set(outside) and all(
        kinds[start:end].count("c") == kinds[start:end].count("r") for start, end in rounds
    )

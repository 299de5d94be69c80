"""What servers of one wire do in their own way, in a whole turn: the same however the bytes are cut."""

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.client import post_chat
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server

DONE = b"data: [DONE]\n\n"
BEAT = b": OPENROUTER PROCESSING\n\n"
SIGNED = {"google": {"thought_signature": "c2lnbmVk"}}
THOUGHT = {"type": "reasoning.text", "index": 0, "format": "f"}


def event(delta: Mapping[str, Any], finish: str | None = None, **more: object) -> bytes:
    choice = {"delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"id": "1", "choices": [choice], **more}).encode()


def used(sent: int, received: int, **more: object) -> Mapping[str, object]:
    return {"prompt_tokens": sent, "completion_tokens": received, **more}


def call(id: str, **more: object) -> Mapping[str, object]:
    return {"id": id, "function": {"name": "time", "arguments": "{}"}, **more}


# No index, no id, "stop" on every chunk, a signature at the first call.
GEMINI = (
    event({"content": "Well. "}, "stop")
    + event({"tool_calls": [call("", extra_content=SIGNED)]}, "stop")
    + event({"tool_calls": [call("")]}, "stop", usage=used(40, 5))
    + DONE
)
# Comments, thinking told twice, usage and cost after the finish, in a choice of its own.
OPENROUTER = (
    BEAT
    + event({"reasoning": "hm", "reasoning_details": [{**THOUGHT, "text": "hm"}]})
    + BEAT
    + event({"reasoning": None, "reasoning_details": [{**THOUGHT, "signature": "s"}]})
    + event({"content": "Well. ", "tool_calls": [call("t1", index=0)]})
    + event({"content": ""}, "tool_calls")
    + event({"content": ""}, usage=used(40, 5, cost=0.25))
    + DONE
)
LAST = event({"content": "So it is."}, "stop", usage=used(60, 5, cost=0.5)) + DONE


def cut(stream: bytes, seed: int) -> Iterator[bytes]:
    sizes = random.Random(seed)
    while stream:
        size = sizes.choice((1, 2, 3, 7, 30, 200))
        yield stream[:size]
        stream = stream[size:]


async def asked_again(
    tmp_path: Path, name: str, stream: bytes, seed: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The answer, and what the server was shown of its own reply."""

    def script(asked: Asked) -> Reply:
        return Reply(raw=list(cut(stream if asked.number == 1 else LAST, seed)))

    async with (
        scripted_server(script) as model,
        running(Setup(model.url, name=name, tools=("time",)), tmp_path) as site,
    ):
        answer = await post_chat(site.url, "how late is it?")

    assert (answer.status, answer.json["response"]) == (200, "So it is.")
    assert answer.json["tokens_used"] == 110
    return answer.json, model.requests[1].body["messages"][-4:]


@pytest.mark.parametrize("seed", range(3))
async def test_gemini_gets_its_signature_back_and_each_call_has_an_id(
    tmp_path: Path, seed: int
) -> None:
    answer, (_, said, *results) = await asked_again(tmp_path, "gemini", GEMINI, seed)

    ids = [one["id"] for one in said["tool_calls"]]
    assert len({*ids, ""}) == 3
    assert [one.get("extra_content") for one in said["tool_calls"]] == [SIGNED, None]
    assert [one["tool_call_id"] for one in results] == ids
    assert [one["status"] for one in answer["tool_calls_made"]] == ["success"] * 2


@pytest.mark.parametrize("seed", range(3))
async def test_openrouter_says_its_cost_and_gets_its_reasoning_back(
    tmp_path: Path, seed: int
) -> None:
    answer, shown = await asked_again(tmp_path, "openrouter", OPENROUTER, seed)

    assert answer["usage"] == {"input_tokens": 100, "output_tokens": 10, "cost_usd": 0.75}
    assert shown[-2]["reasoning_details"] == [{**THOUGHT, "text": "hm", "signature": "s"}]


async def test_an_error_that_is_a_list_is_an_error(tmp_path: Path) -> None:
    body = b'[{"error": {"code": 400, "message": "of org-77", "status": "INVALID_ARGUMENT"}}]'
    async with (
        scripted_server([Reply(status=400, body=body)]) as model,
        running(Setup(model.url, name="gemini"), tmp_path) as site,
    ):
        answer = await post_chat(site.url, "hi")

    assert (answer.status, answer.json["error"]["provider_status"]) == (502, 400)
    assert "refused the request" in answer.json["error"]["message"]
    assert b"org-77" not in answer.body


BROKEN = [
    [b"data: {nonsense}\n\n"],
    [b'data: {"choices":[{"delta":{"content":"hi"}}\n\n'],
    [b'data: {"choices":[{"delta":{"reasoning":"hm"}}]}\n\n', b"data: \xff\xfe\n\n"],
]


@pytest.mark.parametrize("raw", BROKEN)
async def test_broken_json_before_any_text_is_asked_for_again(
    tmp_path: Path, raw: list[bytes]
) -> None:
    async with (
        scripted_server([Reply(raw=raw), Reply("whole")]) as model,
        running(Setup(model.url), tmp_path) as site,
    ):
        answer = await post_chat(site.url, "hi")

    assert (answer.status, answer.json["response"], len(model.requests)) == (200, "whole", 2)


async def test_broken_json_behind_text_is_not_asked_for_again(tmp_path: Path) -> None:
    raw = [b'data: {"choices":[{"delta":{"content":"so far"}}]}\n\n', b"data: {nonsense}\n\n"]
    async with (
        scripted_server([Reply(raw=raw), Reply("whole")]) as model,
        running(Setup(model.url), tmp_path) as site,
    ):
        answer = await post_chat(site.url, "hi")

    assert (answer.status, len(model.requests)) == (502, 1)

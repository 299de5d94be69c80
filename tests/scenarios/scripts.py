"""What model servers are told to do in more than one walk."""

from collections.abc import Sequence
from typing import Any

from bench.model_server import Call
from tests.fakes.model_server import Asked, Reply


def echo(asked: Asked) -> Reply:
    """Answers with what it was asked."""
    return Reply(f"answer to {asked.last_text}")


def clock_first(asked: Asked) -> Reply:
    """Asks for the clock once, and then answers."""
    if asked.body["messages"][-1]["role"] == "tool":
        return Reply("it is late", usage=(30, 3))
    return Reply("let me see", calls=[CLOCK], usage=(20, 2))


CLOCK: Call = ("call_1", "time", '{"utc_offset_hours":2}')


def history_of(asked: Asked) -> list[tuple[str, Any]]:
    """Role and text of what was sent, without the system prompt."""
    messages: Sequence[dict[str, Any]] = asked.body["messages"]
    return [(one["role"], one["content"]) for one in messages if one["role"] != "system"]


def shown(history: dict[str, Any]) -> list[tuple[str, str]]:
    """Role and text of a page of chat.history."""
    return [(one["role"], one["content"]) for one in history["messages"]]

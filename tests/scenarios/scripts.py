"""What model servers are told to do in more than one walk, and a bound that no file may set."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.model_server import Call
from gateway.config.values import GatewayConfig
from gateway.domain.agents import Limits
from gateway.domain.facts import OPENING
from tests.fakes.client import Client, connected
from tests.fakes.gateway import Setup, Site, running
from tests.fakes.model_server import Asked, ModelServer, Reply, Script, scripted_server


@asynccontextmanager
async def talking(script: Script, folder: Path) -> AsyncIterator[tuple[ModelServer, Site, Client]]:
    """A gateway as it comes, with its model and a client."""
    async with (
        scripted_server(script) as model,
        running(Setup(model.url), folder) as site,
        connected(site.url) as client,
    ):
        yield model, site, client


def echo(asked: Asked) -> Reply:
    """Answers with what it was asked."""
    return Reply(f"answer to {asked.last_text}")


def clock_first(asked: Asked) -> Reply:
    """Asks for the clock once, and then answers."""
    if asked.body["messages"][-1]["role"] == "tool":
        return Reply("it is late", usage=(30, 3))
    return Reply("let me see", calls=[CLOCK], usage=(20, 2))


CLOCK: Call = ("call_1", "time", '{"utc_offset_hours":2}')


def in_a_second(config: GatewayConfig) -> GatewayConfig:
    """So much time has each run."""
    agents = tuple(replace(agent, limits=Limits(timeout_seconds=1)) for agent in config.agents)
    return replace(config, agents=agents)


def history_of(asked: Asked) -> list[tuple[str, Any]]:
    """Role and text of the conversation that was sent: neither the system prompt nor memory."""
    sent = [(one["role"], one["content"]) for one in _messages(asked) if one["role"] != "system"]
    return [(role, text) for role, text in sent if not str(text).startswith(OPENING)]


def memory_of(asked: Asked) -> str:
    """What the model was shown of its memory, right before the question."""
    before = [one["content"] for one in _messages(asked)[-2:-1]]
    return "".join(text for text in before if text.startswith(OPENING))


def _messages(asked: Asked) -> Sequence[dict[str, Any]]:
    messages: Sequence[dict[str, Any]] = asked.body["messages"]
    return messages


def shown(history: dict[str, Any]) -> list[tuple[str, str]]:
    """Role and text of a page of chat.history."""
    return [(one["role"], one["content"]) for one in history["messages"]]

"""MCP: the servers whose tools agents have, and what is offered to the clients of others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.domain.ids import AgentId
from gateway.domain.model import ToolSpec
from gateway.domain.secrets import Secret

FAMILY = "mcp:"  # in an agent's list: mcp:SERVER, or mcp:SERVER/TOOL


@dataclass(frozen=True, slots=True)
class McpServerDef:
    """One server: `url`, or a `command` with its arguments. `user_header` carries the principal."""

    name: str
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, Secret] = field(default_factory=dict)
    headers: Mapping[str, Secret] = field(default_factory=dict)
    timeout_s: float = 10.0  # until it is connected and has listed its tools
    retry_attempts: int = 3
    user_header: str = "X-User-ID"


@dataclass(frozen=True, slots=True)
class McpServing:
    """What clients get at /mcp; `tools` as an agent's list has them."""

    is_enabled: bool = False
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Client:
    """Who calls from outside. `agents`: the only ones it may reach; None: all."""

    principal: str
    agents: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What a client's call came to; `facts` are its parts for programs."""

    text: str
    is_error: bool = False
    facts: Mapping[str, object] = field(default_factory=dict)


class Desk(Protocol):
    """What is served over it: tools as they are, and agents that answer."""

    def offered(self, client: Client) -> Sequence[ToolSpec]: ...

    def agents(self, client: Client) -> Sequence[AgentId]: ...

    async def call(self, client: Client, name: str, arguments: Mapping[str, object]) -> Served: ...

    async def ask(
        self, client: Client, message: str, *, agent: str | None, conversation: str | None
    ) -> Served:
        """Like POST /api/chat: accepted, answered, kept."""
        ...

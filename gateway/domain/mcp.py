"""MCP: the servers whose tools agents use, and the tools and agents that are served to MCP
clients."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId, Secret
from gateway.domain.model import ToolSpec
from gateway.domain.scrubbing import scanner
from gateway.domain.settings import setting

FAMILY = "mcp:"  # in an agent's list: mcp:SERVER, or mcp:SERVER/TOOL
DEPTH_HEADER = "x-exogate-depth"  # sent with calls by agents, which may not call agents
SHORTEST_SECRET = 6  # characters; a shorter text occurs in other texts by chance
CLIENT = "mcp_client"  # key of the client in the state of a request

Door = Callable[[Any, Any, Any], Awaitable[None]]  # an ASGI application


@dataclass(frozen=True, slots=True)
class McpServerDef:
    """One server, reached by `url` or started by `command`. `user_header` carries the principal.
    `hidden` are the secrets in `env` and `headers`."""

    name: str
    url: str | None = setting(None, "Its address: https, or this machine.", form="url")
    command: str | None = setting(None, "The program to start instead of a url; without a shell.")
    args: tuple[str, ...] = setting((), "Arguments of the program.", form="any")
    env: Mapping[str, Secret] = setting(
        {}, "Its environment; values may be references.", form="any", names="secret"
    )
    headers: Mapping[str, Secret] = setting(
        {}, "Extra headers; values may be references.", form="any", names="header"
    )
    timeout_s: float = setting(10.0, "Seconds to connect and to list its tools.", 0.1, 600)
    retry_attempts: int = setting(3, "Retries: of connecting, and of repeatable calls.", 0, 10)
    user_header: str = setting("X-User-ID", "Header that names the user.", form="header")
    hidden: tuple[Secret, ...] = ()

    def scrubbed(self, text: str) -> str:
        """Returns the text without the server's secrets, which some servers repeat in errors."""
        values = [one.reveal() for one in self.hidden]
        words = {word for value in values for word in (value, *value.split()[-1:])}  # Bearer WORD
        marks = ((word, "***") for word in sorted(words) if len(word) >= SHORTEST_SECRET)
        return scanner(tuple(marks)).text(text)


McpState = Literal["idle", "connected", "failing"]


@dataclass(frozen=True, slots=True)
class McpStatus:
    """The status of a server; idle: no agent has used it lately. `version` is the version of the
    protocol."""

    name: str
    state: McpState
    version: str | None = None
    tools: int = 0
    why: str | None = None


@dataclass(frozen=True, slots=True)
class UnreachableServer:
    """A server of an agent that cannot be reached, with the reason."""

    server: str
    why: str


class McpServers(Protocol):
    """The MCP servers, as the gate and the status pages use them."""

    async def prepare(self, agent: AgentDef) -> Sequence[UnreachableServer]:
        """Connects the servers of the agent. Returns those that cannot be reached."""
        ...

    def statuses(self) -> Sequence[McpStatus]: ...

    def outcomes(self) -> Mapping[tuple[str, str], int]:
        """Counts calls by server and outcome since the start."""
        ...


class NoServers:
    """Implements McpServers if none is configured."""

    async def prepare(self, agent: AgentDef) -> Sequence[UnreachableServer]:
        return ()

    def statuses(self) -> Sequence[McpStatus]:
        return ()

    def outcomes(self) -> Mapping[tuple[str, str], int]:
        return {}


def servers_in(tools: Sequence[str]) -> Sequence[str]:
    """Returns the servers that an agent's list of tools names, each once."""
    named = (one.removeprefix(FAMILY) for one in tools if one.startswith(FAMILY))
    return tuple(dict.fromkeys(name.partition("/")[0] for name in named))


@dataclass(frozen=True, slots=True)
class McpServing:
    """The plugins that are served at /mcp; `tools` has the form of an agent's list."""

    is_enabled: bool = setting(False, "Whether POST /mcp answers.", key="enabled")
    tools: tuple[str, ...] = setting(
        (), "Names of the plugins whose tools are served.", refers="plugin", unique=""
    )


@dataclass(frozen=True, slots=True)
class McpClient:
    """A client of /mcp. `agents` are the agents that it may reach; None: all."""

    principal: str
    agents: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """The result of a client's call; `facts` is its structured content."""

    text: str
    is_error: bool = False
    facts: Mapping[str, object] = field(default_factory=dict)


class Desk(Protocol):
    """Serves tools and agents to MCP clients."""

    def offered(self, client: McpClient) -> Sequence[ToolSpec]: ...

    def agents(self, client: McpClient) -> Sequence[AgentId]: ...

    async def call(
        self, client: McpClient, name: str, arguments: Mapping[str, object]
    ) -> Served: ...

    async def ask(
        self, client: McpClient, message: str, *, agent: str | None, conversation: str | None
    ) -> Served:
        """Does the same as POST /api/chat: the message is accepted, answered and kept."""
        ...

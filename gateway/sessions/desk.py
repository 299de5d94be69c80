"""What clients of MCP get: tools as the usual agent would have them, and agents that answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.agent.job import Gate
from gateway.domain.agents import AgentDef
from gateway.domain.bindings import Address, speaker
from gateway.domain.errors import Busy, NoRoute, NotOfProject, StoreUnavailable
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.inbound import Inbound
from gateway.domain.mcp import Client, Served
from gateway.domain.messages import ToolCall
from gateway.domain.model import ToolSpec
from gateway.domain.ports import Decode, Encode, Ids, ToolScope
from gateway.sessions.front import Front
from gateway.sessions.listening import spoken, whole

CHANNEL = "api"  # of what is asked: conversations are those of POST /api/chat
LATE = "The agent reached its time limit. What there is:\n"
AWAY = "The gateway's store cannot commit at the moment; nothing was accepted. Try again later."


@dataclass(frozen=True, slots=True)
class ServedDesk:
    """Implements the Desk port. `agent` has what is served for its tools."""

    front: Front
    gate: Gate
    agent: AgentDef
    encode: Encode
    decode: Decode
    ids: Ids

    def offered(self, client: Client) -> Sequence[ToolSpec]:
        return self.gate.offered(self._agent_for(client))

    def agents(self, client: Client) -> Sequence[AgentId]:
        at = Address(CHANNEL, client.principal)
        return [
            agent
            for agent in self.front.agents
            if client.agents is None or agent in client.agents
            if self.front.router.answers(agent, at)
        ]

    async def call(self, client: Client, name: str, arguments: Mapping[str, object]) -> Served:
        call = ToolCall(self.ids.new(), name, self.encode(arguments).decode())
        key = SessionKey(self.agent.id, "mcp", client.principal)
        person = speaker(CHANNEL, client.principal, client.principal)  # as one who chats is known
        scope = ToolScope(key, RunId(f"r_{call.id}"), person)
        result = await self.gate.call(self._agent_for(client), call, scope)
        return Served(result.content, result.is_error)

    async def ask(
        self, client: Client, message: str, *, agent: str | None, conversation: str | None
    ) -> Served:
        asked = conversation or self.ids.new()
        address = Address(CHANNEL, client.principal, asked)
        inbound = Inbound(address, message, requested_agent=agent)
        try:
            return await self._answer(client, inbound)
        except StoreUnavailable:
            return Served(AWAY, is_error=True)
        except (Busy, NoRoute, NotOfProject) as error:
            return Served(f"{error}.", is_error=True)

    async def _answer(self, client: Client, inbound: Inbound) -> Served:
        reached, asked = self.agents(client), inbound.requested_agent
        known = f"Agents: {', '.join(reached) or 'none'}."
        if asked is not None and asked not in reached:
            return Served(f"There is no agent {asked[:64]!r}. {known}", is_error=True)
        if self.front.router.resolve(inbound.address, requested=asked).agent_id not in reached:
            told = "The agent that answers there is out of your reach; name another."
            return Served(f"{told} {known}", is_error=True)
        accepted = await self.front.reception.accept(inbound)
        run_id: str = accepted.run_id
        events = await whole(await self.front.run(run_id), self.decode)
        while "merged_into" in events[-1]:  # one turn answers it together with a later message
            run_id = events[-1]["merged_into"]
            events = await whole(await self.front.run(run_id), self.decode)
        end = events[-1]
        is_late = end.get("reason") == "timeout"
        text = end["message"] if end["type"] == "error" else spoken(events)
        facts = {"conversation_id": inbound.address.peer, "run_id": run_id}
        return Served(
            f"{LATE}{text}" if is_late else text,
            is_error=is_late or end["type"] == "error",
            facts={"response": text, **facts},
        )

    def _agent_for(self, client: Client) -> AgentDef:
        """Whoever does not reach the agent has none of its tools."""
        return self.agent if self.agent.id in self.agents(client) else replace(self.agent, tools=())

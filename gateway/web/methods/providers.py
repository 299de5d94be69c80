"""provider.test: one tiny question to a provider."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import anyio
from pydantic import BaseModel, ConfigDict

from gateway.domain.agents import AgentDef
from gateway.domain.budgets import BudgetExceeded, Payer
from gateway.domain.errors import GatewayError, ModelFailed
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.messages import Message
from gateway.domain.model import ModelReply, ModelRequest
from gateway.domain.ports import Ids, Model
from gateway.web.methods.chat import Text
from gateway.web.published.about import ProviderTested
from gateway.web.rpc import Call, Method

QUESTION = "Answer with the single word: ready"
MOST_TOKENS = 32
WITHIN_S = 60.0


class Tested(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    provider: Text | None = None
    model: Text | None = None


class NothingToTest(GatewayError):
    code = "nothing_to_test"


@dataclass(frozen=True, slots=True)
class ProviderTest:
    """The model is metered: what it takes is reserved and recorded. `defaults` has every provider, with
    the model that is asked if no agent uses it."""

    model: Model
    ids: Ids
    agents: Sequence[AgentDef]
    defaults: Mapping[str, str | None]

    async def test(self, name: str | None, model: str | None) -> ProviderTested:
        try:
            reply = await self._ask(self._agent(name, model))
        except (BudgetExceeded, NothingToTest) as refusal:
            return {"ok": False, "kind": refusal.code, "message": str(refusal)}
        except ModelFailed as failed:
            return {"ok": False, "kind": failed.kind, "message": str(failed)}
        return {
            "ok": True,
            "provider": reply.provider,
            "model": reply.model,
            "text": reply.text,
            "tokens": reply.usage.total,
            "estimated": reply.usage.estimated,
        }

    async def _ask(self, agent: AgentDef) -> ModelReply:
        run_id = RunId(f"r_{self.ids.new()}")
        payer = Payer(SessionKey(agent.id, "cli", "provider-test", run_id), run_id)
        request = ModelRequest(
            provider=agent.provider,
            model=agent.model,
            system="",
            messages=(Message("user", QUESTION),),
            max_tokens=MOST_TOKENS,
            stream=agent.stream,
            deadline_s=WITHIN_S,
            payer=payer,
        )
        with anyio.move_on_after(WITHIN_S):
            return await self.model.reply(request, lambda _delta: None)
        raise ModelFailed(agent.provider, "timeout", f"no complete reply within {WITHIN_S:g} s")

    def _agent(self, name: str | None, model: str | None) -> AgentDef:
        """Whose model is asked: the first agent's that uses the provider, else the preset's usual one."""
        for agent in self.agents:
            link: AgentDef | None = agent
            while link is not None:
                if name is None or link.provider == name:
                    return replace(link, model=model or link.model)
                link = link.fallback
        if name is None or name not in self.defaults:
            raise NothingToTest(
                f"there is no provider {name!r}; `exogate provider list` shows them"
            )
        model = model or self.defaults[name]
        if model is None:
            raise NothingToTest(f"no agent uses the provider {name!r}; say which --model to ask")
        return AgentDef(AgentId(name), name, model)


@dataclass(frozen=True, slots=True)
class ProviderMethods:
    trial: ProviderTest

    def all(self) -> Sequence[Method]:
        return (Method("provider.test", Tested, ("admin",), self.test),)

    async def test(self, call: Call, params: Tested) -> ProviderTested:
        """Asks a provider one tiny question, metered like every call."""
        return await self.trial.test(params.provider, params.model)

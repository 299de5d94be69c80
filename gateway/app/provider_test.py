"""One tiny question to a provider, metered like every call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio

from gateway.app.shared import opened
from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import BudgetExceeded, Payer
from gateway.domain.errors import GatewayError, ModelFailed
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.messages import Message
from gateway.domain.model import ModelReply, ModelRequest
from gateway.domain.ports import Ids, Model
from gateway.providers.prices import DEFAULT_MODELS, PriceTable
from gateway.web.published.about import ProviderTested

QUESTION = "Answer with the single word: ready"
MOST_TOKENS = 32
WITHIN_S = 60.0


class NothingToTest(GatewayError):
    code = "nothing_to_test"


@dataclass(frozen=True, slots=True)
class ProviderTest:
    """The model is metered: what it takes is reserved and recorded."""

    config: GatewayConfig
    model: Model
    ids: Ids

    async def test(self, name: str | None, model: str | None) -> ProviderTested:
        try:
            reply = await self._ask(_agent_of(self.config, name, model))
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


@asynccontextmanager
async def provider_test(config: GatewayConfig) -> AsyncIterator[ProviderTest]:
    """Without a gateway: over the store, which is locked meanwhile. Raises DataDirInUse."""
    once = {name: replace(one, max_retries=0) for name, one in config.providers.items()}
    async with opened(config) as shared:
        meter = shared.meter(config, PriceTable(config.providers))
        model = await shared.models(replace(config, providers=once), meter)
        yield ProviderTest(config, model, shared.ids)


def _agent_of(config: GatewayConfig, name: str | None, model: str | None) -> AgentDef:
    """Whose model is asked: the first agent's that uses the provider, else the preset's usual one."""
    for agent in config.agents:
        link: AgentDef | None = agent
        while link is not None:
            if name is None or link.provider == name:
                return replace(link, model=model or link.model)
            link = link.fallback
    if name is None or name not in config.providers:
        raise NothingToTest(f"there is no provider {name!r}; `exogate provider list` shows them")
    model = model or DEFAULT_MODELS.get(name)
    if model is None:
        raise NothingToTest(f"no agent uses the provider {name!r}; say which --model to ask")
    return AgentDef(AgentId(name), name, model)

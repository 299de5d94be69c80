"""provider.test: one tiny question to a provider."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from gateway.web.methods.chat import Text
from gateway.web.published.about import ProviderTested
from gateway.web.rpc import Call, Method


class Tested(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    provider: Text | None = None
    model: Text | None = None


class Trial(Protocol):
    async def test(self, name: str | None, model: str | None) -> ProviderTested: ...


@dataclass(frozen=True, slots=True)
class ProviderMethods:
    trial: Trial

    def all(self) -> Sequence[Method]:
        return (Method("provider.test", Tested, ("admin",), self.test),)

    async def test(self, call: Call, params: Tested) -> ProviderTested:
        """Asks a provider one tiny question, metered like every call."""
        return await self.trial.test(params.provider, params.model)

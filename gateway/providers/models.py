"""All providers behind one Model port: a request names which one it wants."""

from collections.abc import Mapping

from gateway.domain.errors import ModelFailed
from gateway.domain.model import Hear, ModelReply, ModelRequest
from gateway.domain.ports import Model


class Models:
    """Implements the Model port over providers by name."""

    def __init__(self, providers: Mapping[str, Model]) -> None:
        self._providers = dict(providers)

    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        provider = self._providers.get(request.provider)
        if provider is None:
            known = ", ".join(sorted(self._providers)) or "none"
            raise ModelFailed(
                request.provider, "not_found", f"no such provider is configured; there are: {known}"
            )
        return await provider.reply(request, hear)

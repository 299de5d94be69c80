"""The models that agents ask, each behind the meter."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.config.values import GatewayConfig
from gateway.domain.ports import Clock, Model
from gateway.providers.demo import DemoModel
from gateway.providers.models import Models


@asynccontextmanager
async def models(
    config: GatewayConfig, clock: Clock, metered: Callable[[Model], Model]
) -> AsyncIterator[Model]:
    """The providers that the configuration defines, and the demo model: each attempt is metered."""
    demo = metered(DemoModel())
    if not config.providers:
        yield Models({"demo": demo})
        return
    # The HTTP client takes as long to import as all the rest: a start without providers does without.
    from gateway.outbound.client import open_outbound  # noqa: PLC0415  # see above
    from gateway.providers.client import ProviderClient  # noqa: PLC0415  # see above

    async with open_outbound() as http:
        providers: dict[str, Model] = {
            name: ProviderClient(definition, http, clock, random.random, metered)
            for name, definition in config.providers.items()
        }
        providers.setdefault("demo", demo)
        yield Models(providers)

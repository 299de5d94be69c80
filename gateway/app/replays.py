"""Replays, with providers' clients of their own."""

from dataclasses import replace

from gateway.config.values import GatewayConfig
from gateway.domain.ports import Model, Stores
from gateway.domain.secrets import Secret
from gateway.providers.client import ProviderClient
from gateway.providers.models import Models
from gateway.sessions.replayed import Reel
from gateway.sessions.replaying import Replays, Wired
from gateway.sessions.work import Means


def replays(config: GatewayConfig, means: Means, stores: Stores) -> Replays:
    providers = frozenset({*config.providers, "demo"})
    return Replays(means, stores.runs, stores.transcript, rewired(config), providers)


def rewired(config: GatewayConfig) -> Wired:
    """The same clients for replays: over what was recorded, without keys, addresses and waiting."""
    definitions = {
        name: replace(definition, api_key=Secret("replayed"))
        for name, definition in config.providers.items()
    }

    def wired(reel: Reel) -> Model:
        clients = {
            name: ProviderClient(definition, reel, reel, reel.random, encoder=reel)
            for name, definition in definitions.items()
        }
        return Models(clients)

    return wired

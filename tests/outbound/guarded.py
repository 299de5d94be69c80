"""Short ways to ask through the guard."""

from gateway.config.sections import parse_capability
from gateway.domain.ids import Secret
from gateway.domain.plugins import HttpGrant, Origin, PluginSecret
from gateway.domain.ports import FetchGrant, FetchRequest
from tests.fakes.model_server import ModelServer


def origin(text: str) -> Origin:
    """As a grant writes it: a host, or scheme, host and port."""
    grant = parse_capability(f"http:{text}")
    assert isinstance(grant, HttpGrant)
    return grant.origin


def base(server: ModelServer) -> str:
    return server.url.removesuffix("/v1")


def a_secret(value: str, *origins: str, name: str = "key") -> PluginSecret:
    return PluginSecret(name, Secret(value), frozenset(map(origin, origins)))


def leave(*origins: str, secrets: tuple[PluginSecret, ...] = ()) -> FetchGrant:
    return FetchGrant(frozenset(map(origin, origins)), secrets)


def get(url: str, **headers: str) -> FetchRequest:
    return FetchRequest(
        "GET", url, tuple((name.replace("_", "-"), text) for name, text in headers.items())
    )

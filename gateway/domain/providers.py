"""Where models are asked: a provider's definition, and which addresses may hold one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from gateway.domain.secrets import Secret

Wire = Literal["openai", "anthropic"]
# Whether tool calls that a model wrote as text are recovered, or are only text.
ToolMarkup = Literal["off", "recover"]


@dataclass(frozen=True, slots=True)
class Price:
    """USD for a million tokens."""

    input: float
    output: float


@dataclass(frozen=True, slots=True)
class ProviderDef:
    """One provider. `headers` are sent as they are and may hold secrets: they are never shown."""

    name: str
    wire: Wire
    base_url: str
    api_key: Secret | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0
    max_retries: int = 3
    prices: Mapping[str, Price] = field(default_factory=dict)  # by model
    tool_markup: ToolMarkup = "off"


def base_url_problem(url: str) -> str | None:
    """Why this address must not be given a key and a conversation, as a sentence; None if it may."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port  # raises ValueError for one that is none
    except ValueError:
        return "is not an address such as https://api.example.com/v1"
    if parts.scheme not in {"http", "https"} or not host:
        return "is not an address such as https://api.example.com/v1"
    if parts.username or parts.password:
        return "must not hold a user name or password; put the key into api_key"
    if parts.query or parts.fragment:
        return "must end before any '?' or '#'"
    if parts.scheme == "http" and not is_loopback(host):
        return "must begin with https:// (plain http:// is only for this machine)"
    return None


def is_loopback(host: str) -> bool:
    """Whether a host, as it is written in an address, is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False

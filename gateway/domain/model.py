"""Model calls: request, deltas and reply; and the definition of a provider."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from sys import maxsize
from typing import Annotated, Literal
from urllib.parse import urlsplit

from gateway.domain.budgets import Payer, Unit
from gateway.domain.ids import Secret
from gateway.domain.journal import Record
from gateway.domain.messages import Extras, Message, ToolCall, Usage
from gateway.domain.settings import Setting, setting

Wire = Literal["openai", "anthropic"]
# recover: tool calls that a model wrote as text are called.
ToolMarkup = Literal["off", "recover"]


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    input: Annotated[float, Setting("USD for a million tokens that are sent.", 0, 1e6)]
    output: Annotated[float, Setting("USD for a million tokens of reply.", 0, 1e6)]


@dataclass(frozen=True, slots=True)
class ProviderDef:
    """One provider. `headers` are sent unchanged; they may hold secrets and are never shown."""

    name: str
    wire: Annotated[
        Wire, Setting("Protocol that it speaks; needed unless NAME is a preset.", usual=None)
    ]
    base_url: Annotated[
        str,
        Setting("https, or this machine; needed unless NAME is a preset.", form="url", usual=None),
    ]
    api_key: Secret | None = setting(None, "The key; environment and secret file take precedence.")
    headers: Annotated[
        Mapping[str, str],
        Setting("Extra headers; values may hold references.", form="any", names="header"),
    ] = field(default_factory=dict, repr=False)
    connect_timeout_s: float = setting(10.0, "Seconds to connect.", above=0, most=3_600)
    idle_timeout_s: float = setting(60.0, "Seconds without a byte, at most.", above=0, most=3_600)
    max_retries: int = setting(3, "Retries before the first byte of a reply.", 0, 10)
    prices: Mapping[str, Price] = setting({}, "Prices by model; they override the public ones.")
    tool_markup: ToolMarkup = setting("off", "recover: run tool calls that a model writes as text.")


def base_url_problem(url: str) -> str | None:
    """Returns a sentence saying why keys and conversations must not be sent to this address, or
    None."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port  # raises ValueError for an invalid port
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
    """True if a host, as written in an address, is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


# overrun: the provider ignored `max_tokens`, and the gateway stopped the reply.
FinishReason = Literal[
    "stop", "tool_calls", "length", "content_filter", "refusal", "pause", "overrun"
]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool. Its first three fields are sent to models; `parameters` is JSON Schema text."""

    name: str
    description: str
    parameters: str = '{"type":"object","properties":{}}'
    family: str = ""  # the plugin's name in an agent's list
    category: str | None = None
    agent_scope: tuple[str, ...] = ()  # agents that may use it; empty: any agent that lists it
    timeout_s: float | None = None  # of a call; None: the agent's
    may_repeat: bool = False  # False: a call that may have taken effect is not repeated


@dataclass(slots=True)
class ReplyProgress:
    """The state of a reply that has not ended, for the case that it breaks off."""

    size: int = 0  # bytes, including parts that are not streamed, such as arguments
    reported: Usage | None = None  # by the provider so far; only its input tokens are final
    most: int = maxsize  # bytes beyond which the reply exceeds its reservation
    began: float = 0.0  # by the monotonic clock


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """All that a provider needs for one call. `messages` have the order that wires require: every
    tool call has its result, and every result its call."""

    provider: str
    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 4096
    temperature: float | None = None
    thinking: bool = False
    stream: bool = True
    idle_timeout_s: float | None = None  # tighter than the provider's own
    deadline_s: float = 120.0  # no retry begins later; the caller bounds the call itself
    payer: Payer | None = None  # set by every caller; providers ignore it
    record: Record | None = field(default=None, compare=False, repr=False)  # records the bytes
    progress: ReplyProgress | None = field(default=None, compare=False, repr=False)  # of the meter


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    """A warning, once per scope and limit, that most of the limit is used."""

    scope: str
    unit: Unit
    used: float
    limit: float


Delta = TextDelta | ThinkingDelta
# The event loop calls it as bytes arrive, in the call's context but in no task. It never waits.
OnDelta = Callable[[Delta], None]


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A complete reply; an incomplete one raises ModelFailed."""

    provider: str
    model: str
    text: str = ""
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish: FinishReason = "stop"
    extras: Extras | None = None
    warnings: tuple[BudgetWarning, ...] = ()  # from the meter

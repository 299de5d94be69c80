"""How these tests ask: a request, a client on a scripted Http, and what was heard."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gateway.domain.ids import Secret
from gateway.domain.messages import Message
from gateway.domain.model import (
    Delta,
    ModelReply,
    ModelRequest,
    ProviderDef,
    TextDelta,
    ThinkingDelta,
    ToolMarkup,
    Wire,
)
from gateway.domain.ports import Clock, Http
from gateway.providers.client import ProviderClient
from gateway.providers.failures import Scrub
from gateway.providers.wire import ReplyReader
from gateway.providers.wire_anthropic import AnthropicReader
from gateway.providers.wire_openai import OpenAiReader
from tests.fakes.clock import FakeClock

KEY = "sk-very-secret-key-0123456789"


@dataclass
class Heard:
    """Keeps the deltas of a call."""

    deltas: list[Delta] = field(default_factory=list)

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)

    @property
    def text(self) -> str:
        return "".join(d.text for d in self.deltas if isinstance(d, TextDelta))

    @property
    def thinking(self) -> str:
        return "".join(d.text for d in self.deltas if isinstance(d, ThinkingDelta))


def a_request(text: str = "hello", **changes: object) -> ModelRequest:
    request = ModelRequest(
        provider="custom",
        model="mock-1",
        system="You are brief.",
        messages=(Message("user", text),),
        deadline_s=60.0,
    )
    return replace(request, **changes)  # type: ignore[arg-type]  # the tests' own short-hand


def a_client(
    http: Http,
    *,
    url: str = "http://127.0.0.1:1/v1",
    wire: Wire = "openai",
    clock: Clock | None = None,
    name: str = "custom",
    max_retries: int = 0,
    idle_timeout_s: float = 5.0,
    tool_markup: ToolMarkup = "off",
) -> ProviderClient:
    definition = ProviderDef(
        name=name,
        wire=wire,
        base_url=url,
        api_key=Secret(KEY),
        max_retries=max_retries,
        idle_timeout_s=idle_timeout_s,
        connect_timeout_s=5.0,
        tool_markup=tool_markup,
    )
    return ProviderClient(definition, http, clock or FakeClock(), lambda: 0.5)


def read_stream(
    wire: Wire,
    reads: Sequence[bytes],
    heard: Heard | None = None,
    request: ModelRequest | None = None,
) -> ModelReply:
    """What a stream that arrives in these reads comes to."""
    reader = a_reader(wire, heard, request)
    for data in reads:
        if not reader.has_ended:
            reader.feed(data)
    return reader.close()


def read_whole(wire: Wire, body: bytes, heard: Heard | None = None) -> ModelReply:
    reader = a_reader(wire, heard, a_request(stream=False))
    reader.read_whole(body)
    return reader.reply()


def a_reader(
    wire: Wire,
    heard: Heard | None = None,
    request: ModelRequest | None = None,
    *,
    recovers: bool = False,
) -> ReplyReader:
    reader = OpenAiReader if wire == "openai" else AnthropicReader
    scrub = Scrub((KEY,))
    return reader(request or a_request(), heard or Heard(), scrub, 1000, recovers=recovers)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The bytes in pieces, cut at these places."""
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False) if a != b]

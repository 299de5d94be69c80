"""What the front door is told by its owner: addresses, credentials and limits."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

RESERVED_NAMES = frozenset({"local", "operator"})


Reach = Callable[[str, frozenset[str]], frozenset[str]]


@dataclass(frozen=True, slots=True)
class TokenDef:
    """A token of `[[tokens]]`. The secret is compared by its hash and never shown."""

    name: str
    secret: str = field(repr=False)
    scopes: frozenset[str] = frozenset({"chat"})
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Limits are per connection unless their name says otherwise; times are seconds."""

    bind: str = "127.0.0.1"
    port: int = 7200
    tokens: tuple[TokenDef, ...] = ()
    operator_secret: str | None = field(default=None, repr=False)  # `[gateway] token`
    cli_secret: str | None = field(default=None, repr=False)  # what our own command line presents
    # Scopes of a token that was created, narrowed to agents that it may reach by its name.
    reach: Reach = field(default=lambda name, scopes: scopes, compare=False, repr=False)
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()  # addresses or networks

    max_connections: int = 12_000  # of the whole gateway
    max_connections_per_address: int = 1_000  # or IPv6 /64; loopback is exempt
    max_unauthenticated: int = 256  # of the whole gateway
    unauthenticated_grace_s: float = 1.0  # a connection counts as one of them then
    max_frame_bytes: int = 1_048_576  # a frame, and a message of several
    max_body_bytes: int = 4_194_304
    max_target_bytes: int = 8_192
    max_headers: int = 64
    max_header_bytes: int = 16_384
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    keep_alive_s: int = 15

    pre_auth_timeout_s: float = 10.0
    pre_auth_frame_bytes: int = 65_536
    max_fragments: int = 1_024
    ping_interval_s: float = 20.0
    write_deadline_s: float = 10.0
    send_queue_bytes: int = 1_048_576  # beyond it nothing more is asked for; and the largest answer
    push_queue_bytes: int = 8_388_608  # of events that cannot be had later
    push_queues_bytes: int = 268_435_456  # of all connections; then those without room are closed
    close_linger_s: float = 10.0
    max_calls: int = 64  # answered side by side for one connection; then it is read no further
    max_calls_total: int = 8_192  # of the whole gateway; then calls are refused as busy
    max_batch: int = 100
    json_depth: int = 64

    auth_failures: int = 10
    auth_window_s: float = 60.0
    auth_slowed_s: float = (
        300.0  # an address that guesses is answered late; a valid token is let in
    )
    auth_delay_s: float = 1.0
    auth_delayed_per_address: int = 4  # wait at the same time; beyond it the answer comes at once
    auth_delayed: int = 64

    def __post_init__(self) -> None:
        names = [token.name for token in self.tokens]
        if len(set(names)) != len(names):
            raise ValueError("two tokens have the same name")
        if taken := RESERVED_NAMES.intersection(names):
            raise ValueError(f"a token must not be called {min(taken)!r}: the gateway uses it")

    @property
    def has_tokens(self) -> bool:
        return bool(self.tokens) or self.operator_secret is not None

"""The settings of the web room: addresses, credentials and limits."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

RESERVED_NAMES = frozenset({"local", "operator"})
Reach = Callable[[str, frozenset[str]], frozenset[str]]


@dataclass(frozen=True, slots=True)
class TokenDef:
    """A token of `[[tokens]]`. The secret is compared by its digest and never shown."""

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
    cli_secret: str | None = field(default=None, repr=False)  # the token of the command line
    # Narrows the scopes of a created token to the agents that its name can reach.
    reach: Reach = field(default=lambda name, scopes: scopes, compare=False, repr=False)
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()  # addresses or networks

    max_connections: int = 12_000  # of the whole gateway
    max_connections_per_address: int = 1_000  # or IPv6 /64; loopback is exempt
    max_unauthenticated: int = 256  # of the whole gateway
    unauthenticated_grace_s: float = 1.0  # a connection counts as unauthenticated after this time
    max_frame_bytes: int = 1_048_576  # also of a message of several frames
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
    send_queue_bytes: int = 1_048_576  # then no more requests are read; also the largest answer
    push_queue_bytes: int = 8_388_608  # of events that cannot be read again
    push_queues_bytes: int = (
        268_435_456  # of all connections; then those with full queues are closed
    )
    close_linger_s: float = 10.0
    max_calls: int = 64  # running calls of a connection; then it is not read
    max_calls_total: int = 8_192  # of the whole gateway; then calls are refused as busy
    max_batch: int = 100
    json_depth: int = 64

    auth_failures: int = 10
    auth_window_s: float = 60.0
    auth_slowed_s: float = 300.0  # refusals to a guessing address are delayed; valid tokens work
    auth_delay_s: float = 1.0
    auth_delayed_per_address: int = 4  # refusals delayed at a time; others are sent at once
    auth_delayed: int = 64

    def __post_init__(self) -> None:
        names = [token.name for token in self.tokens]
        if len(set(names)) != len(names):
            raise ValueError("two tokens have the same name")
        if taken := RESERVED_NAMES.intersection(names):
            raise ValueError(
                f"a token must not be called {min(taken)!r}: the gateway uses that name"
            )

    @property
    def has_tokens(self) -> bool:
        return bool(self.tokens) or self.operator_secret is not None

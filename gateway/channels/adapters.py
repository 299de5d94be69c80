"""The protocol between host and channel adapter: recipes as data, messages in, requests out.

adapter_json.py reads these types from JSON. `__post_init__` checks more than the types, and raises a
ValueError that names the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from gateway.domain.channels import TransportKind
from gateway.domain.plugins import PluginDef

Table = Mapping[str, object]


class Strict:
    """Unknown keys are an error."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Table] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
    }


class Tolerant:
    """Unknown keys are ignored."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Table] = {"extra": "ignore", "strict": True}


def _check_between(name: str, value: float | None, least: float, most: float) -> None:
    """Raises ValueError for a value out of the range; None is valid."""
    if value is not None and not least <= value <= most:
        raise ValueError(f"{name}: must be {least:,} to {most:,}")


# A path addresses a part of a JSON value: names joined by dots, as in `d.session_id`; a number is an
# index of a list. The host fills `{api_base}`, `{config.NAME}`, `{state}`, `{webhook_url}` and
# `{kept.NAME}` into the texts of recipes. `${secret:NAME}` is filled in only when a request is sent.


@dataclass(frozen=True, slots=True)
class CallRecipe:
    """A request that the host sends."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""


@dataclass(frozen=True, slots=True)
class Verify(Strict):
    """The recipe by which the host verifies a webhook call over its raw bytes.

    hmac and ed25519 sign the text that `signs` composes of `{timestamp}`, `{id}` and `{body}`; the
    header holds a token literally. `secret` names a secret of the channel, `key` a public key in its
    `config`. Of several recipes the `config` must meet the `when` of exactly one. `dedupe = "body"`
    identifies a call by the digest of its body instead of `platform_id`: for platforms that sign
    only the body and send the id in a header, which a caller can change.
    """

    type: Literal["hmac_sha256", "ed25519", "token"]
    header: str
    secret: str | None = None
    key: str | None = None
    prefix: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    signs: str = "{body}"
    several: bool = False  # the header holds signatures, separated by spaces; one must be valid
    secret_form: Literal["text", "whsec"] = "text"
    id_header: str | None = None
    timestamp_header: str | None = None
    window_s: int = 300
    missing_status: Literal[401, 403] = 401
    wrong_status: Literal[401, 403] = 401
    when: Mapping[str, str] = field(default_factory=dict)
    dedupe: Literal["id", "body"] = "id"

    def __post_init__(self) -> None:
        if (self.type == "ed25519") != (self.key is not None):
            raise ValueError("key: required for ed25519, not allowed for other types")
        if (self.type == "ed25519") != (self.secret is None):
            raise ValueError("secret: required for hmac_sha256 and token, not allowed for ed25519")
        if ("{timestamp}" in self.signs) != (self.timestamp_header is not None):
            raise ValueError("signs: {timestamp} and timestamp_header need each other")
        if ("{id}" in self.signs) != (self.id_header is not None):
            raise ValueError("signs: {id} and id_header need each other")
        if self.type != "token" and "{body}" not in self.signs:
            raise ValueError("signs: must contain {body}")
        _check_between("window_s", self.window_s, 1, 3_600)


@dataclass(frozen=True, slots=True)
class Challenge(Strict):
    """A question in the query that the host answers itself. The parameter `given` must hold
    `secret`, and the answer is the parameter `answer`."""

    secret: str
    given: str
    answer: str
    method: str = "GET"
    expects: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Webhook(Strict):
    """The platform calls the gateway. Each start sends `setup` if all its placeholders are set."""

    type: Literal["webhook"]
    methods: tuple[str, ...] = ("POST",)
    paths: tuple[str, ...] = ("",)  # below /webhooks/NAME; `*` matches one segment
    challenge: Challenge | None = None
    setup: CallRecipe | None = None
    max_body_bytes: int = 1_048_576


@dataclass(frozen=True, slots=True)
class Poll(Strict):
    """The host polls the platform; `{state}` is the adapter's last state. If the adapter fails
    repeatedly at an answer, the host passes it once more with `skip` and uses only the new state."""

    type: Literal["poll"]
    request: CallRecipe
    interval_s: float = 0.0  # between an answer and the next request
    timeout_s: float = 60.0
    setup: CallRecipe | None = None


Act = Literal["event", "identify", "beat", "alive", "ready", "reconnect", "renew", "forget"]


@dataclass(frozen=True, slots=True)
class FrameRule(Strict):
    """The acts of the host for a frame that has the values of `when` at their paths; the first
    matching rule applies. `keep` stores values of the frame by name."""

    when: Table
    do: tuple[Act, ...] = ()
    keep: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat(Strict):
    """Sends `frame` every `every_s` seconds, or at the interval of the kept value `kept_ms`."""

    frame: Table
    every_s: float | None = None
    kept_ms: str | None = None
    needs_answer: bool = True  # without `alive` between two beats the connection is dead


@dataclass(frozen=True, slots=True)
class Socket(Strict):
    """A WebSocket that the host opens and keeps open, described as a state machine.

    Its address is `url`, or the value at `url_at` in the answer to `open`, or the kept value
    `resume_url` for a resumed session. The host sends `resume` once all its placeholders are kept,
    else `identify` for a new session. `kept` values last over restarts; values of a frame with
    `event` count from its commit. The act `renew` opens another connection, then closes this one.
    """

    type: Literal["socket"]
    frames: tuple[FrameRule, ...]
    url: str | None = None
    open: CallRecipe | None = None
    url_at: str = "url"
    resume_url: str | None = None
    heartbeat: Heartbeat | None = None
    identify: Table | None = None
    resume: Table | None = None
    acknowledge: Table | None = None  # sent after the commit; `{frame.PATH}` is from the frame
    fatal_codes: tuple[int, ...] = ()  # close codes that end the channel until an operator acts
    fresh_codes: tuple[int, ...] = ()  # close codes that end the session; the host connects again
    reasons: Mapping[str, str] = field(default_factory=dict)  # close code -> what to do
    close_code: int = 4000  # the host closes with it, so that the session can be resumed

    def __post_init__(self) -> None:
        if (self.url is None) == (self.open is None):
            raise ValueError("url, open: set exactly one")


Transport = Webhook | Poll | Socket


@dataclass(frozen=True, slots=True)
class Rate(Strict):
    """At most `count` requests in `per_s` seconds: to one peer, to one room, or by the account."""

    scope: Literal["peer", "group", "account"]
    count: int
    per_s: float

    def __post_init__(self) -> None:
        _check_between("count", self.count, 1, 1_000_000)
        _check_between("per_s", self.per_s, 0.001, 86_400)


@dataclass(frozen=True, slots=True)
class TextLimits(Strict):
    """The size of one message on the platform, and the rates for sending."""

    text: int = 4_000
    unit: Literal["utf16", "characters", "bytes"] = "characters"
    rates: tuple[Rate, ...] = ()

    def __post_init__(self) -> None:
        _check_between("text", self.text, 1, 1_000_000)


@dataclass(frozen=True, slots=True)
class Outbound(Strict):
    """The recipe by which the host reads the platform's answers.

    `retry_after` lists the places of a wait in seconds: a path, or `header:NAME`. `error` is the
    path of the platform's error word; a 200 with false at the path `ok` is an error.
    """

    secrets: tuple[str, ...] = ()
    message_id: str | None = None
    ok: str | None = None
    error: str | None = None
    retry_statuses: tuple[int, ...] = (408, 429, 500, 502, 503, 504)
    retry_errors: tuple[str, ...] = ()
    done_errors: tuple[str, ...] = ()  # prefixes of error words that mean success
    retry_after: tuple[str, ...] = ("header:retry-after",)
    moved_to: str | None = None  # path of the peer to use instead, in an error
    idempotency: bool = False  # informative; the host uses the `idempotency` of each request
    edits: bool = False
    edit_every_s: float = 1.0
    edit_every_s_group: float = 3.0
    typing_every_s: float | None = None  # None: the platform shows no typing

    def __post_init__(self) -> None:
        _check_between("edit_every_s", self.edit_every_s, 0.1, 3_600)
        _check_between("edit_every_s_group", self.edit_every_s_group, 0.1, 3_600)
        _check_between("typing_every_s", self.typing_every_s, 1, 3_600)


@dataclass(frozen=True, slots=True)
class Description(Tolerant):
    """The answer of an adapter's `describe`."""

    channel: str
    transports: tuple[Transport, ...]
    name: str = ""
    version: str = ""
    description: str = ""
    verify: Verify | tuple[Verify, ...] = ()
    outbound: Outbound = Outbound()
    limits: TextLimits = TextLimits()
    secrets: tuple[str, ...] = ()  # required secrets
    needs: tuple[str, ...] = ()  # required names in `config`
    api_base: str | None = None  # URL of the platform; `config.api_base` overrides it

    def __post_init__(self) -> None:
        kinds = [one.type for one in self.transports]
        if not kinds or len(set(kinds)) < len(kinds):
            raise ValueError("transports: give at least one, and each type once")
        if "webhook" in kinds and not self.recipes:
            raise ValueError("verify: required for a webhook")
        asked = [one.challenge for one in self.transports if isinstance(one, Webhook)]
        proving = {one.secret for one in (*self.recipes, *asked) if one is not None}
        if not proving.isdisjoint(self.outbound.secrets):
            raise ValueError("outbound.secrets: must not hold a secret that verifies calls")

    @property
    def largest_call(self) -> int:
        """The size of the largest webhook call in bytes; 0 without a webhook."""
        calls = [one.max_body_bytes for one in self.transports if isinstance(one, Webhook)]
        return max(calls, default=0)

    @property
    def recipes(self) -> tuple[Verify, ...]:
        return (self.verify,) if isinstance(self.verify, Verify) else self.verify


class Adapter(Protocol):
    """A channel plugin in its sandbox. Takes and returns JSON text."""

    @property
    def plugin(self) -> PluginDef: ...

    @property
    def description(self) -> Description: ...

    async def parse(self, event: str) -> str:
        """Raises AdapterFailed with a sentence for the operator."""

    async def format(self, reply: str) -> str:
        """Raises AdapterFailed."""


# ------------------------------------------------------------------------------ messages in
@dataclass(frozen=True, slots=True)
class AdapterEvent(Strict):
    """The input of `parse-incoming`: a call of the platform, its answer to a poll, or a frame. Header
    names are in lower case; headers that prove the caller, and secrets, are removed."""

    transport: TransportKind
    headers: dict[str, str]
    account: str
    config: Table
    state: str  # the last state that the adapter returned
    method: str | None = None
    path: str | None = None  # below /webhooks/NAME
    query: str | None = None
    status: int | None = None  # of an answer to a poll
    skip: bool | None = None  # the answer was unreadable; the host uses only the returned state
    api_base: str | None = None
    body: str | None = None
    body_base64: str | None = None  # replaces `body` if it is not UTF-8


@dataclass(frozen=True, slots=True)
class Sender(Tolerant):
    id: str
    name: str | None = None
    is_bot: bool = False
    is_self: bool = False


@dataclass(frozen=True, slots=True)
class Attachment(Tolerant):
    url: str | None = None
    name: str | None = None
    mime: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Incoming(Tolerant):
    """A message as an adapter reads it. The host decides account, agent and channel, and ignores
    `account`. The adapter gets `answer` back with each reply to the message. `key` identifies the
    message instead of `platform_id`; the host sets it for calls whose recipe has `dedupe = "body"`."""

    peer: str
    sender: Sender
    text: str
    platform_id: str
    kind: Literal["direct", "group"] = "direct"
    account: str | None = None
    guild: str | None = None
    team: str | None = None
    thread: str | None = None
    shares_room: bool = False  # the thread belongs to the conversation of its room
    timestamp: str | None = None  # ISO 8601, or seconds since 1970 as text
    reply_to: str | None = None
    mentions_me: bool = False
    attachments: tuple[Attachment, ...] = ()
    invites: bool = (
        False  # an invitation to the room; the host answers with `do: "join"`, not a turn
    )
    answer: Table = field(default_factory=dict)
    key: str | None = None

    @property
    def dedupe_key(self) -> str:
        """The key that is unique for a message of the channel."""
        return self.key or self.platform_id


@dataclass(frozen=True, slots=True)
class HttpReply(Strict):
    """The immediate answer to the platform's call, sent after the commit. A reply that `promises` an
    answer becomes an empty 200 if none of the messages gets one."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    promises: bool = False


@dataclass(frozen=True, slots=True)
class Parsed(Tolerant):
    """The answer of `parse-incoming`."""

    messages: tuple[Incoming, ...] = ()
    reply: HttpReply | None = None
    state: str | None = None


@dataclass(frozen=True, slots=True)
class Unusable(Strict):
    """A message of a batch that the host cannot accept. `text` is its JSON. An operator can retry it
    if it has a `message`. Without `is_certain` its sender or place may be wrong."""

    why: str
    text: str
    message: Incoming | None = None
    is_certain: bool = True


# ----------------------------------------------------------------------------- requests out
@dataclass(frozen=True, slots=True)
class Idempotency:
    """The idempotency key of a request. The host sends it in `header`; None means that the request
    holds it already."""

    key: str
    header: str | None = None


@dataclass(frozen=True, slots=True)
class AdapterRequest(Strict):
    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    idempotency: Idempotency | None = None


@dataclass(frozen=True, slots=True)
class Formatted(Tolerant):
    """The answer of `format-outgoing`. `too_long` makes the host cut the text smaller."""

    requests: tuple[AdapterRequest, ...] = ()
    edit: bool = False  # the message can be edited later
    too_long: bool = False


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """The target of an answer beside its address. The store keeps it with the message, and the
    adapter gets it back."""

    peer: str
    thread: str | None = None
    reply_to: str | None = None  # the platform's id of the answered message
    is_group: bool = False
    do: Literal["send", "join"] = "send"
    answer: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterReply(Strict):
    """The input of `format-outgoing`. `answer` and `reply_to` come from the answered message.
    `edits` is the platform's id of the message to edit. The same part always has the same `key`."""

    do: Literal["send", "edit", "typing", "join"]
    key: str
    peer: str
    thread: str | None
    is_group: bool
    reply_to: str | None
    answer: Table
    text: str  # Markdown
    edits: str | None
    account: str
    config: Table
    api_base: str | None

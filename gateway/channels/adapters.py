"""The protocol between host and channel adapter: recipes as data, messages in, requests out.

The types are read from JSON as they stand here (adapter_json.py); what is checked beyond types is checked in
`__post_init__`, with a ValueError that names the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from gateway.domain.channels import TransportKind
from gateway.domain.plugins import PluginDef

Table = Mapping[str, object]


class Strict:
    """What has more keys than these cannot be read."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Table] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
    }


class Tolerant:
    """More keys may be there; they are not looked at."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Table] = {"extra": "ignore", "strict": True}


def _check_between(name: str, value: float | None, least: float, most: float) -> None:
    """Where nothing is given, nothing is wrong."""
    if value is not None and not least <= value <= most:
        raise ValueError(f"{name}: {least:,} to {most:,}")


# A path leads into a JSON value: names with dots between, `d.session_id`; a number is a place in a
# list. In texts of recipes the host fills in `{api_base}`, `{config.NAME}`, `{state}`,
# `{webhook_url}`, `{kept.NAME}` and, on the way out only, `${secret:NAME}`.


@dataclass(frozen=True, slots=True)
class CallRecipe:
    """A request that the host makes."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""


@dataclass(frozen=True, slots=True)
class Verify(Strict):
    """How the host proves that a webhook call is genuine, over the raw bytes.

    hmac and ed25519 sign the text that `signs` makes of `{timestamp}`, `{id}` and `{body}`; a token
    stands in the header as it is. `secret` names a secret of the channel, `key` a public key in its
    `config`. With several recipes exactly one has to fit: the one whose `when` the `config` meets.
    With `dedupe = "body"` the digest of the body tells a call from others, not `platform_id`: for
    platforms that sign the body alone and give the id in a header, where anybody can change it.
    """

    type: Literal["hmac_sha256", "ed25519", "token"]
    header: str
    secret: str | None = None
    key: str | None = None
    prefix: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    signs: str = "{body}"
    several: bool = False  # signatures with spaces between, of which one has to fit
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
            raise ValueError("key: ed25519 needs one, nothing else has one")
        if (self.type == "ed25519") != (self.secret is None):
            raise ValueError("secret: hmac_sha256 and token need one, ed25519 has none")
        if ("{timestamp}" in self.signs) != (self.timestamp_header is not None):
            raise ValueError("signs: a timestamp that is not signed proves nothing")
        if ("{id}" in self.signs) != (self.id_header is not None):
            raise ValueError("signs: an id that is not signed proves nothing")
        if self.type != "token" and "{body}" not in self.signs:
            raise ValueError("signs: it has to contain {body}")
        _check_between("window_s", self.window_s, 1, 3_600)


@dataclass(frozen=True, slots=True)
class Challenge(Strict):
    """A question in the query that the host answers itself: `secret` has to stand in `given`."""

    secret: str
    given: str
    answer: str
    method: str = "GET"
    expects: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Webhook(Strict):
    """The platform calls us. `setup` is made at each start, if all that it names is there."""

    type: Literal["webhook"]
    methods: tuple[str, ...] = ("POST",)
    paths: tuple[str, ...] = ("",)  # below /webhooks/NAME; `*` is one segment
    challenge: Challenge | None = None
    setup: CallRecipe | None = None
    max_body_bytes: int = 1_048_576


@dataclass(frozen=True, slots=True)
class Poll(Strict):
    """The host asks again and again; `{state}` is what the adapter returned last. An answer that it
    fails at again and again comes once more with `skip`: then the state after it is all that counts."""

    type: Literal["poll"]
    request: CallRecipe
    interval_s: float = 0.0  # between an answer and the next question
    timeout_s: float = 60.0
    setup: CallRecipe | None = None


Act = Literal["event", "identify", "beat", "alive", "ready", "reconnect", "renew", "forget"]


@dataclass(frozen=True, slots=True)
class FrameRule(Strict):
    """What the host does with a frame that has these values at these paths; the first rule that
    fits counts. `keep` puts values of the frame aside by name."""

    when: Table
    do: tuple[Act, ...] = ()
    keep: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat(Strict):
    """`frame` is sent every `every_s`, or as often as the kept value says."""

    frame: Table
    every_s: float | None = None
    kept_ms: str | None = None
    needs_answer: bool = True  # `alive` between two beats, or the connection is dead


@dataclass(frozen=True, slots=True)
class Socket(Strict):
    """A connection that the host opens and keeps; a machine of states, described.

    Where it leads: `url`, or what `open` answers at `url_at`, or when resuming the kept value
    `resume_url`. `identify` is sent for a new session, `resume` once all that it names is kept.
    `kept` values last over restarts, and those that a frame with `event` brings count from its
    commit on. `renew`: open another connection first, then close this one.
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
    acknowledge: Table | None = None  # sent after the commit; `{frame.PATH}` is of the frame
    fatal_codes: tuple[int, ...] = ()  # stop, and tell the operator
    fresh_codes: tuple[int, ...] = ()  # forget the session, then connect
    reasons: Mapping[str, str] = field(default_factory=dict)  # by code: what the operator has to do
    close_code: int = 4000  # ours, so that the session can be resumed

    def __post_init__(self) -> None:
        if (self.url is None) == (self.open is None):
            raise ValueError("url, open: one of the two says where it leads")


Transport = Webhook | Poll | Socket


@dataclass(frozen=True, slots=True)
class Rate(Strict):
    """So many requests in so much time: to one peer, to one room, or by the account."""

    scope: Literal["peer", "group", "account"]
    count: int
    per_s: float

    def __post_init__(self) -> None:
        _check_between("count", self.count, 1, 1_000_000)
        _check_between("per_s", self.per_s, 0.001, 86_400)


@dataclass(frozen=True, slots=True)
class TextLimits(Strict):
    """What one message of the platform holds, and how often one may be sent."""

    text: int = 4_000
    unit: Literal["utf16", "characters", "bytes"] = "characters"
    rates: tuple[Rate, ...] = ()

    def __post_init__(self) -> None:
        _check_between("text", self.text, 1, 1_000_000)


@dataclass(frozen=True, slots=True)
class Outbound(Strict):
    """How the host reads what the platform answers.

    `retry_after` lists where a wait in seconds may stand: a path, or `header:NAME`. `error` leads
    to the platform's word for what went wrong; a 200 is an error where `ok` leads to false.
    """

    secrets: tuple[str, ...] = ()
    message_id: str | None = None
    ok: str | None = None
    error: str | None = None
    retry_statuses: tuple[int, ...] = (408, 429, 500, 502, 503, 504)
    retry_errors: tuple[str, ...] = ()
    done_errors: tuple[str, ...] = ()  # how the words begin for: it is so already
    retry_after: tuple[str, ...] = ("header:retry-after",)
    moved_to: str | None = None  # of an error: the peer that is to be used instead
    idempotency: bool = False  # for people; of each request its own `idempotency` counts
    edits: bool = False
    edit_every_s: float = 1.0
    edit_every_s_group: float = 3.0
    typing_every_s: float | None = None  # None: there is no such thing

    def __post_init__(self) -> None:
        _check_between("edit_every_s", self.edit_every_s, 0.1, 3_600)
        _check_between("edit_every_s_group", self.edit_every_s_group, 0.1, 3_600)
        _check_between("typing_every_s", self.typing_every_s, 1, 3_600)


@dataclass(frozen=True, slots=True)
class Description(Tolerant):
    """What `describe` of an adapter answers. More keys may be there; they are not looked at."""

    channel: str
    transports: tuple[Transport, ...]
    name: str = ""
    version: str = ""
    description: str = ""
    verify: Verify | tuple[Verify, ...] = ()
    outbound: Outbound = Outbound()
    limits: TextLimits = TextLimits()
    secrets: tuple[str, ...] = ()  # without which it cannot work
    needs: tuple[str, ...] = ()  # names in `config` without which it cannot work
    api_base: str | None = None  # where the platform is, unless `config.api_base` says otherwise

    def __post_init__(self) -> None:
        kinds = [one.type for one in self.transports]
        if not kinds or len(set(kinds)) < len(kinds):
            raise ValueError("transports: one at least, and each once")
        if "webhook" in kinds and not self.recipes:
            raise ValueError("verify: a webhook that nobody can verify gets no address")
        asked = [one.challenge for one in self.transports if isinstance(one, Webhook)]
        proving = {one.secret for one in (*self.recipes, *asked) if one is not None}
        if not proving.isdisjoint(self.outbound.secrets):
            raise ValueError("outbound.secrets: what proves who calls is no adapter's to send")

    @property
    def largest_call(self) -> int:
        """Bytes of the largest call of a webhook."""
        calls = [one.max_body_bytes for one in self.transports if isinstance(one, Webhook)]
        return max(calls, default=0)

    @property
    def recipes(self) -> tuple[Verify, ...]:
        return (self.verify,) if isinstance(self.verify, Verify) else self.verify


class Adapter(Protocol):
    """A channel plugin in its sandbox; JSON text in, JSON text out."""

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
    """What `parse-incoming` is given: a call of the platform, its answer to a poll, or a frame.
    Headers are in lower case, without those that prove who calls; secrets are taken out."""

    transport: TransportKind
    headers: dict[str, str]
    account: str
    config: Table
    state: str  # as it was returned last
    method: str | None = None
    path: str | None = None  # below /webhooks/NAME
    query: str | None = None
    status: int | None = None  # of an answer to a poll
    skip: bool | None = None  # nobody could read this answer: only the state after it counts
    api_base: str | None = None
    body: str | None = None
    body_base64: str | None = None  # instead of `body`, if that is no text


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
    """A message as an adapter read it. Account, agent and channel are the host's to say: `account`
    is not looked at. `answer` comes back with everything that is sent in reply to this message. `key`
    tells a message from others where `platform_id` does not; the host sets it for calls whose recipe
    has `dedupe = "body"`."""

    peer: str
    sender: Sender
    text: str
    platform_id: str
    kind: Literal["direct", "group"] = "direct"
    account: str | None = None
    guild: str | None = None
    team: str | None = None
    thread: str | None = None
    shares_room: bool = False  # the thread is no conversation of its own
    timestamp: str | None = None  # ISO 8601, or seconds since 1970 as text
    reply_to: str | None = None
    mentions_me: bool = False
    attachments: tuple[Attachment, ...] = ()
    invites: bool = False  # into that room; answered by `do: "join"` instead of a turn
    answer: Table = field(default_factory=dict)
    key: str | None = None

    @property
    def dedupe_key(self) -> str:
        """A second message of the channel with the same one is a duplicate."""
        return self.key or self.platform_id


@dataclass(frozen=True, slots=True)
class HttpReply(Strict):
    """What the platform is answered at once, after the commit. One that `promises` an answer is not
    given for messages that nobody will answer: then it is an empty 200."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    promises: bool = False


@dataclass(frozen=True, slots=True)
class Parsed(Tolerant):
    """What `parse-incoming` answers."""

    messages: tuple[Incoming, ...] = ()
    reply: HttpReply | None = None
    state: str | None = None


@dataclass(frozen=True, slots=True)
class Unusable(Strict):
    """A message of a batch that cannot be taken as it came. `text` is its JSON; with a `message` an
    operator can have it taken so, and without `is_certain` it is not certain who says it, or where."""

    why: str
    text: str
    message: Incoming | None = None
    is_certain: bool = True


# ----------------------------------------------------------------------------- requests out
@dataclass(frozen=True, slots=True)
class Idempotency:
    """`header`: the host puts the key there; None: it stands in the request already."""

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
    """What `format-outgoing` answers. `too_long`: cut the text smaller and ask again."""

    requests: tuple[AdapterRequest, ...] = ()
    edit: bool = False  # a message of these can be edited later
    too_long: bool = False


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """Where an answer goes besides its address: kept with the message, handed back to the adapter."""

    peer: str
    thread: str | None = None
    reply_to: str | None = None  # the platform's id of the message that is answered
    is_group: bool = False
    do: Literal["send", "join"] = "send"
    answer: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterReply(Strict):
    """What `format-outgoing` is given. `answer` and `reply_to` are of the message that is answered;
    `edits` is the platform's id of the message to edit; `key` is the same for the same part."""

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

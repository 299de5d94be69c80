"""The HTTP API: what each address does for whoever asks, and what it answers."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from gateway.api.chunks import RunEvent, WhyFailed
from gateway.api.conversations import (
    LONGEST_TEXT,
    HistoryPage,
    OwnLimits,
    TokenUsage,
)
from gateway.api.declarations import (
    NOT_BLANK,
    Check,
    Method,
    Params,
    Text,
    Value,
    nullable,
)
from gateway.api.errors import ErrorAnswer
from gateway.api.spending import BudgetRecords, SpendingPage
from gateway.domain.messages import DoneReason

JSON = "application/json"
STREAM = "text/event-stream"
ANYTHING = "*/*"


@dataclass(frozen=True, slots=True)
class Header:
    """Of a request or of an answer; `pattern` says what it may hold."""

    name: str
    says: str
    pattern: str | None = None
    is_sure: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """`type` is what the body holds, or the data of each event of a stream; None: it is text, or
    whatever `media` has. A status may have several, each in a medium of its own; 0 stands for all
    others."""

    status: int
    says: str
    type: Any = None
    media: str = JSON
    headers: tuple[Header, ...] = ()
    last: str | None = None  # the data of the event that ends a stream


@dataclass(frozen=True, slots=True)
class Operation:
    """`path` as Starlette has it. `refusals` are the statuses with which it is refused besides those
    of all operations, each told as `error`."""

    method: str
    path: str
    says: str
    answers: tuple[Answer, ...]
    query: type[Params] | None = None
    body: Any = None
    body_media: str = JSON
    headers: tuple[Header, ...] = ()
    refusals: tuple[int, ...] = ()
    error: Any = ErrorAnswer
    is_guarded: bool = True


def twin(method: Method) -> Operation:
    """Of a method that `GET` does as well."""
    answers = (Answer(200, "Its result.", method.result),)
    query = None if "{" in method.http else method.params
    return Operation("GET", method.http, method.help, answers, query, refusals=method.errors)


WAIT = Header("Retry-After", "Seconds.")
RUN = Header("X-Exogate-Run", "The id of the run.", is_sure=True)
# Without control characters, and without blanks at its ends, which belong to no header's value.
WORD = r"^[^\x00-\x20\x7f]([^\x00-\x08\x0a-\x1f\x7f]{0,254}[^\x00-\x20\x7f])?$"
IDEMPOTENCY_KEY = Header(
    "Idempotency-Key", "The same request under the same key gets the stored answer.", WORD
)
SESSION = Header(
    "X-Exogate-Session", "Makes it a message of that conversation, which is kept here.", WORD
)
MORE = Header("X-Exogate-More", "Whether there are older ones.", "^(true|false)$", is_sure=True)


# -- /healthz, /readyz, /metrics, documents, /webhooks


class Alive(Value):
    status: Literal["ok"]


class ReadyForWork(Value):
    """`degraded` names what does not work, and keeps no work away: `nats`."""

    status: Literal["ready"]
    degraded: list[str] | None = None


class NotReady(Value):
    """`reasons` is for those who may read."""

    status: Literal["not_ready"]
    reasons: list[str] | None = None


ALIVE = Operation(
    "GET",
    "/healthz",
    "Whether the process answers.",
    (Answer(200, "It does.", Alive),),
    refusals=(403,),
    is_guarded=False,
)
READY = Operation(
    "GET",
    "/readyz",
    "Whether it should be sent work.",
    (
        Answer(200, "It should.", ReadyForWork),
        Answer(503, "Not now; with `read`, and why.", NotReady | ErrorAnswer, headers=(WAIT,)),
    ),
    refusals=(401, 403, 429),
    is_guarded=False,
)
METRICS = Operation(
    "GET",
    "/metrics",
    "What was spent and what is at work, for Prometheus.",
    (Answer(200, "In Prometheus' text format.", media="text/plain"),),
)
WEBHOOK_METHODS = ("GET", "POST", "PUT")
_CALL = (
    Answer(200, "As the platform of the channel wants it.", media=ANYTHING),
    Answer(0, "What else the adapter of the channel answers.", media=ANYTHING),
)
# Each call has to prove that it is genuine, in the way of its platform.
WEBHOOKS = tuple(
    Operation(
        method,
        path,
        "A call of the platform of a channel.",
        _CALL,
        body=None if method == "GET" else Any,
        body_media=ANYTHING,
        refusals=(401, 403, 404, 500),
        is_guarded=False,
    )
    for path in ("/webhooks/{channel}", "/webhooks/{channel}/{rest:path}")
    for method in WEBHOOK_METHODS
)
DOCUMENTS = {
    "/openapi.json": "This API",
    "/asyncapi.json": "The WebSocket and the events of runs",
    "/config.schema.json": "The configuration file",
}


def document(path: str) -> Operation:
    answer = Answer(200, "The document.", dict[str, object])
    return Operation("GET", path, f"{DOCUMENTS[path]}, as a document for programs.", (answer,))


# -- /api/chat


class ChatBody(Params):
    __pydantic_config__ = {
        **Params.__pydantic_config__,
        "json_schema_extra": {
            "examples": [{"message": "Good morning!", "conversation_id": "of-today"}]
        },
    }

    message: Annotated[str, Check(max_length=LONGEST_TEXT, says=NOT_BLANK)]
    conversation_id: Text | None = None
    agent: Text | None = None
    stream: Annotated[bool, Check(strict=True)] = False
    limits: OwnLimits | None = None


class CallMade(Value):
    """A tool call of a run, and what came of it."""

    id: str
    name: str
    arguments: str
    status: Literal["success", "error"]
    result: str
    duration_ms: float


class ChatAnswer(Value):
    """`usage` is of all models that worked for it; its cost is of those calls of which it is known."""

    conversation_id: str
    run_id: str
    response: str
    message_id: str
    tokens_used: int
    usage: TokenUsage
    model: str | None
    execution_time_ms: int
    reason: DoneReason
    partial: bool
    tool_calls_made: list[CallMade]
    merged_into: str | None = None


class RunError(WhyFailed):
    """With what a run ended. `code` and `error_type` are its `type`, `user_facing_message` is its
    `message`: a sentence of ours, never a provider's words."""

    type: str
    code: str
    error_type: str
    message: str
    user_facing_message: str
    retryable: bool
    timestamp: datetime


class FailedChat(Value):
    conversation_id: str
    run_id: str
    error: RunError


class LateChat(ChatAnswer):
    """The run reached its time limit: the error, and what there is."""

    error: RunError


CHAT = Operation(
    "POST",
    "/api/chat",
    "Say something to an agent, and wait for the answer.",
    (
        Answer(200, "The answer.", ChatAnswer, headers=(RUN,)),
        Answer(
            200, "With `stream`, or if asked for: the events of the run.", RunEvent, STREAM, (RUN,)
        ),
        Answer(
            429,
            "A budget is spent, or too many failures.",
            FailedChat | ErrorAnswer,
            headers=(WAIT,),
        ),
        Answer(
            500, "Our mistake, or our configuration's.", FailedChat | ErrorAnswer, headers=(WAIT,)
        ),
        Answer(502, "The model service failed.", FailedChat, headers=(RUN, WAIT)),
        Answer(
            504, "The time limit is reached; what there is comes along.", LateChat, headers=(RUN,)
        ),
    ),
    body=ChatBody,
    headers=(IDEMPOTENCY_KEY,),
    refusals=(404, 409, 422),
)


# -- /api/conversations, /api/records


class ConversationQuery(Params):
    before: Text | None = None
    limit: Annotated[int, Check(ge=1, le=500)] = 50


class ConversationPage(HistoryPage):
    conversation_id: str
    session_key: str


class ErasedSession(Value):
    """How much is gone, and under which id that is remembered."""

    session_key: str
    messages: int
    facts: int
    tombstone: str | None


class ErasedConversation(Value):
    """A session for each agent that had it."""

    conversation_id: str
    erased: list[ErasedSession]


MESSAGES = Operation(
    "GET",
    "/api/conversations/{id:path}/messages",
    "The messages of a conversation, by its id or its session key.",
    (Answer(200, "A page of them.", ConversationPage),),
    query=ConversationQuery,
    refusals=(404, 422),
)
ERASE = Operation(
    "DELETE",
    "/api/conversations/{id:path}",
    "Erase a conversation for good, by its id or its session key.",
    (Answer(200, "What is gone.", ErasedConversation),),
    refusals=(404, 409),
)


class RecordsQuery(BudgetRecords):
    format: Literal["json", "csv"] | None = None


RECORDS = Operation(
    "GET",
    "/api/records",
    "What was spent, newest first: a record for each call of a model.",
    (
        Answer(200, "The records.", SpendingPage),
        Answer(
            200, "With `format=csv`, or if asked for: a table.", media="text/csv", headers=(MORE,)
        ),
    ),
    query=RecordsQuery,
    refusals=(404, 422),
)


# -- /mcp


class McpMessage(Value):
    """As the Model Context Protocol has it; without an `id`, a text or a number, it is a notification."""

    jsonrpc: Literal["2.0"]
    method: str
    id: object | None = None
    params: dict[str, object] | None = nullable()


class McpError(Value):
    code: int
    message: str
    data: object | None = None


class McpFailure(Value):
    jsonrpc: Literal["2.0"]
    id: str | float | None
    error: McpError


class McpResult(Value):
    jsonrpc: Literal["2.0"]
    id: str | float
    result: dict[str, object]


_MCP_REFUSED = {
    400: "Not understood.",
    404: "A session is named, and there are none.",
    406: "Accept lacks application/json.",
    415: "Content-Type is not application/json.",
}
# Without GET, which would hold a stream open for nothing.
MCP = Operation(
    "POST",
    "/mcp",
    "A message of the Model Context Protocol (streamable HTTP); there are no sessions or streams.",
    (
        Answer(200, "The answer to a request.", McpResult | McpFailure),
        Answer(202, "A notification was taken.", media=""),
        *(Answer(status, says, McpFailure | ErrorAnswer) for status, says in _MCP_REFUSED.items()),
    ),
    body=McpMessage,
)

"""The HTTP API: each operation with its parameters and its responses."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from gateway.api.chunks import RunEvent, WhyFailed
from gateway.api.conversations import LONGEST_TEXT, HistoryPage, OwnLimits, TokenUsage
from gateway.api.declarations import NOT_BLANK, Check, Flag, Method, Params, Text, Value, nullable
from gateway.api.errors import ErrorAnswer
from gateway.api.spending import BudgetRecords, SpendingPage
from gateway.domain.messages import DoneReason

JSON = "application/json"
STREAM = "text/event-stream"
ANYTHING = "*/*"


@dataclass(frozen=True, slots=True)
class Header:
    """A header of a request or a response. `pattern` restricts its value; `is_sure`: it is always present."""

    name: str
    says: str
    pattern: str | None = None
    is_sure: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. `type` is the type of the body, or of each event of a stream; None: text, or any content of
    that media type. A status may have several responses with different media types; status 0 is the default
    response."""

    status: int
    says: str
    type: Any = None
    media: str = JSON
    headers: tuple[Header, ...] = ()
    last: str | None = None  # the data of the event that ends a stream


@dataclass(frozen=True, slots=True)
class Operation:
    """An HTTP operation. `path` is in Starlette's syntax. `refusals` are its error statuses in addition to
    those of all operations; their bodies have the type `error`."""

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
    """Returns the operation for a method that is also available by `GET`."""
    answers = (Answer(200, "The result.", method.result),)
    query = None if "{" in method.http else method.params
    return Operation("GET", method.http, method.help, answers, query, refusals=method.errors)


WAIT = Header("Retry-After", "Seconds to wait.")
RUN = Header("X-Exogate-Run", "The id of the run.", is_sure=True)
# No control characters, and no blanks at the ends: HTTP strips them from header values.
WORD = r"^[^\x00-\x20\x7f]([^\x00-\x08\x0a-\x1f\x7f]{0,254}[^\x00-\x20\x7f])?$"
IDEMPOTENCY_KEY = Header(
    "Idempotency-Key", "A repeated request with the same key gets the stored answer.", WORD
)
SESSION = Header(
    "X-Exogate-Session", "The id of a stored conversation, which the message continues.", WORD
)
MORE = Header("X-Exogate-More", "true if there are older records.", "^(true|false)$", is_sure=True)


# -- /healthz, /readyz, /metrics, documents, /webhooks


class Alive(Value):
    status: Literal["ok"]


class ReadyForWork(Value):
    """The gateway takes work. `degraded` names parts that fail without stopping work: `nats`."""

    status: Literal["ready"]
    degraded: list[str] | None = None


class NotReady(Value):
    """The gateway takes no work. `reasons` needs the scope `read`."""

    status: Literal["not_ready"]
    reasons: list[str] | None = None


ALIVE = Operation(
    "GET",
    "/healthz",
    "Check that the process answers.",
    (Answer(200, "The process answers.", Alive),),
    refusals=(403,),
    is_guarded=False,
)
READY = Operation(
    "GET",
    "/readyz",
    "Check that the gateway is ready for work.",
    (
        Answer(200, "The gateway is ready.", ReadyForWork),
        Answer(
            503, "Not ready; `read` also gets the reasons.", NotReady | ErrorAnswer, headers=(WAIT,)
        ),
    ),
    refusals=(401, 403, 429),
    is_guarded=False,
)
METRICS = Operation(
    "GET",
    "/metrics",
    "Show spending, work and errors as metrics for Prometheus.",
    (Answer(200, "The metrics in the text format of Prometheus.", media="text/plain"),),
)
WEBHOOK_METHODS = ("GET", "POST", "PUT")
_CALL = (
    Answer(200, "The response that the platform requires.", media=ANYTHING),
    Answer(0, "Any other response of the channel's adapter.", media=ANYTHING),
)
# Each call must prove that it is genuine, by the method of its platform.
WEBHOOKS = tuple(
    Operation(
        method,
        path,
        "Receive a call from the platform of a channel.",
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
    "/openapi.json": "this HTTP API, as OpenAPI",
    "/asyncapi.json": "the WebSocket and the events of runs, as AsyncAPI",
    "/config.schema.json": "the configuration file, as JSON Schema",
}


def document(path: str) -> Operation:
    answer = Answer(200, "The document.", dict[str, object])
    return Operation("GET", path, f"Describe {DOCUMENTS[path]}.", (answer,))


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
    stream: Flag = False
    limits: OwnLimits | None = None


class CallMade(Value):
    """A tool call of a run, with its result."""

    id: str
    name: str
    arguments: str
    status: Literal["success", "error"]
    result: str
    duration_ms: float


class ChatAnswer(Value):
    """The answer of an agent. `usage` sums all models of the run; its cost covers the calls with a known price."""

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
    """The error that ended a run. `code` and `error_type` equal `type`; `user_facing_message` equals `message`,
    a sentence of the gateway that never quotes the provider."""

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
    """The partial answer of a run that reached its time limit, with the error."""

    error: RunError


CHAT = Operation(
    "POST",
    "/api/chat",
    "Send a message to an agent and wait for the answer.",
    (
        Answer(200, "The answer.", ChatAnswer, headers=(RUN,)),
        Answer(200, "With `stream` or by Accept: the events of the run.", RunEvent, STREAM, (RUN,)),
        Answer(
            429,
            "A budget is exhausted, or the address sent too many wrong tokens.",
            FailedChat | ErrorAnswer,
            headers=(WAIT,),
        ),
        Answer(
            500,
            "The gateway or its configuration failed.",
            FailedChat | ErrorAnswer,
            headers=(WAIT,),
        ),
        Answer(502, "The model service failed.", FailedChat, headers=(RUN, WAIT)),
        Answer(504, "The run timed out; with the partial answer.", LateChat, headers=(RUN,)),
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
    """The number of erased items, and the id of the tombstone."""

    session_key: str
    messages: int
    facts: int
    tombstone: str | None


class ErasedConversation(Value):
    """The erased sessions of a conversation, one for each agent."""

    conversation_id: str
    erased: list[ErasedSession]


MESSAGES = Operation(
    "GET",
    "/api/conversations/{id:path}/messages",
    "Show the messages of a conversation, by its id or its session key.",
    (Answer(200, "A page of messages.", ConversationPage),),
    query=ConversationQuery,
    refusals=(404, 422),
)
ERASE = Operation(
    "DELETE",
    "/api/conversations/{id:path}",
    "Erase a conversation permanently, by its id or its session key.",
    (Answer(200, "The erased sessions.", ErasedConversation),),
    refusals=(404, 409),
)


class RecordsQuery(BudgetRecords):
    format: Literal["json", "csv"] | None = None


RECORDS = Operation(
    "GET",
    "/api/records",
    "List the records of model calls, newest first.",
    (
        Answer(200, "The records.", SpendingPage),
        Answer(
            200, "With `format=csv` or by Accept: a CSV table.", media="text/csv", headers=(MORE,)
        ),
    ),
    query=RecordsQuery,
    refusals=(404, 422),
)


# -- /mcp


class McpMessage(Value):
    """A message of the Model Context Protocol. Without an `id` (a text or a number) it is a notification."""

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
    400: "The message is not valid.",
    404: "The request names a session; the gateway has no MCP sessions.",
    406: "Accept lacks application/json.",
    415: "Content-Type is not application/json.",
}
# There is no GET: it would keep a stream open that never has an event.
MCP = Operation(
    "POST",
    "/mcp",
    "Handle a message of the Model Context Protocol (streamable HTTP), without sessions or streams.",
    (
        Answer(200, "The response to a request.", McpResult | McpFailure),
        Answer(202, "The notification was accepted.", media=""),
        *(Answer(status, says, McpFailure | ErrorAnswer) for status, says in _MCP_REFUSED.items()),
    ),
    body=McpMessage,
)

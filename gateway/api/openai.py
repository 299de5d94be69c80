"""The supported part of OpenAI's API: requests and their answers."""

from typing import Annotated, Any, Literal

from gateway.api.chunks import Spent
from gateway.api.conversations import Lenient
from gateway.api.declarations import Check, Flag, Text, Value, nullable, whole
from gateway.api.http import IDEMPOTENCY_KEY, RUN, SESSION, STREAM, Answer, Operation

ToolName = Annotated[str, Check(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Nothing = Annotated[
    Any, Check(says={"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]})
]
_TEXT_TYPE = {"type": "object", "required": ["type"], "properties": {"type": {"const": "text"}}}


class TextPart(Lenient):
    type: Literal["text"]
    text: str


class Function(Lenient):
    name: ToolName
    arguments: str


class Call(Lenient):
    id: Text
    function: Function
    type: Literal["function"] = "function"


class Said(Lenient):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: Text | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(Lenient):
    include_usage: Flag | None = None


class Completion(Lenient):
    """A chat completion. The last fields are accepted only with values that have no effect."""

    __pydantic_config__ = {
        "extra": "ignore",
        "json_schema_extra": {
            "examples": [
                {"model": "main", "messages": [{"role": "user", "content": "Good morning!"}]}
            ]
        },
    }

    model: Text
    messages: Annotated[list[Said], Check(min_length=1, max_length=1000)]
    temperature: Annotated[float, Check(ge=0, le=2, strict=True)] | None = None
    max_tokens: Annotated[int, whole(ge=1)] | None = None
    max_completion_tokens: Annotated[int, whole(ge=1)] | None = None
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[Any, Check(says={"enum": [None, 1]})] = None
    tools: Nothing = None
    functions: Nothing = None
    response_format: Annotated[Any, Check(says={"anyOf": [{"type": "null"}, _TEXT_TYPE]})] = None
    stop: Nothing = None
    logprobs: Annotated[Any, Check(says={"enum": [None, False]})] = None
    audio: Annotated[Any, Check(says={"type": "null"})] = None

    @property
    def most_tokens(self) -> int | None:
        given = (self.max_tokens, self.max_completion_tokens)
        return min((one for one in given if one is not None), default=None)


class OpenAiError(Spent):
    """An error in the form that OpenAI clients expect."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAiErrorAnswer(Value):
    """The body of every error response of the OpenAI-compatible API."""

    error: OpenAiError


class Model(Value):
    """An agent, presented as a model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["exogate"] = "exogate"


class ModelList(Value):
    object: Literal["list"]
    data: list[Model]


class CompletionUsage(Value):
    """The tokens of all models that worked on the answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerMessage(Value):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None


FinishReason = Literal["stop", "length", "content_filter"]


class Choice(Value):
    index: Literal[0] = 0
    message: AnswerMessage
    logprobs: None
    finish_reason: FinishReason


class ChatCompletion(Value):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage


class LateCompletion(ChatCompletion):
    """The partial answer of a run that reached its time limit, with the error."""

    error: OpenAiError


class Delta(Value):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None


class PartChoice(Value):
    index: Literal[0] = 0
    delta: Delta
    logprobs: None
    finish_reason: FinishReason | None


class CompletionPart(Value):
    """One event of a stream. The event with the usage, sent on request, has no choices."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[PartChoice]
    usage: CompletionUsage | None = nullable()


MODELS = Operation(
    "GET",
    "/v1/models",
    "List the agents that the token may use, as models.",
    (Answer(200, "The agents.", ModelList),),
    error=OpenAiErrorAnswer,
)
MODEL = Operation(
    "GET",
    "/v1/models/{id:path}",
    "Show one agent as a model.",
    (Answer(200, "The agent.", Model),),
    refusals=(404,),
    error=OpenAiErrorAnswer,
)
COMPLETIONS = Operation(
    "POST",
    "/v1/chat/completions",
    "Ask an agent, in the form of OpenAI's chat completions.",
    (
        Answer(200, "The answer.", ChatCompletion, headers=(RUN,)),
        Answer(504, "The run reached its time limit.", LateCompletion, headers=(RUN,)),
        Answer(
            200,
            "With `stream`: the answer in pieces, or the error that ended it.",
            CompletionPart | OpenAiErrorAnswer,
            STREAM,
            (RUN,),
            last="[DONE]",
        ),
    ),
    body=Completion,
    headers=(IDEMPOTENCY_KEY, SESSION),
    refusals=(404, 409, 502),
    error=OpenAiErrorAnswer,
)

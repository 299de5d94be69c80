"""The words of the OpenAI chat API: requests that are understood, answers and errors. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.config import JsonDict
from starlette.responses import Response

from gateway.api.errors import InvalidParams, InvalidRequest
from gateway.domain.errors import Conflict
from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.web.given import WHOLE
from gateway.web.published.errors import OpenAiError, OpenAiErrorAnswer, Spent
from gateway.web.published.openai import CompletionUsage, Delta, FinishReason
from gateway.web.responses import error_headers, error_object, failure_of, json_response

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
MOST_TEXT = 400_000  # characters of a question, and of instructions
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
NOTHING: Mapping[str, str] = {}
# Of a budget that refused a call.
BUDGET = ("scope", "used", "reserved", "limit", "unit", "resets_at", "retry_after_s")
WHOLE_REASONS = frozenset({"answered", "cancelled", "superseded", "merged"})  # no limit was reached


_EXAMPLE: JsonDict = {"model": "main", "messages": [{"role": "user", "content": "Good morning!"}]}
_EMPTY = {"type": "array", "maxItems": 0}
Nothing = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "null"}, _EMPTY]})]
_TEXT_TYPE = {"type": "object", "required": ["type"], "properties": {"type": {"const": "text"}}}
_TEXT_FORMAT = {"anyOf": [{"type": "null"}, _TEXT_TYPE]}


class _Shape(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class TextPart(_Shape):
    type: Literal["text"]
    text: str


class Function(_Shape):
    name: ToolName
    arguments: str


class Call(_Shape):
    id: Name
    type: Literal["function"] = "function"
    function: Function


class Said(_Shape):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: Name | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(_Shape):
    include_usage: bool | None = None


class Completion(_Shape):
    """What stands at the end is known, and refused where it asks for something."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    model: Name
    messages: Annotated[list[Said], Field(min_length=1, max_length=1000)]
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[Any, WithJsonSchema({"enum": [None, 1]})] = None
    tools: Nothing = None
    functions: Nothing = None
    response_format: Annotated[Any, WithJsonSchema(_TEXT_FORMAT)] = None
    stop: Nothing = None
    logprobs: Annotated[Any, WithJsonSchema({"enum": [None, False]})] = None
    audio: Annotated[Any, WithJsonSchema({"type": "null"})] = None

    @property
    def most_tokens(self) -> int | None:
        given = (self.max_tokens, self.max_completion_tokens)
        return min((one for one in given if one is not None), default=None)


class BadParam(InvalidRequest):
    """It is understood, but cannot be had."""

    code = "unsupported_value"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


_OWN_TOOLS = "the agent has its own tools, which run here; leave it out"
_NOT_TAKEN = "is not taken here; leave it out"


def refuse_what_would_be_ignored(asked: Completion) -> None:
    """Raises BadParam for what changes an answer, and would not."""
    form = asked.response_format
    is_text = form is None or (isinstance(form, dict) and form.get("type") == "text")
    is_one = asked.n is None or (asked.n == 1 and asked.n is not True)
    fine = {
        "tools": (_is_nothing(asked.tools), _OWN_TOOLS),
        "functions": (_is_nothing(asked.functions), _OWN_TOOLS),
        "n": (is_one, "there is one answer to a request"),
        "response_format": (is_text, "only text is answered"),
        "stop": (_is_nothing(asked.stop), _NOT_TAKEN),
        "logprobs": (asked.logprobs is None or asked.logprobs is False, _NOT_TAKEN),
        "audio": (asked.audio is None, _NOT_TAKEN),
    }
    for param, (is_fine, why) in fine.items():
        if not is_fine:
            raise BadParam(param, why)


def _is_nothing(asked: object) -> bool:
    return asked is None or asked == []


def question_of(asked: Completion) -> str:
    """The last message. Raises BadParam."""
    last, param = asked.messages[-1], f"messages.{len(asked.messages) - 1}"
    if last.role != "user":
        raise BadParam(param, "the last message has to be the user's")
    if not last.text.strip() or len(last.text) > MOST_TEXT:
        raise BadParam(f"{param}.content", f"has to hold 1 to {MOST_TEXT} characters")
    return last.text


def instructions_of(asked: Completion) -> str:
    """Raises BadParam for more of them than a question may hold: they are never left out."""
    told = (said.text for said in asked.messages if said.role in {"system", "developer"})
    together = "\n\n".join(text for text in told if text)
    if len(together) > MOST_TEXT:
        raise BadParam("messages", f"system messages hold at most {MOST_TEXT} characters together")
    return together


def earlier_of(asked: Completion) -> Sequence[Message]:
    """What was said before the last message. Raises BadParam unless every call has its result, right
    after it."""
    said: list[Message] = []
    waiting: dict[str, str] = {}  # the names of calls by their ids
    for place, one in enumerate(asked.messages):
        param = f"messages.{place}"
        if one.role == "tool":
            said.append(_result(one, waiting, param))
        elif one.role in {"user", "assistant"}:
            if waiting:
                raise BadParam(param, f"the call {min(waiting)[:64]!r} before it has no result")
            said.append(_message(one, param))
            waiting = {call.id: call.name for call in said[-1].tool_calls}
    return [one for one in said[:-1] if one.text or one.tool_calls or one.result]


def _message(one: Said, param: str) -> Message:
    if one.role == "user":
        return Message("user", one.text)
    calls = [
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in one.tool_calls or ()
    ]
    if len({call.id for call in calls}) < len(calls):
        raise BadParam(f"{param}.tool_calls", "two calls have the same id")
    return Message("assistant", one.text, tuple(calls))


def _result(one: Said, waiting: dict[str, str], param: str) -> Message:
    call_id = one.tool_call_id or ""
    if call_id not in waiting:
        raise BadParam(f"{param}.tool_call_id", "there is no call with that id right before it")
    return Message("tool", result=ToolResult(call_id, waiting.pop(call_id), one.text))


@dataclass(slots=True)
class Telling:
    """What a caller has been told of a run so far. `said`, put together, is the answer, whether it
    is told in pieces or whole."""

    said: list[str] = field(default_factory=list)
    sent: int = 0
    received: int = 0
    end: Mapping[str, Any] | None = None
    _is_apart: bool = False

    def take(self, event: Mapping[str, Any]) -> Sequence[Delta]:
        """The deltas that an event is worth."""
        match event["type"]:
            case "content":
                return [self._delta(event["content"])]
            case "thinking":
                return [{"reasoning_content": event["content"]}]
            case "tool_result":
                self._is_apart = True
            case "usage":
                self.sent += event["input_tokens"]
                self.received += event["output_tokens"]
            case "done" | "error":
                self.end = event
                return self._rest(event)
        return []

    def _delta(self, text: str) -> Delta:
        if self._is_apart and self.said:
            text = f"\n\n{text}"
        self._is_apart = False
        self.said.append(text)
        return {"content": text}

    def _rest(self, end: Mapping[str, Any]) -> Sequence[Delta]:
        """What stands in the answer and was not told in pieces, as the words of a limit."""
        response = end.get("response", "")
        if end.get("truncated") or self.text.endswith(response):
            return []
        self._is_apart = True
        return [self._delta(response)]

    @property
    def text(self) -> str:
        return "".join(self.said)

    @property
    def finish(self) -> FinishReason:
        end = self.end or {}
        if end.get("filtered"):
            return "content_filter"
        return "length" if end.get("cut") or end.get("reason") not in WHOLE_REASONS else "stop"

    @property
    def is_too_late(self) -> bool:
        return self.end is not None and self.end.get("reason") == "timeout"

    @property
    def usage(self) -> CompletionUsage:
        return {
            "prompt_tokens": self.sent,
            "completion_tokens": self.received,
            "total_tokens": self.sent + self.received,
        }


@dataclass(frozen=True, slots=True)
class Failed:
    """An error as its status, its object and its headers."""

    status: int
    error: OpenAiError
    headers: Mapping[str, str]

    def response(self, more: Mapping[str, str] = NOTHING) -> Response:
        answer: OpenAiErrorAnswer = {"error": self.error}
        return json_response(answer, self.status, {**more, **self.headers})

    @staticmethod
    def of(end: Mapping[str, Any], status: int) -> "Failed":
        """Of a run; asking again by itself would only cost more."""
        code, after = end["error_type"], end.get("retry_after_s")
        headers = {} if after is None else {"retry-after": str(ceil(after))}
        kind = "insufficient_quota" if code == "budget_exceeded" else "server_error"
        facts: Any = {name: end[name] for name in BUDGET if name in end and "scope" in end}
        spent: Spent = facts
        error: OpenAiError = {
            "message": end["message"],
            "type": kind,
            "param": None,
            "code": code,
            **spent,
        }
        return Failed(status, error, {**headers, "x-should-retry": "false"})

    @staticmethod
    def by(error: BaseException) -> "Failed":
        """Of a request."""
        status, told = failure_of(error).status, error_object(error)
        param, message = getattr(error, "param", None), told["message"]
        if isinstance(error, InvalidParams):
            status = 400
            param, message = _problem(error) if error.problems else (None, message)
        kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        shown: OpenAiError = {
            "message": message,
            "type": kind,
            "param": param,
            "code": told["code"],
        }
        never = {"x-should-retry": "false"} if isinstance(error, Conflict) else {}
        return Failed(status, shown, {**error_headers(error), **never})


def _problem(error: InvalidParams) -> tuple[str, str]:
    """The first; what may be one of several is told as one."""
    where, what = error.problems[0]
    head, content, _ = where.partition(".content")
    if content:
        return f"{head}.content", f"{head}.content: only text, or parts of the type text, are taken"
    return where, f"{where}: {what}"

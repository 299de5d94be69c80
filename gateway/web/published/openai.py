"""The answers of OpenAI's API, as far as they are given here."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from gateway.web.published.errors import OpenAiError


class Model(TypedDict):
    """An agent, as a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["exogate"]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[Model]


class CompletionUsage(TypedDict):
    """Of all models that worked for the answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    refusal: None


FinishReason = Literal["stop", "length", "content_filter"]


class Choice(TypedDict):
    index: Literal[0]
    message: AnswerMessage
    logprobs: None
    finish_reason: FinishReason


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage


class LateCompletion(ChatCompletion):
    """The run reached its time limit: the error, and what there is."""

    error: OpenAiError


class Delta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    reasoning_content: str


class PartChoice(TypedDict):
    index: Literal[0]
    delta: Delta
    logprobs: None
    finish_reason: FinishReason | None


class CompletionPart(TypedDict):
    """One event of a stream; the one with the usage, if that was asked for, has no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[PartChoice]
    usage: NotRequired[CompletionUsage | None]

"""Makes a request fit the window of its model, in a fixed order, or names the part that is too large. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gateway.domain.errors import TooLarge
from gateway.domain.messages import Excerpt, Message, estimate_tokens
from gateway.domain.model import ModelRequest
from gateway.memory.context import (
    HEAD,
    SUMMARY_OPENING,
    TAIL,
    Context,
    message_tokens,
    reply_room,
    tool_tokens,
)

SLACK = 400  # tokens of the tool `result`, which may be offered in addition


def fit(request: ModelRequest, context: Context, window: int) -> ModelRequest:
    """Returns a request that fits the window. It leaves out, until the rest fits: facts and recalled turns,
    the oldest exchanges, the summary; then the middle of this turn's results, the oldest first. Raises
    TooLarge."""
    request = replace(request, max_tokens=reply_room(request.max_tokens, window))
    system, tools = estimate_tokens(request.system), sum(map(tool_tokens, request.tools))
    messages = list(request.messages)
    excess = request.max_tokens + system + tools + sum(map(message_tokens, messages)) - window
    for optional in _optional(context):
        if excess <= 0:
            break
        ids = set(map(id, optional))
        excess -= sum(message_tokens(one) for one in messages if id(one) in ids)
        messages = [one for one in messages if id(one) not in ids]
    excess = _shorten(messages, context, excess)
    if excess > 0:
        fixed = {"the system text": system, "the list of tools": tools}
        raise _too_large(request, messages, context, window, fixed)
    return replace(request, messages=tuple(messages))


def _optional(context: Context) -> Iterator[Sequence[Message]]:
    """Yields groups of messages in the order in which they are left out. Unanswered questions at the end
    of the history stay."""
    if context.memory is not None:
        yield [context.memory]
    summary = [one for one in context.history[:1] if one.text.startswith(SUMMARY_OPENING)]
    exchanges: list[list[Message]] = []
    before = "assistant"
    for message in context.history[len(summary) :]:
        if message.role == "user" and before == "assistant":
            exchanges.append([])
        if exchanges:
            exchanges[-1].append(message)
        before = message.role
    yield from (one for one in exchanges if one[-1].role == "assistant")
    yield summary


def _shorten(messages: list[Message], context: Context, excess: int) -> int:
    """Shortens results of this turn, the oldest first, until they fit. Returns the remaining excess."""
    old = set(map(id, context.history))
    for place, one in enumerate(messages):
        result = one.result
        if excess <= 0:
            break
        if result is None or id(one) in old or len(result.content) <= HEAD + TAIL + 100:
            continue
        known = result.excerpt or Excerpt(0, 0, len(result.content))
        result = replace(result, excerpt=replace(known, head=HEAD, tail=TAIL))
        messages[place] = replace(one, result=result, kept={})
        excess -= message_tokens(one) - message_tokens(messages[place])
    return excess


def _too_large(
    request: ModelRequest,
    messages: Sequence[Message],
    context: Context,
    window: int,
    fixed: Mapping[str, int],
) -> TooLarge:
    """Makes the error, which names the largest part of the request."""
    kept = {id(context.question), *map(id, context.history)}
    question = sum(message_tokens(one) for one in messages if id(one) in kept)
    parts = {"the question": question, **fixed}
    for one in messages:
        if id(one) in kept:
            continue
        name = "what was said in this run"
        if one.result is not None:
            name = f"what the tool {one.result.name[:64]} gave in this run"
        parts[name] = parts.get(name, 0) + message_tokens(one)
    largest = max(parts, key=lambda name: parts[name])
    what = (
        f"{largest} is {parts[largest]:,} tokens, the window of {request.model} is {window:,}, of "
        f"which {request.max_tokens:,} are for the reply"
    )
    return TooLarge(request.provider, what)

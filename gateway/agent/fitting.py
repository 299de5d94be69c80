"""Makes a request fit the window of its model, in a fixed order, or says what is too large. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.domain.errors import TooLarge
from gateway.domain.messages import Excerpt, Message, estimate_tokens
from gateway.domain.model import ModelRequest
from gateway.memory.compaction import OPENING
from gateway.memory.context import Context, reply_room, tool_tokens
from gateway.memory.window import HEAD, TAIL, message_tokens

SLACK = 400  # tokens of what may be offered besides: the tool `result`


def fitted(request: ModelRequest, context: Context, window: int) -> ModelRequest:
    """The request with as much as the window holds. It leaves out, until it fits: the facts and
    recalled turns, the oldest exchanges, the summary; then it shows only begin and end of the results
    of this turn, the oldest first. Raises TooLarge."""
    request = replace(request, max_tokens=reply_room(request.max_tokens, window))
    system, tools = estimate_tokens(request.system), sum(map(tool_tokens, request.tools))
    room = window - request.max_tokens - system - tools
    messages = list(request.messages)
    size = sum(map(message_tokens, messages))
    for leaving in _what_may_leave(messages, context):
        if size <= room:
            break
        messages = [one for one in messages if id(one) not in leaving]
        size = sum(map(message_tokens, messages))
    if size > room:
        messages = _shortened(messages, context, size - room)
        size = sum(map(message_tokens, messages))
    if size > room:
        fixed = {"the system text": system, "the list of tools": tools}
        raise _too_large(request, messages, context, window, fixed)
    return replace(request, messages=tuple(messages))


def _what_may_leave(messages: Sequence[Message], context: Context) -> list[set[int]]:
    """Groups of messages, by identity, in the order in which they are left out."""
    summary = [one for one in context.history[:1] if one.text.startswith(OPENING)]
    exchanges = _answered(context.history[len(summary) :])
    memory = [] if context.memory is None else [context.memory]
    leaving = [{id(one) for one in some} for some in (memory, *exchanges, summary)]
    return [some for some in leaving if any(id(one) in some for one in messages)]


def _answered(history: Sequence[Message]) -> Sequence[Sequence[Message]]:
    """Its exchanges, without questions at its end that are still to be answered."""
    exchanges: list[list[Message]] = []
    before = "assistant"
    for message in history:
        if message.role == "user" and before == "assistant":
            exchanges.append([])
        if exchanges:
            exchanges[-1].append(message)
        before = message.role
    return [one for one in exchanges if one[-1].role == "assistant"]


def _shortened(messages: Sequence[Message], context: Context, excess: int) -> list[Message]:
    """Shows results of this turn in part, until the excess is gone."""
    before = {id(one) for one in context.history}
    short: list[Message] = []
    for one in messages:
        cut = one
        if excess > 0 and one.result is not None and id(one) not in before:
            cut = _in_part(one)
            excess -= message_tokens(one) - message_tokens(cut)
        short.append(cut)
    return short


def _in_part(message: Message) -> Message:
    result = message.result
    assert result is not None
    if len(result.content) <= HEAD + TAIL + 100:
        return message
    known = result.excerpt or Excerpt(0, 0, len(result.content))
    excerpt = replace(known, head=HEAD, tail=TAIL)
    return replace(message, result=replace(result, excerpt=excerpt), kept={})


def _too_large(
    request: ModelRequest,
    messages: Sequence[Message],
    context: Context,
    window: int,
    fixed: Mapping[str, int],
) -> TooLarge:
    """Names the part that takes most of the window."""
    asked = {id(context.question), *map(id, context.history)}
    question = sum(message_tokens(one) for one in messages if id(one) in asked)
    parts = {"the question": question, **fixed}
    for one in messages:
        if id(one) in asked:
            continue
        name = "what was said in this run"
        if one.result is not None:
            name = f"what the tool {one.result.name[:64]} gave in this run"
        parts[name] = parts.get(name, 0) + message_tokens(one)
    largest = max(parts, key=lambda name: parts[name])
    told = (
        f"{largest} is {parts[largest]:,} tokens, the window of {request.model} is {window:,}, of "
        f"which {request.max_tokens:,} are for the reply"
    )
    return TooLarge(request.provider, told)

"""The demo model: in this process, scripted, the same answer every time, and honest about it."""

import re
from collections.abc import Mapping

from anyio.lowlevel import checkpoint

from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.domain.model import FinishReason, Hear, ModelReply, ModelRequest, TextDelta
from gateway.domain.notices import OPENING as NOTICE
from gateway.domain.recall import OPENING as MEMORY
from gateway.domain.tokens import MESSAGE_OVERHEAD, estimate_tokens
from gateway.domain.usage import Usage
from gateway.providers.demo_facts import answered, stated
from gateway.providers.demo_tools import arguments_of, told, wished

HONEST = (
    "I am a scripted demo inside this gateway, not an AI. I can greet you, repeat things and "
    "remember what you tell me; with the gateway's tools I also calculate, look at the clock "
    "and keep notes."
)
DEFAULT = (
    "I am only a scripted demo and cannot answer that. Try: what is 2+3*4? note: buy milk. "
    "my dog is called Luna. what is my dog called? For a real model set a key, such as "
    "ANTHROPIC_API_KEY or OPENAI_API_KEY, and start the gateway again."
)
LOOKED_AT = 2_000  # characters of what was said

_WORD = re.compile(r"\S+\s*")
_ASKS_SELF = re.compile(
    r"\b(?:who|what) are you\b|\bwhat can you do\b|\bare you (?:an? )?(?:\w+ )?"
    r"(?:ai|bot|human|person|llm|model|real|robot|machine)\b|\bwhat(?:'s| is) your name\b"
    r"|\bwhat model\b|^\s*/?help\b",
    re.IGNORECASE,
)
_GREETING = re.compile(r"^\s*(?:hi|hello|hey|good (?:morning|day|evening))\b", re.IGNORECASE)
_THANKS = re.compile(r"\b(?:thanks|thank you)\b", re.IGNORECASE)


_Answer = tuple[str, ToolCall | None]


class DemoModel:
    """Implements the Model port without any network."""

    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        answer, call = _answer(request)
        text, is_cut = _within(answer, request.max_tokens)
        for piece in _WORD.findall(text) if request.stream or not text else [text]:
            hear(TextDelta(piece))
            await checkpoint()  # others may work between two words
        calls = (call,) if call and not is_cut else ()
        finish: FinishReason = "length" if is_cut else "tool_calls" if calls else "stop"
        return ModelReply(
            provider=request.provider,
            model=request.model,
            text=text,
            tool_calls=calls,
            usage=_usage(request, text, calls),
            finish=finish,
        )


def _answer(request: ModelRequest) -> _Answer:
    spoken = (m for m in reversed(request.messages) if not m.text.startswith((NOTICE, MEMORY)))
    last = next(spoken, Message("user"))
    if last.result is not None:
        return told(last.result, _asked(request.messages, last.result)), None
    offered = {tool.name for tool in request.tools}
    wish = wished(last.text, offered)
    if wish is None:
        return _said(last.text[:LOOKED_AT], request.messages), None
    if wish.tool not in offered:
        return wish.without, None
    return wish.saying, ToolCall(f"demo_{len(request.messages)}", wish.tool, wish.arguments)


def _asked(messages: tuple[Message, ...], result: ToolResult) -> Mapping[str, object]:
    """The arguments of the call that a result answers."""
    calls = (call for message in reversed(messages) for call in message.tool_calls)
    asked = (call.arguments for call in calls if call.id == result.call_id)
    return arguments_of(next(asked, "{}"))


def _said(text: str, messages: tuple[Message, ...]) -> str:
    """The first pattern that fits."""
    if (answer := answered(text, messages)) is not None:
        return answer
    if _ASKS_SELF.search(text):
        return HONEST
    if facts := stated(text):
        said = " and ".join(fact.said for fact in facts.values())
        return f"Noted: {said}."
    if _GREETING.match(text):
        return "Hello! I am the scripted demo of this gateway. Ask me what I can do."
    return "You are welcome." if _THANKS.search(text) else DEFAULT


def _within(text: str, max_tokens: int) -> tuple[str, bool]:
    """As many whole words as the limit leaves room for, and whether some had to go."""
    if estimate_tokens(text) <= max_tokens:
        return text, False
    kept = ""
    for word in _WORD.findall(text):
        if estimate_tokens(kept + word) > max_tokens:
            break
        kept += word
    return kept, True


def _usage(request: ModelRequest, text: str, calls: tuple[ToolCall, ...]) -> Usage:
    """Of what it reads: what people said, what it remembers and what tools gave it; it knows tools by
    their names, and needs neither instructions nor its own words."""
    read = [message for message in request.messages if message.role != "assistant"]
    parts = [" ".join(tool.name for tool in request.tools)]
    parts += [message.result.content if message.result else message.text for message in read]
    return Usage(
        input_tokens=sum(map(estimate_tokens, parts)) + MESSAGE_OVERHEAD * len(read),
        output_tokens=estimate_tokens(text + "".join(c.name + c.arguments for c in calls)),
        estimated=True,
    )

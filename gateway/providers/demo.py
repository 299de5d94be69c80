"""The demo model: in this process, scripted, the same answer every time, and honest about it."""

import re
from collections.abc import Mapping

from anyio.lowlevel import checkpoint

from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.domain.model import FinishReason, Hear, ModelReply, ModelRequest, TextDelta, Usage
from gateway.domain.notices import OPENING
from gateway.domain.tokens import MESSAGE_OVERHEAD, estimate_tokens
from gateway.providers.demo_tools import arguments_of, told, wished

HONEST = (
    "I am a scripted demo inside this gateway, not an AI: I follow a few fixed patterns. "
    "I can greet you, repeat things and remember what you tell me in this conversation; with the "
    "tools that come with the gateway I also calculate, look at the clock and keep notes."
)
DEFAULT = (
    "I am only a scripted demo model, so I cannot answer that. Try: what time is it? "
    "what is 2+3*4? note: buy milk. list my notes. my dog is called Luna. what is my dog called? "
    "To talk to a real model, set a provider's key, such as ANTHROPIC_API_KEY, OPENAI_API_KEY, "
    "GEMINI_API_KEY or OPENROUTER_API_KEY, and start the gateway again."
)
LOOKED_AT = 2_000  # characters of what was said
NOT_TOLD = "You have not told me that."

_WORD = re.compile(r"\S+\s*")
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_THING = r"(?P<thing>[^\W\d_][\w' -]{0,40}?)"
_VALUE = r"(?P<value>\S[^.!?\n]{0,80})"
_TOLD = re.compile(rf"\bmy {_THING} (?:is|are) (?P<how>called |named )?{_VALUE}", re.IGNORECASE)
_TOLD_NAME = re.compile(rf"^\s*(?:call me|i am called|i'm called) {_VALUE}", re.IGNORECASE)
_ASKS = re.compile(
    r"^\s*(?:please |and |so |but )?(?:what|who|which|how|where|when|do|does|did|can|could|tell|is|are)\b",
    re.IGNORECASE,
)
_ASKS_FACT = re.compile(
    rf"\b(?:what|who|how|which)(?:'s|\s+is|\s+are|\s+was)\s+(?:the name of )?my {_THING}"
    r"(?: called| named)?\s*\?*\s*$"
    rf"|\b(?:do you (?:remember|know)|tell me)\s+(?:the name of )?my (?P<other>[\w' -]+?)\s*[?.]*$",
    re.IGNORECASE,
)
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
    spoken = (m for m in reversed(request.messages) if not m.text.startswith(OPENING))
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
    if asked := _ASKS_FACT.search(text):
        return _recalled(asked["thing"] or asked["other"], messages)
    if _ASKS_SELF.search(text):
        return HONEST
    if facts := _facts(text):
        said = " and ".join(facts.values())
        return f"I will remember in this conversation that {said}."
    if _GREETING.match(text):
        return "Hello! I am the scripted demo of this gateway. Ask me what I can do."
    return "You are welcome." if _THANKS.search(text) else DEFAULT


def _recalled(thing: str, messages: tuple[Message, ...]) -> str:
    known: dict[str, str] = {}
    for message in messages:
        if message.role == "user":
            known |= _facts(message.text)
    fact = known.get(_key(thing))
    return f"{fact[0].upper()}{fact[1:]}." if fact else NOT_TOLD


def _facts(text: str) -> dict[str, str]:
    """What somebody says of what is theirs: the thing, and the sentence to say back."""
    facts: dict[str, str] = {}
    for sentence in _SENTENCE.findall(text):
        if sentence.rstrip().endswith("?") or _ASKS.match(sentence):
            continue
        if name := _TOLD_NAME.match(sentence):
            facts["name"] = f"your name is {name['value'].strip()}"
        elif fact := _TOLD.search(sentence):
            how = fact["how"] or ""
            value = fact["value"].strip()
            facts[_key(fact["thing"])] = f"your {fact['thing']} is {how}{value}"
    return facts


def _key(thing: str) -> str:
    """A thing by one name, whichever way it is asked for: `dog's name` is `dog`."""
    key = " ".join(thing.lower().split()).removesuffix(" called").removesuffix(" named")
    if key == "name":
        return key
    return key.removesuffix(" name").removesuffix("'s").strip()


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
    parts = [request.system]
    parts += [tool.name + tool.description + tool.parameters for tool in request.tools]
    for message in request.messages:
        parts.append(message.text)
        parts += [call.name + call.arguments for call in message.tool_calls]
        parts.append(message.result.content if message.result else "")
    overhead = MESSAGE_OVERHEAD * len(request.messages)
    return Usage(
        input_tokens=sum(map(estimate_tokens, parts)) + overhead,
        output_tokens=estimate_tokens(text + "".join(c.name + c.arguments for c in calls)),
        estimated=True,
    )

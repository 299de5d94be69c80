"""The demo model: scripted answers without a network. It says that it is a demo."""

import re
from collections.abc import Mapping, Sequence, Set
from hashlib import sha256
from typing import NamedTuple

from anyio.lowlevel import checkpoint
from pydantic_core import from_json, to_json

from gateway.domain.events import OPENING as NOTICE
from gateway.domain.facts import OPENING as MEMORY
from gateway.domain.facts import SUBJECT
from gateway.domain.messages import (
    MESSAGE_OVERHEAD,
    Message,
    ToolCall,
    ToolResult,
    Usage,
    estimate_tokens,
)
from gateway.domain.model import FinishReason, ModelReply, ModelRequest, OnDelta, TextDelta

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
MAX_QUESTION = 2_000  # characters that are searched for patterns

_WORD = re.compile(r"\S+\s*")
_ASKS_SELF = re.compile(
    r"(?i)\b(?:who|what) are you\b|\bwhat can you do\b|\bare you (?:an? )?(?:\w+ )?"
    r"(?:ai|bot|human|person|llm|model|real|robot|machine)\b|\bwhat(?:'s| is) your name\b"
    r"|\bwhat model\b|^\s*/?help\b"
)
_GREETING = re.compile(r"(?i)^\s*(?:hi|hello|hey|good (?:morning|day|evening))\b")
_THANKS = re.compile(r"(?i)\b(?:thanks|thank you)\b")


class DemoModel:
    """Implements the Model port without any network."""

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        answer, call = _answer(request)
        text = _within(answer, request.max_tokens)
        for piece in _WORD.findall(text) if request.stream or not text else [text]:
            on_delta(TextDelta(piece))
            if request.progress is not None:
                request.progress.size += len(piece.encode())
            await checkpoint()
        is_cut = text != answer
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


def _answer(request: ModelRequest) -> tuple[str, ToolCall | None]:
    messages = request.messages
    spoken = (m for m in reversed(messages) if not m.text.startswith((NOTICE, MEMORY)))
    last = next(spoken, Message("user"))
    if last.result is not None:
        return _describe_result(last.result, messages), None
    offered = {tool.name for tool in request.tools}
    wanted = wanted_call(last.text, offered)
    if wanted is None:
        return _reply_to(last.text[:MAX_QUESTION], messages), None
    if wanted.tool not in offered:
        return wanted.without, None
    return wanted.saying, ToolCall(f"demo_{len(messages)}", wanted.tool, wanted.arguments)


def _reply_to(text: str, messages: tuple[Message, ...]) -> str:
    """Answers by the first matching pattern."""
    if (answer := _recall(text, messages)) is not None:
        return answer
    if _ASKS_SELF.search(text):
        return HONEST
    if facts := _stated(text):
        return f"Noted: {' and '.join(fact.sentence for fact in facts.values())}."
    if _GREETING.match(text):
        return "Hello! I am the scripted demo of this gateway. Ask me what I can do."
    return "You are welcome." if _THANKS.search(text) else DEFAULT


def _within(text: str, max_tokens: int) -> str:
    """Cuts a text after the last word within the limit."""
    if estimate_tokens(text) <= max_tokens:
        return text
    kept = ""
    for word in _WORD.findall(text):
        if estimate_tokens(kept + word) > max_tokens:
            break
        kept += word
    return kept


def _usage(request: ModelRequest, text: str, calls: tuple[ToolCall, ...]) -> Usage:
    """Estimates the usage. The demo reads messages of users and tools and the names of tools, but neither
    instructions nor its own messages."""
    read = [message for message in request.messages if message.role != "assistant"]
    parts = [" ".join(tool.name for tool in request.tools)]
    parts += [message.result.content if message.result else message.text for message in read]
    return Usage(
        input_tokens=sum(map(estimate_tokens, parts)) + MESSAGE_OVERHEAD * len(read),
        output_tokens=estimate_tokens(text + "".join(c.name + c.arguments for c in calls)),
        estimated=True,
    )


# Facts from the conversation and the memory, and questions about them.

NOT_TOLD = "You have not told me that."

_THING = r"(?P<thing>[^\W\d_][\w' -]{0,40}?)"
_VALUE = r"(?P<value>\S[^.!?\n]{0,80})"
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_TOLD = re.compile(rf"(?i)\bmy {_THING} (?:is|are) (?P<how>called |named )?{_VALUE}")
_TOLD_NAME = re.compile(rf"(?i)^\s*(?:call me|i am called|i'm called) {_VALUE}")
_TOLD_PLACE = re.compile(
    r"(?i)^\s*(?:and |but )?i (?:now |just |have |recently )*"
    rf"(?:live in|moved (?:from [^.!?\n]{{1,80}}? )?to) {_VALUE}"
)
_SINCE = re.compile(
    r"(?i),? (?:last|this|since|in \d{4}|yesterday|today|now|recently|\w+ \w+ ago)\b.*"
)
_ASKS = re.compile(
    r"(?i)^\s*(?:please |and |so |but )?"
    r"(?:what|who|which|how|where|when|do|does|did|can|could|tell|is|are)\b"
)
_ASKS_FACT = re.compile(
    rf"(?i)\b(?:what|who|how|which|when)(?:'s|\s+is|\s+are|\s+was)\s+(?:the name of )?my {_THING}"
    r"(?: called| named)?\s*\?*\s*$"
    r"|\b(?:do you (?:remember|know)|tell me)\s+(?:the name of )?my (?P<other>[\w' -]+?)\s*[?.]*$"
)
_ASKS_WHEN = re.compile(r"(?i)^\s*(?:and |so )?(?:since when|how long|when did (?:i|you))\b")
# Fact key -> questions about it without "my".
_TOPICS = {
    "location": re.compile(r"(?i)\bwhere (?:do i|am i) (?:live|living)\b"),
    "employer": re.compile(r"(?i)\bwh(?:ere|o) do i work\b"),
    "age": re.compile(r"(?i)\bhow old am i\b"),
    "name": re.compile(r"(?i)\bwho am i\b"),
}
_NAMED = {"location": {"live", "lived", "move", "moved"}, "employer": {"work", "worked", "job"}}
_SENTENCES = {
    "name": "your name is {}",
    "location": "you live in {}",
    "employer": "you work at {}",
    "age": "you are {}",
}
_LINE = re.compile(
    rf"- {SUBJECT} (?P<predicate>\S+) (?P<object>.+) "
    r"\(since (?P<since>[\d-]+), told (?P<told>[\d-]+)(?P<ended>, until [\d-]+)?\)"
)


class DemoFact(NamedTuple):
    """A fact as a sentence to the user. Only a fact from the memory has dates."""

    sentence: str
    since: str = ""
    told: str = ""


def _recall(text: str, messages: Sequence[Message]) -> str | None:
    """Answers a question about a fact; None if the text is not one."""
    if _ASKS_WHEN.search(text):
        return _when(text, _known(messages))
    key = next((key for key, topic in _TOPICS.items() if topic.search(text)), None)
    if asked := _ASKS_FACT.search(text):
        key = _key(asked["thing"] or asked["other"])
    if key is None:
        return None
    known = _known(messages).get(key)
    return f"{known.sentence[0].upper()}{known.sentence[1:]}." if known else NOT_TOLD


def _stated(text: str) -> dict[str, DemoFact]:
    """Returns the facts that a text states, by key."""
    facts: dict[str, DemoFact] = {}
    for sentence in _SENTENCE.findall(text):
        if sentence.rstrip().endswith("?") or _ASKS.match(sentence):
            continue
        if name := _TOLD_NAME.match(sentence):
            facts["name"] = DemoFact(f"your name is {name['value'].strip()}")
        elif place := _TOLD_PLACE.match(sentence):
            facts["location"] = DemoFact(f"you live in {_SINCE.sub('', place['value']).strip()}")
        elif fact := _TOLD.search(sentence):
            value = f"{fact['how'] or ''}{fact['value'].strip()}"
            facts[_key(fact["thing"])] = DemoFact(f"your {fact['thing']} is {value}")
    return facts


def _known(messages: Sequence[Message]) -> Mapping[str, DemoFact]:
    """Returns the latest facts by key. A memory message precedes its question, and has corrections."""
    known: dict[str, DemoFact] = {}
    for message in messages:
        if message.role == "user":
            is_memory = message.text.startswith(MEMORY)
            known |= _remembered(message.text) if is_memory else _stated(message.text)
    return known


def _remembered(block: str) -> dict[str, DemoFact]:
    """Returns the facts of a memory message, by key."""
    known: dict[str, DemoFact] = {}
    for line in block.splitlines():
        if (fact := _LINE.fullmatch(line)) and not fact["ended"]:
            key = _key(fact["predicate"].replace("_", " "))
            sentence = _SENTENCES.get(key, f"your {key} is {{}}")
            if fact["predicate"].endswith("_name"):
                sentence = f"your {key} is called {{}}"
            known[key] = DemoFact(sentence.format(fact["object"]), fact["since"], fact["told"])
    return known


def _when(text: str, known: Mapping[str, DemoFact]) -> str:
    words = set(re.findall(r"\w+", text.lower()))
    for key, one in known.items():
        if words & _NAMED.get(key, set()) or words >= set(key.split()):
            if one.told:
                return f"You told me on {one.told} that {one.sentence}, since {one.since}."
            return f"You told me that {one.sentence}, but I do not know when."
    return NOT_TOLD


def _key(thing: str) -> str:
    """Returns the key of a thing, equal for its different names: `dog's name` gives `dog`."""
    key = " ".join(thing.lower().split())
    key = key.replace("favorite", "favourite").replace("colour", "color")
    key = key.removesuffix(" called").removesuffix(" named")
    return key if key == "name" else key.removesuffix(" name").removesuffix("'s").strip()


# Questions for tools, and their results.

NO_CLOCK = "I have no clock here, so I cannot tell you that."
NO_CALCULATOR = "I have no calculator here, so I cannot work that out."
NO_NOTES = "I have no notes here, so I cannot do that."
NO_MEMORY = "I have no memory here that goes back so far, so I cannot tell you that."

_TITLE_WORDS = 8
_MAX_TITLE = 80
_MAX_SUM = 200
_MAX_ASKED = 1_000
_CALL = re.compile(
    r"(?is)(?:please )?(?:call|use) (?:the )?(?P<name>[\w-]+)(?: tool)?(?: with)?\s*"
    r"(?P<arguments>\{.*\})?$"
)
_ECHO = re.compile(r"(?is)(?:echo|repeat|say)[:\s]+(?P<text>\S.*)")
_WRITE = re.compile(
    r"(?is)(?:please )?(?:note\s*:|(?:write|take|make|add|save) (?:me )?a note\b"
    r"(?: that\b| saying\b)?[:,]?)\s*(?P<note>\S.*)"
)
_LIST = re.compile(
    r"(?i)(?:please )?(?:(?:list|show)(?: me)?(?: all)?(?: my| the)? notes"
    r"|(?:what|which) notes (?:do i have|are there))[\s?.!]*$"
)
_READ = re.compile(
    r"(?i)(?:please )?(?:read|open|show)(?: me)?(?: my| the)? note[:\s]\s*(?P<name>\S.{0,200})$"
)
_FIND = re.compile(
    r"(?i)(?:please )?(?:find|search)(?: in)?(?: all)?(?: my| the)? notes? "
    r"(?:about |for |on |with )?(?P<query>\S.{0,200})$"
)
_ASKS_TIME = re.compile(
    r"(?i)\bwhat(?:'s| is)? (?:the )?(?:current )?(?:time|date|day)\b|\btime is it\b|\bwhat day\b"
    r"|\b(?:current|tell me the) (?:time|date)\b|\btoday'?s date\b|^\s*(?:time|date)\s*\??\s*$"
)
_ASKS_SUM = re.compile(
    r"(?i)(?:please )?(?:what(?:'s| is| are)|how much (?:is|are)|(?P<told>calculate|compute))\s+"
)
_SUM = re.compile(r"[0-9\s.+\-*/()^%]+")
_ASKS_BEFORE = re.compile(
    r"(?i)\bwhere (?:did i|have i) (?:live|lived|work|worked)\b.{0,40}"
    r"\b(?:before|earlier|previously)\b"
)
_OPERATION = re.compile(r"[0-9][\s)]*[-+*/^%][-+*/\s(]*[.0-9]")
_SPOKEN = {
    "+": re.compile(r"(?i)\bplus\b"),
    "-": re.compile(r"(?i)\bminus\b|\u2212"),
    "*": re.compile(r"(?i)\b(?:times|multiplied by)\b|\u00d7|(?<=\d) ?x ?(?=\d)"),
    "/": re.compile(r"(?i)\bdivided by\b|\u00f7"),
}


class WantedCall(NamedTuple):
    """A call that answers a question, and the texts with the call and without the tool."""

    tool: str
    arguments: str
    saying: str
    without: str


def wanted_call(text: str, offered: Set[str]) -> WantedCall | None:
    """Returns the call that answers a text, by the first matching pattern; its tool may not be offered."""
    text = text.strip()
    asked = _CALL.match(text)
    if asked and (asked["name"] in offered or asked["arguments"]):
        name, known = asked["name"], ", ".join(sorted(offered)) or "none"
        without = (
            f"I have no tool {name}. My tools: {known}. "
            "`exogate plugin list` shows the plugins, and why one is refused."
        )
        return WantedCall(name, asked["arguments"] or "{}", f"I call {name}.\n", without)
    if asked := _ECHO.match(text):
        return _wanted("echo", "", asked["text"], text=asked["text"])
    if asked := _WRITE.match(text):
        note = asked["note"]
        return _wanted("vault_write", "I take a note.\n", NO_NOTES, path=_path(note), content=note)
    return _call_for_question(text) if len(text) <= _MAX_ASKED else None


def _call_for_question(text: str) -> WantedCall | None:
    if _LIST.match(text):
        return _wanted("vault_list", "Let me see.\n", NO_NOTES)
    if asked := _READ.match(text):
        name = asked["name"].strip(" \t\"'?")
        path = name if name.endswith(".md") else _path(name)
        return _wanted("vault_read", "Let me read it.\n", NO_NOTES, path=path)
    if asked := _FIND.match(text):
        query = asked["query"].strip(" \t\"'?.")
        return _wanted("vault_search", "Let me look through your notes.\n", NO_NOTES, query=query)
    if asked := _ASKS_BEFORE.search(text):
        predicate = "location" if "live" in asked[0].lower() else "employer"
        history = {"operation": "history", "predicate": predicate}
        return _wanted("memory", "Let me look back.\n", NO_MEMORY, **history)
    if expression := _expression(text):
        return _wanted("calc", "Let me calculate.\n", NO_CALCULATOR, expression=expression)
    if _ASKS_TIME.search(text):
        return _wanted("time", "Let me look at the clock.\n", NO_CLOCK)
    return None


def _wanted(tool: str, saying: str, without: str, **arguments: str) -> WantedCall:
    return WantedCall(tool, to_json(arguments).decode(), saying, without)


def _path(note: str) -> str:
    """Returns a path made of the words of a note. Equal notes have equal paths."""
    words = re.findall(r"[a-z0-9]+", note.lower())
    title = "-".join(words[:_TITLE_WORDS])[:_MAX_TITLE]
    if title and title == "-".join(words) and note.isascii():
        return f"{title}.md"
    digest = sha256(note.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{title}-{digest}.md".removeprefix("-")


def _expression(text: str) -> str | None:
    """Returns the arithmetic expression in a question; None if there is none."""
    question = text.rstrip("=?!. \t\n")
    if len(question) > _MAX_SUM:
        return None
    asked = _ASKS_SUM.match(question)
    rest = question[asked.end() :] if asked else question
    for sign, spoken in _SPOKEN.items():
        rest = spoken.sub(sign, rest)
    if asked and asked["told"]:
        return rest
    return rest if _SUM.fullmatch(rest) and _OPERATION.search(rest) else None


def _describe_result(result: ToolResult, messages: Sequence[Message]) -> str:
    """Returns a sentence about a result."""
    if result.is_error:
        return f"The tool {result.name} could not do it: {result.content}"
    calls = (call for message in reversed(messages) for call in message.tool_calls)
    arguments = next((call.arguments for call in calls if call.id == result.call_id), "{}")
    value, asked = _read(result.content), _read(arguments)
    asked = asked if isinstance(asked, dict) else {}
    plain, names = _plain(value), _names(value)
    is_exact = not isinstance(value, dict) or value.get("exact", True)
    sentences = {
        "echo": plain,
        "calc": f"{asked.get('expression', 'It')} {'=' if is_exact else 'is about'} {plain}",
        "time": f"The clock says: {plain}",
        "vault_write": f"I wrote that down in {asked.get('path', 'your notes')}.",
        "vault_read": plain,
        "vault_list": f"Your notes: {names}." if names else "You have no notes yet.",
        "memory": _history(value),
        "vault_search": f"I found: {names}." if names else "Your notes say nothing of it.",
    }
    return sentences.get(result.name, f"The tool {result.name} says: {plain}")


def _read(text: str) -> object:
    """Returns the value of JSON text; other text unchanged."""
    try:
        value: object = from_json(text)
    except ValueError:
        return text
    return value


def _plain(value: object) -> str:
    match value:
        case str():
            return value
        case list():
            return "; ".join(map(_plain, value))
        case dict():
            for main in ("text", "result", "now", "value", "content"):
                if main in value:
                    return _plain(value[main])
            return "; ".join(f"{name}: {_plain(one)}" for name, one in value.items())
    return to_json(value).decode()


def _history(value: object) -> str:
    """Lists the facts that have ended, oldest first."""
    found = value.get("facts") if isinstance(value, dict) else None
    if not isinstance(found, list):
        return f"My memory says: {_plain(value)}"
    told = []
    for one in found:
        if isinstance(one, dict) and "until" in one:
            since, until = one["since"], one["until"]
            when = f"{since} to {until}" if since != until else f"until {until}"
            told.append(f"{one['object']}, {when}")
    return f"You told me: {'; '.join(told)}." if told else NOT_TOLD


def _names(value: object) -> str:
    """Joins the paths of the things in a list, or in the first list of an object."""
    if isinstance(value, dict):
        value = next((one for one in value.values() if isinstance(one, list)), None)
    found = value if isinstance(value, list) else []
    return ", ".join(
        _plain(one.get("path", one) if isinstance(one, dict) else one) for one in found
    )

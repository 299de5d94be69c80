"""The demo model: in this process, scripted, the same answer every time, and honest about it."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import sha256

from anyio.lowlevel import checkpoint
from pydantic_core import from_json, to_json

from gateway.domain.events import OPENING as NOTICE
from gateway.domain.facts import OPENING, SUBJECT
from gateway.domain.facts import OPENING as MEMORY
from gateway.domain.messages import (
    MESSAGE_OVERHEAD,
    Message,
    ToolCall,
    ToolResult,
    Usage,
    estimate_tokens,
)
from gateway.domain.model import FinishReason, Hear, ModelReply, ModelRequest, TextDelta

NOT_TOLD = "You have not told me that."

_THING = r"(?P<thing>[^\W\d_][\w' -]{0,40}?)"
_VALUE = r"(?P<value>\S[^.!?\n]{0,80})"
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_TOLD = re.compile(rf"\bmy {_THING} (?:is|are) (?P<how>called |named )?{_VALUE}", re.IGNORECASE)
_TOLD_NAME = re.compile(rf"^\s*(?:call me|i am called|i'm called) {_VALUE}", re.IGNORECASE)
_TOLD_PLACE = re.compile(
    rf"^\s*(?:and |but )?i (?:now |just |have |recently )*"
    rf"(?:live in|moved (?:from [^.!?\n]{{1,80}}? )?to) {_VALUE}",
    re.IGNORECASE,
)
_SINCE = re.compile(
    r",? (?:last|this|since|in \d{4}|yesterday|today|now|recently|\w+ \w+ ago)\b.*", re.IGNORECASE
)
_ASKS = re.compile(
    r"^\s*(?:please |and |so |but )?(?:what|who|which|how|where|when|do|does|did|can|could|tell|is|are)\b",
    re.IGNORECASE,
)
_ASKS_FACT = re.compile(
    rf"\b(?:what|who|how|which|when)(?:'s|\s+is|\s+are|\s+was)\s+(?:the name of )?my {_THING}"
    r"(?: called| named)?\s*\?*\s*$"
    rf"|\b(?:do you (?:remember|know)|tell me)\s+(?:the name of )?my (?P<other>[\w' -]+?)\s*[?.]*$",
    re.IGNORECASE,
)
_ASKS_WHEN = re.compile(
    r"^\s*(?:and |so )?(?:since when|how long|when did (?:i|you))\b", re.IGNORECASE
)
# What is asked without a "my", by the key of what answers it.
_TOPICS = (
    (re.compile(r"\bwhere (?:do i|am i) (?:live|living)\b", re.IGNORECASE), "location"),
    (re.compile(r"\bwh(?:ere|o) do i work\b", re.IGNORECASE), "employer"),
    (re.compile(r"\bhow old am i\b", re.IGNORECASE), "age"),
    (re.compile(r"\bwho am i\b", re.IGNORECASE), "name"),
)
_NAMED = {"location": ("live", "lived", "move", "moved"), "employer": ("work", "worked", "job")}
_SAID = {
    "name": "your name is {}",
    "location": "you live in {}",
    "employer": "you work at {}",
    "age": "you are {}",
}
_LINE = re.compile(
    rf"- {SUBJECT} (?P<predicate>\S+) (?P<object>.+) "
    r"\(since (?P<since>[\d-]+), told (?P<told>[\d-]+)(?P<ended>, until [\d-]+)?\)"
)


@dataclass(frozen=True, slots=True)
class ToldFact:
    """A sentence to say back. Only a memory has the days, of an older conversation perhaps."""

    said: str
    since: str = ""
    told: str = ""


def answered(text: str, messages: Sequence[Message]) -> str | None:
    """The answer to a question about what was told; None: it is none."""
    if _ASKS_WHEN.search(text):
        return _when(text, _known(messages))
    key = next((key for topic, key in _TOPICS if topic.search(text)), None)
    if asked := _ASKS_FACT.search(text):
        key = _key(asked["thing"] or asked["other"])
    if key is None:
        return None
    known = _known(messages).get(key)
    return f"{known.said[0].upper()}{known.said[1:]}." if known else NOT_TOLD


def stated(text: str) -> Mapping[str, ToldFact]:
    """What somebody says of what is theirs."""
    facts: dict[str, ToldFact] = {}
    for sentence in _SENTENCE.findall(text):
        if sentence.rstrip().endswith("?") or _ASKS.match(sentence):
            continue
        if name := _TOLD_NAME.match(sentence):
            facts["name"] = ToldFact(f"your name is {name['value'].strip()}")
        elif place := _TOLD_PLACE.match(sentence):
            facts["location"] = ToldFact(f"you live in {_SINCE.sub('', place['value']).strip()}")
        elif fact := _TOLD.search(sentence):
            said = f"your {fact['thing']} is {fact['how'] or ''}{fact['value'].strip()}"
            facts[_key(fact["thing"])] = ToldFact(said)
    return facts


def _known(messages: Sequence[Message]) -> Mapping[str, ToldFact]:
    """The latest of each: a memory stands before its question, and knows what was put right."""
    known: dict[str, ToldFact] = {}
    for message in messages:
        if message.role == "user":
            is_memory = message.text.startswith(OPENING)
            known |= _remembered(message.text) if is_memory else stated(message.text)
    return known


def _remembered(block: str) -> Mapping[str, ToldFact]:
    known: dict[str, ToldFact] = {}
    for line in block.splitlines():
        if (fact := _LINE.fullmatch(line)) and not fact["ended"]:
            key = _key(fact["predicate"].replace("_", " "))
            named = f"your {key} is called {{}}" if fact["predicate"].endswith("_name") else None
            said = named or _SAID.get(key, f"your {key} is {{}}")
            known[key] = ToldFact(said.format(fact["object"]), fact["since"], fact["told"])
    return known


def _when(text: str, known: Mapping[str, ToldFact]) -> str:
    words = set(re.findall(r"\w+", text.lower()))
    for key, one in known.items():
        if words & set(_NAMED.get(key, ())) or words >= set(key.split()):
            if one.told:
                return f"You told me on {one.told} that {one.said}, since {one.since}."
            return f"You told me that {one.said}, but I do not know when."
    return NOT_TOLD


def _key(thing: str) -> str:
    """A thing by one name, whichever way it is asked for: `dog's name` is `dog`."""
    key = " ".join(thing.lower().split())
    key = key.replace("favorite", "favourite").replace("colour", "color")
    key = key.removesuffix(" called").removesuffix(" named")
    if key == "name":
        return key
    return key.removesuffix(" name").removesuffix("'s").strip()


NO_CLOCK = "I have no clock here, so I cannot tell you that."
NO_CALCULATOR = "I have no calculator here, so I cannot work that out."
NO_NOTES = "I have no notes here, so I cannot do that."
NO_MEMORY = "I have no memory here that goes back so far, so I cannot tell you that."

_TITLE_WORDS = 8
_LONGEST_TITLE = 80
_LONGEST_SUM = 200
_LONGEST_QUESTION = 1_000
_CALL = re.compile(
    r"(?:please )?(?:call|use) (?:the )?(?P<name>[\w-]+)(?: tool)?(?: with)?\s*"
    r"(?P<arguments>\{.*\})?$",
    re.DOTALL | re.IGNORECASE,
)
_ECHO = re.compile(r"(?:echo|repeat|say)[:\s]+(?P<text>\S.*)", re.IGNORECASE | re.DOTALL)
_WRITE = re.compile(
    r"(?:please )?(?:note\s*:|(?:write|take|make|add|save) (?:me )?a note\b(?: that\b| saying\b)?"
    r"[:,]?)\s*(?P<note>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_LIST = re.compile(
    r"(?:please )?(?:(?:list|show)(?: me)?(?: all)?(?: my| the)? notes"
    r"|(?:what|which) notes (?:do i have|are there))[\s?.!]*$",
    re.IGNORECASE,
)
_READ = re.compile(
    r"(?:please )?(?:read|open|show)(?: me)?(?: my| the)? note[:\s]\s*(?P<name>\S.{0,200})$",
    re.IGNORECASE,
)
_FIND = re.compile(
    r"(?:please )?(?:find|search)(?: in)?(?: all)?(?: my| the)? notes? (?:about |for |on |with )?"
    r"(?P<query>\S.{0,200})$",
    re.IGNORECASE,
)
_ASKS_TIME = re.compile(
    r"\bwhat(?:'s| is)? (?:the )?(?:current )?(?:time|date|day)\b|\btime is it\b|\bwhat day\b"
    r"|\b(?:current|tell me the) (?:time|date)\b|\btoday'?s date\b|^\s*(?:time|date)\s*\??\s*$",
    re.IGNORECASE,
)
_ASKS_SUM = re.compile(
    r"(?:please )?(?:what(?:'s| is| are)|how much (?:is|are)|(?P<told>calculate|compute))\s+",
    re.IGNORECASE,
)
_SUM = re.compile(r"[0-9\s.+\-*/()^%]+")
_ASKS_BEFORE = re.compile(
    r"\bwhere (?:did i|have i) (?:live|lived|work|worked)\b.{0,40}\b(?:before|earlier|previously)\b",
    re.IGNORECASE,
)
_OPERATION = re.compile(r"[0-9][\s)]*[-+*/^%][-+*/\s(]*[.0-9]")
_SPOKEN = (
    (re.compile(r"\bplus\b", re.IGNORECASE), "+"),
    (re.compile(r"\bminus\b|\u2212", re.IGNORECASE), "-"),
    (re.compile(r"\b(?:times|multiplied by)\b|\u00d7|(?<=\d) ?x ?(?=\d)", re.IGNORECASE), "*"),
    (re.compile(r"\bdivided by\b|\u00f7", re.IGNORECASE), "/"),
)


@dataclass(frozen=True, slots=True)
class Wish:
    """A call that would answer a question; `saying` comes before it, `without` instead of it."""

    tool: str
    arguments: str
    saying: str
    without: str


def wished(text: str, offered: Set[str]) -> Wish | None:
    """The tool that a question is for, offered or not, by the first pattern that fits."""
    text = text.strip()
    asked = _CALL.match(text)
    if asked and (asked["name"] in offered or asked["arguments"]):
        name = asked["name"]
        return Wish(name, asked["arguments"] or "{}", f"I call {name}.\n", _lacking(name, offered))
    if asked := _ECHO.match(text):
        return _wish("echo", {"text": asked["text"]}, "", asked["text"])
    if asked := _WRITE.match(text):
        arguments = {"path": _path(asked["note"]), "content": asked["note"]}
        return _wish("vault_write", arguments, "I take a note.\n", NO_NOTES)
    return _questioned(text) if len(text) <= _LONGEST_QUESTION else None


def _questioned(text: str) -> Wish | None:
    if note := _of_notes(text):
        return note
    if asked := _ASKS_BEFORE.search(text):
        predicate = "location" if "live" in asked[0].lower() else "employer"
        arguments = {"operation": "history", "predicate": predicate}
        return _wish("memory", arguments, "Let me look back.\n", NO_MEMORY)
    if expression := _expression(text):
        return _wish("calc", {"expression": expression}, "Let me calculate.\n", NO_CALCULATOR)
    if _ASKS_TIME.search(text):
        return _wish("time", {}, "Let me look at the clock.\n", NO_CLOCK)
    return None


def told(result: ToolResult, asked: Mapping[str, object]) -> str:
    """A result as a sentence; `asked` are the arguments of its call."""
    if result.is_error:
        return f"The tool {result.name} could not do it: {result.content}"
    value = _read(result.content)
    plain, names = _plain(value), _names(value)
    is_exact = not isinstance(value, dict) or value.get("exact", True)
    said = {
        "echo": plain,
        "calc": f"{asked.get('expression', 'It')} {'=' if is_exact else 'is about'} {plain}",
        "time": f"The clock says: {plain}",
        "vault_write": f"I wrote that down in {asked.get('path', 'your notes')}.",
        "vault_read": plain,
        "vault_list": f"Your notes: {names}." if names else "You have no notes yet.",
        "memory": _history(value),
        "vault_search": f"I found: {names}." if names else "Your notes say nothing of it.",
    }
    return said.get(result.name, f"The tool {result.name} says: {plain}")


def arguments_of(text: str) -> Mapping[str, object]:
    value = _read(text)
    return value if isinstance(value, dict) else {}


def _wish(tool: str, arguments: Mapping[str, object], saying: str, without: str) -> Wish:
    return Wish(tool, to_json(arguments).decode(), saying, without)


def _lacking(name: str, offered: Set[str]) -> str:
    known = ", ".join(sorted(offered)) or "none"
    return (
        f"I have no tool {name}. Those that I have: {known}. "
        "`exogate plugin list` says which plugins are there, and why one is refused."
    )


def _of_notes(text: str) -> Wish | None:
    if _LIST.match(text):
        return _wish("vault_list", {}, "Let me see.\n", NO_NOTES)
    if asked := _READ.match(text):
        name = asked["name"].strip(" \t\"'?")
        path = name if name.endswith(".md") else _path(name)
        return _wish("vault_read", {"path": path}, "Let me read it.\n", NO_NOTES)
    if asked := _FIND.match(text):
        query = {"query": asked["query"].strip(" \t\"'?.")}
        return _wish("vault_search", query, "Let me look through your notes.\n", NO_NOTES)
    return None


def _path(note: str) -> str:
    """By its words, so that it is found again; two notes share one only if they say the same."""
    words = re.findall(r"[a-z0-9]+", note.lower())
    title = "-".join(words[:_TITLE_WORDS])[:_LONGEST_TITLE]
    if title and title == "-".join(words) and note.isascii():
        return f"{title}.md"
    digest = sha256(note.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{title}-{digest}.md".removeprefix("-")


def _expression(text: str) -> str | None:
    """The sum in a question, if it is one."""
    said = text.rstrip("=?!. \t\n")
    if len(said) > _LONGEST_SUM:
        return None
    asked = _ASKS_SUM.match(said)
    rest = said[asked.end() :] if asked else said
    for spoken, sign in _SPOKEN:
        rest = spoken.sub(sign, rest)
    if asked and asked["told"]:
        return rest
    return rest if _SUM.fullmatch(rest) and _OPERATION.search(rest) else None


def _read(text: str) -> object:
    """What a text means as JSON; itself if it is none."""
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
    """Facts of which each ended, oldest first; what holds now is no history."""
    found = value.get("facts") if isinstance(value, dict) else None
    if not isinstance(found, list):
        return f"My memory says: {_plain(value)}"
    past = [one for one in found if isinstance(one, dict) and "until" in one]
    told = "; ".join(f"{one['object']}, {_dates(one['since'], one['until'])}" for one in past)
    return f"You told me: {told}." if told else "You have not told me that."


def _dates(since: str, until: str) -> str:
    return f"{since} to {until}" if since != until else f"until {until}"


def _names(value: object) -> str:
    """The things in a list, or in the first list of an object, by their paths."""
    if isinstance(value, dict):
        value = next((one for one in value.values() if isinstance(one, list)), None)
    found = value if isinstance(value, list) else []
    return ", ".join(
        _plain(one.get("path", one) if isinstance(one, dict) else one) for one in found
    )


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
            if request.progress is not None:
                request.progress.size += len(piece.encode())
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

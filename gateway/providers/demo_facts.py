"""What the demo model knows of people: from what they said, and from its memory with the dates."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.domain.facts import SUBJECT
from gateway.domain.messages import Message
from gateway.domain.recall import OPENING

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
class Known:
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


def stated(text: str) -> Mapping[str, Known]:
    """What somebody says of what is theirs."""
    facts: dict[str, Known] = {}
    for sentence in _SENTENCE.findall(text):
        if sentence.rstrip().endswith("?") or _ASKS.match(sentence):
            continue
        if name := _TOLD_NAME.match(sentence):
            facts["name"] = Known(f"your name is {name['value'].strip()}")
        elif place := _TOLD_PLACE.match(sentence):
            facts["location"] = Known(f"you live in {_SINCE.sub('', place['value']).strip()}")
        elif fact := _TOLD.search(sentence):
            said = f"your {fact['thing']} is {fact['how'] or ''}{fact['value'].strip()}"
            facts[_key(fact["thing"])] = Known(said)
    return facts


def _known(messages: Sequence[Message]) -> Mapping[str, Known]:
    """The latest of each: a memory stands before its question, and knows what was put right."""
    known: dict[str, Known] = {}
    for message in messages:
        if message.role == "user":
            is_memory = message.text.startswith(OPENING)
            known |= _remembered(message.text) if is_memory else stated(message.text)
    return known


def _remembered(block: str) -> Mapping[str, Known]:
    known: dict[str, Known] = {}
    for line in block.splitlines():
        if (fact := _LINE.fullmatch(line)) and not fact["ended"]:
            key = _key(fact["predicate"].replace("_", " "))
            named = f"your {key} is called {{}}" if fact["predicate"].endswith("_name") else None
            said = named or _SAID.get(key, f"your {key} is {{}}")
            known[key] = Known(said.format(fact["object"]), fact["since"], fact["told"])
    return known


def _when(text: str, known: Mapping[str, Known]) -> str:
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

"""A message as the clauses in which somebody states something. Pure, and bounded for any text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

LOOKED_AT = 4_000  # characters of a message
LONGEST_CLAUSE = 300
MOST_SENTENCES = 60
MOST_CLAUSES = 12  # of a sentence


@dataclass(frozen=True, slots=True)
class Sentence:
    """`quote` stands in the message from `start` to `end`, letter for letter."""

    quote: str
    start: int
    end: int
    clauses: Sequence[str]


def sentences_of(text: str) -> Iterator[Sentence]:
    """Those with something that is stated: no questions, nothing quoted, supposed, or told."""
    text = text[:LOOKED_AT]
    masked = _masked(text)
    for number, match in enumerate(_SENTENCE.finditer(masked)):
        if number == MOST_SENTENCES:
            return
        said = match["said"]
        if ":" in said and _BRINGS_TEXT.search(said) and not _OF_ONESELF.search(said):
            return  # what follows is a text to work on
        if not _OF_OURS.search(said):
            continue
        clauses = tuple(_stated(said, is_question=match["end"].strip()[:1] in {"?", "？"}))
        if clauses:
            start, end = match.span("said")
            start += len(text[start:end]) - len(text[start:end].lstrip())
            quote = text[start:end].rstrip()
            yield Sentence(quote, start, end, clauses)


def _masked(text: str) -> str:
    """Of the same length: code and what others said are blanks, as are the marks around names."""
    for pattern in (_CODE, _QUOTED_LINE):
        text = pattern.sub(_blank, text)
    text = _SPEECH.sub(_unmarked, text)
    return _TITLE.sub("\u2024", text)


def _blank(match: re.Match[str]) -> str:
    return "\n" * len(match[0])


def _unmarked(match: re.Match[str]) -> str:
    inner = match["said"]
    if len(inner.split()) > 3 or _OF_ONESELF.search(inner):
        return "\x00" * len(match[0])
    return f" {inner} "


def _stated(said: str, *, is_question: bool) -> Iterator[str]:
    even, asked_to_remember = _REMEMBER.subn("", " ".join(said.split()), count=1)
    clauses = [one for one in _BETWEEN.split(even[: 4 * LONGEST_CLAUSE], MOST_CLAUSES) if one]
    meant = list(takewhile(_is_meant, clauses))  # what is not takes along what depends on it
    if is_question and len(meant) == len(clauses) and not asked_to_remember:
        return
    for number, clause in enumerate(meant):
        clause = _LEAD.sub("", clause, count=1)
        if number and _BARE_VERB.match(clause):
            clause = f"I {clause}"
        yield clause.replace("\u2024", ".")


def _is_meant(clause: str) -> bool:
    if len(clause) > LONGEST_CLAUSE or _ASKS.match(clause):
        return False
    lower = clause.lower()
    if not _NOT_MEANT.isdisjoint(_WORDS.findall(lower)):
        return False
    return not any(phrase in lower for phrase in _NOT_MEANT_EITHER)


_REMEMBER = re.compile(
    r"^(?:please )?(?:can|could|would|will) you (?:please )?(?:remember|note|keep in mind)(?: that)? ",
    re.IGNORECASE,
)
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]{0,400}`", re.DOTALL)
_QUOTED_LINE = re.compile(
    r"^[ \t]{0,8}(?:>.*|(?!(?:note|ps|p\.s\.|fyi|btw|update|correction|edit|remember|info|also)\b)"
    r"[A-Za-z][\w-]{0,30}:[ \t].*)$",
    re.MULTILINE | re.IGNORECASE,
)
_SPEECH = re.compile(r"[\"“„«](?P<said>[^\"“”„«»\n]{0,400})[\"”“»]")
_TITLE = re.compile(
    r"\.(?<=\b[A-Z]\.)(?=\s?(?!(?:I|My|We|Our|The|It|He|She|They|And|But|So|A)\b)[A-Z])|"
    r"\.(?<=\b[DdMmS][rst]\.)|\.(?<=\b[Mm]rs\.)|\.(?<=\b[Pp]rof\.)"
)
_SENTENCE = re.compile(
    r"(?P<said>[^.!?;\n。！？；]{1,1200}(?:[.;](?=\S)[^.!?;\n。！？；]{0,1200}){0,20})"
    r"(?P<end>[.!?;\n。！？；]{0,8})"
)
_OF_ONESELF = re.compile(
    r"\b(?:i|i['’]m|me|my|myself|remember|ich|mein|mich|mir)\b|我", re.IGNORECASE
)
_OF_OURS = re.compile(  # without one of these nothing is told of oneself, and of others by name
    r"\b(?:i|i['’]?m|i['’]ve|my|me|our|we|ich|meine?|actually|it['’]?s|it is|that['’]s|make that"
    r"|correction|no,? (?:his|her|its) name)\b|['’]s\s|我",
    re.IGNORECASE,
)
_BRINGS_TEXT = re.compile(
    r":\s*$|\b(?:translate|rewrite|proofread|summari[sz]e|paraphrase|correct|fix)\b.{0,60}:",
    re.IGNORECASE,
)
_STARTER = (
    r"(?:i|i['’](?:m|ve|d|ll)|im|my|our|we|call me|it['’]?s|it is|that['’]?s|actually|not|no|oh|wait|sorry"
    r"|can|could|would|will|shall|should|do|does|did|is|are|was|what|where|who|how|why|when|which"
    r"|please|tell|he|she|they|you|ich|mein|meine|(?-i:[A-Z])[\w-]{1,30}['’]s"
    r"|lived?|worked|work|moved|love|like|hate|used|was born)\b"
)
_AND = r"(?:and|but|so|because|also|then|und|aber)"
_WHEN = r"(?:(?:now|nowadays|currently|today|then|later|before|before that|previously|formerly|earlier|once|jetzt)\s+){0,2}"
_BETWEEN = re.compile(
    rf"(?:\s*(?:[,:–—，]|\s-)\s*(?:{_AND}\s+)?|\s+{_AND}\s+){_WHEN}(?={_STARTER}|[我])",
    re.IGNORECASE,
)
_BARE_VERB = re.compile(
    r"(?:lived?|worked|work|moved|love|like|hate|used to|was born)\b", re.IGNORECASE
)
_ASKS = re.compile(
    r"\s*(?:(?:and|so|but|then|now|please|hey|hi|hello),?\s+){0,3}"
    r"(?:who|what|where|when|why|how|which|whose|do|does|did|is|are|was|were|can|could|should|shall"
    r"|would|will|am|have (?:i|you)|has|tell me|guess|wer|wo|wie|warum|wann|wei(?:ß|ss)t)\b"
    r"|.{0,200}(?:吗|什么|哪|谁)",
    re.IGNORECASE,
)
# Supposed, wished, uncertain; told of or by others; a role, a story, a text.
_NOT_MEANT = frozenset(
    [
        "if",
        "imagine",
        "suppose",
        "supposing",
        "pretend",
        "hypothetically",
        "wish",
        "wished",
        "would",
        "could",
        "might",
        "maybe",
        "perhaps",
        "unless",
        "whether",
        "assume",
        "assuming",
        "should",
        "dream",
        "dreamed",
        "dreamt",
        "almost",
        "nearly",
        "never",
        "say",
        "says",
        "said",
        "told",
        "tells",
        "wrote",
        "writes",
        "claim",
        "claims",
        "claimed",
        "think",
        "thinks",
        "thought",
        "quote",
        "lyric",
        "lyrics",
        "translate",
        "translation",
        "character",
        "novel",
        "story",
        "roleplay",
        "wenn",
        "falls",
        "würde",
        "wäre",
        "vielleicht",
        "sagt",
        "sagte",
    ]
)
_NOT_MEANT_EITHER = (
    *(
        "in case",
        "as though",
        "let's say",
        "let’s say",
        "want to",
        "going to",
        "plan to",
        "planning to",
    ),
    *(
        "hope to",
        "about to",
        "according to",
        "role-play",
        "act as",
        "act like",
        "如果",
        "假如",
        "说",
        "\x00",
    ),
)
_WORDS = re.compile(r"[^\W\d_]+")
_LEAD = re.compile(
    r"^\s*(?:[-*•]\s+)?(?:(?:hi|hello|hey|well|so|oh|ok|okay|yes|yeah|no|nope|sorry|and|but|also"
    r"|btw|by the way|anyway|fyi|now|then|please|just|note(?: that)?|ps|update"
    r"|(?:please )?remember(?: that| this)?|don['’]?t forget(?: that)?|you should know(?: that)?"
    r"|just so you know|for (?:the record|context|your information)|to be honest|honestly"
    r"|in fact|before that|before|previously|formerly|earlier|once|currently|nowadays"
    r"|actually|because|since|thanks|thank you|guess what|good news|bad news)"
    r"[,:!]?\s+){1,4}(?!it['’]?s\b|it is\b|that['’]?s\b|(?:his|her|its) name\b)",
    re.IGNORECASE,
)

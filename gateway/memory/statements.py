"""Finds what people state about themselves, by patterns, in microseconds. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from gateway.domain.facts import SUBJECT, Claim, EntityType, SaidMessage, SaidSource
from gateway.domain.ids import SessionKey
from gateway.memory import wording as dates
from gateway.memory.phrases import HELLO, PETS, PLURALS, Makes, PhraseForm, forms_for, tidied
from gateway.memory.wording import is_functional, predicate_of

LOOKED_AT = 4_000  # characters of a message
LONGEST_CLAUSE = 300
MOST_SENTENCES = 60
MOST_CLAUSES = 12  # of a sentence


@dataclass(frozen=True, slots=True)
class Sentence:
    """`quote` is the exact text of the message from `start` to `end`."""

    quote: str
    start: int
    end: int
    clauses: Sequence[str]


def sentences_of(text: str) -> Iterator[Sentence]:
    """The sentences with statements. Questions, quotations, suppositions and reported speech are
    left out."""
    text = text[:LOOKED_AT]
    masked = _masked(text)
    for number, match in enumerate(_SENTENCE.finditer(masked)):
        if number == MOST_SENTENCES:
            return
        said = match["said"]
        if ":" in said and _BRINGS_TEXT.search(said) and not _OF_ONESELF.search(said):
            return  # the rest is a text to work on
        if not OF_OURS.search(said):
            continue
        clauses = tuple(_stated(said, is_question=match["end"].strip()[:1] in {"?", "？"}))
        if clauses:
            start, end = match.span("said")
            start += len(text[start:end]) - len(text[start:end].lstrip())
            quote = text[start:end].rstrip()
            yield Sentence(quote, start, end, clauses)


def _masked(text: str) -> str:
    """The text in the same length, with blanks instead of code, quotations and quotation marks."""
    for pattern in (_CODE, _QUOTED_LINE):
        text = pattern.sub(lambda match: "\n" * len(match[0]), text)

    def unmarked(match: re.Match[str]) -> str:
        inner = match["said"]
        is_speech = len(inner.split()) > 3 or _OF_ONESELF.search(inner)
        return "\x00" * len(match[0]) if is_speech else f" {inner} "

    return _TITLE.sub("\u2024", _SPEECH.sub(unmarked, text))


def _stated(said: str, *, is_question: bool) -> Iterator[str]:
    even, asked_to_remember = _REMEMBER.subn("", " ".join(said.split()), count=1)
    clauses = [one for one in _BETWEEN.split(even[: 4 * LONGEST_CLAUSE], MOST_CLAUSES) if one]
    meant = list(
        takewhile(_is_meant, clauses)
    )  # a clause that is not meant drops the clauses after it
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
    return _NOT_MEANT.isdisjoint(_WORDS.findall(lower)) and not _NOT_MEANT_EITHER.search(lower)


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
OF_OURS = re.compile(  # every statement about oneself or a named person holds one of these
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
# Words of suppositions, wishes, doubt, reported speech, roles, stories and quoted texts.
_WORDS = re.compile(r"[^\W\d_]+")
_NOT_MEANT = frozenset(
    _WORDS.findall(
        "if imagine suppose supposing pretend hypothetically wish wished would could might maybe "
        "perhaps unless whether assume assuming should dream dreamed dreamt almost nearly never "
        "say says said told tells wrote writes claim claims claimed think thinks thought quote "
        "lyric lyrics translate translation character novel story roleplay wenn falls würde wäre "
        "vielleicht sagt sagte"
    )
)
_NOT_MEANT_EITHER = re.compile(
    "in case|as though|let's say|let’s say|want to|going to|plan to|planning to|hope to|about to"
    "|according to|role-play|act as|act like|如果|假如|说|\x00"
)
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

CONFIDENCE = 0.8
MOST_CLAIMS = 20  # of a message
_JUST_BEFORE = timedelta(microseconds=1)
_AND_ALSO = re.compile(r"\s*(?:,| and | or | und |、|和)\s*", re.IGNORECASE)
_CORRECTION = re.compile(
    r"(?:(?:no|oh|oops|sorry|wait|actually|hmm|correction)[,:]?\s){0,4}"
    r"(?:(?P<named>(?<=[,\s])(?:his|her|its) name(?: is|['’]s)\s)|(?:actually[,:]?\s|correction[,:]?\s"
    r"|(?:it['’]?s|it is|that['’]?s|i mean|i meant|make that|rather)\s){1,2})"
    r"(?:(?:it['’]?s|it is)\s)?(?P<object>[^\s,].{0,60})$",
    re.IGNORECASE,
)


def claims_in(
    said: SaidMessage, key: SessionKey, *, last: Claim | None = None
) -> tuple[Claim, ...]:
    """`last` is the previous claim in this conversation, which a correction refers to. Never
    raises."""
    claims: list[Claim] = []
    hello = HELLO.match(said.text[:200])
    for sentence in sentences_of(said.text):
        said_by = said.sender or key.peer
        source = SaidSource(said.message_id, key, said.at, sentence.quote, said_by)
        if hello and sentence.start <= hello.start("object") < sentence.end:
            claims.append(_made("name", hello["object"], source, said.at))
        for clause in sentence.clauses:
            if made := _claims(clause, source):
                claims += made
            elif before := claims.pop() if claims else last:
                claims += _corrected(clause, source, before, is_new=before is not last)
    return tuple(claims[:MOST_CLAIMS])


def _claims(clause: str, source: SaidSource) -> Sequence[Claim]:
    if span := _SPAN.search(clause):
        since, until = (datetime(int(year), 1, 1, tzinfo=UTC) for year in span.groups())
        told = _claims_stated(_without(clause, *span.span()), source, since)
        return [replace(one, valid_from=since, valid_to=until) for one in told if until < source.at]
    when = dates.named(clause, source.at)
    if when is None:
        return _claims_stated(clause, source, source.at)
    bare = _without(clause, when.start, when.end)
    # A date may be the object of the statement instead of its beginning.
    dated = _claims_stated(bare, source, when.at)
    told = dated or _claims_stated(clause, source, source.at)
    if (
        when.at > source.at
    ):  # a future date: the statement is not true yet, or the date is its object
        return () if dated else told
    return (*_birth(clause, source, when), *told)


_SPAN = re.compile(
    r"\b(?:from|between) ((?:19|20)\d\d) (?:to|until|till|and|through) ((?:19|20)\d\d)\b",
    re.IGNORECASE,
)


def _without(clause: str, start: int, end: int) -> str:
    return " ".join(f"{clause[:start]} {clause[end:]}".split()).strip(" ,")


def _claims_stated(clause: str, source: SaidSource, since: datetime) -> Sequence[Claim]:
    for form in forms_for(clause):
        match = form.pattern.match(clause)
        if match is not None and (claims := tuple(_of_form(form, match, source, since))):
            return claims
    return ()


def _of_form(
    form: PhraseForm, match: re.Match[str], source: SaidSource, since: datetime
) -> Iterator[Claim]:
    parts = match.groupdict()
    if parts.get("was") and (was := tidied(parts["was"], form.keeps)):
        yield _made(form.predicate, was, source, since - _JUST_BEFORE, ends=True)
    at = source.at if form.makes is Makes.MENTIONED else since
    is_beside = _ANOTHER.match(match.string) is not None
    texts = _AND_ALSO.split(parts["object"]) if form.is_list else (parts["object"],)
    for object_ in filter(None, (tidied(text, form.keeps) for text in texts)):
        subject, predicate = _about(form, parts, object_)
        type_: EntityType = "relationship" if subject != SUBJECT else form.type
        if predicate:
            made = _made(predicate, object_, source, at, ends=form.makes is Makes.END)
            functional = made.functional and not is_beside
            yield replace(made, subject=subject, entity_type=type_, functional=functional)


def _about(form: PhraseForm, parts: dict[str, str | None], object_: str) -> tuple[str, str]:
    """Subject and predicate; an empty predicate if it is hardly a fact."""
    thing, of = parts.get("thing") or "", parts.get("of") or ""
    match form.makes:
        case Makes.NAME_OF | Makes.MENTIONED:
            one = thing.removesuffix("s") if form.is_list else thing.removeprefix("other ")
            return SUBJECT, predicate_of(f"{one} name")
        case Makes.FAVOURITE:
            return SUBJECT, predicate_of(f"favourite {thing}")
        case Makes.OF_MINE:
            return SUBJECT, predicate_of(f"{of} {thing}")
        case Makes.ATTRIBUTE | Makes.OF_ANOTHER:
            return of or SUBJECT, _attribute(thing, object_)
        case _:
            return SUBJECT, form.predicate


def _attribute(thing: str, object_: str) -> str:
    """The predicate of `My X is Y`: X has to be a known quality, or Y a name or number."""
    name, last = predicate_of(thing), thing.lower().rpartition(" ")[2]
    has_mark = _MARK.search(object_) is not None
    is_loose = _LOOSE.fullmatch(last) is not None and not (has_mark and last != thing.lower())
    if is_loose or not (is_functional(name) or has_mark or object_[0].isupper()):
        return ""
    return predicate_of(f"{thing} name") if _PET.fullmatch(last) and object_.isalpha() else name


_ANOTHER = re.compile(  # the object does not replace the known one
    r"(?:i|we)(?:['’]ve)? (?:also|(?:\w+ ){1,2}(?:another|a second|two|three|four|[2-9]))\b"
    rf"|(?:my|our) (?:other|(?:\w+ )?(?:{PLURALS}) are)\b",
    re.IGNORECASE,
)
_MARK = re.compile(r"[\d@]")
_PET = re.compile(PETS)
_LOOSE = re.compile(  # things that get casual attributes
    r"|question|problem|point|guess|issue|idea|plan|concern|understanding|task|opinion|code|bug"
    r"|error|message|request|assumption|answer|goal|suggestion|advice|mistake|bad|fault|turn|thing"
    r"|way|reason|favou?rite|prompt|text|sentence|example|output|input|script|program"
)


def _made(
    predicate: str, object_: str, source: SaidSource, at: datetime, *, ends: bool = False
) -> Claim:
    what = (SUBJECT, predicate, object_, is_functional(predicate), at, source.session_key)
    return Claim(*what, "attribute", CONFIDENCE, at if ends else None, source)


_BORN = re.compile(r"\bi\s(?:was|am)\sborn\b|\bich bin .{0,40}\bgeboren\b", re.IGNORECASE)


def _birth(clause: str, source: SaidSource, when: dates.TimeWord) -> Sequence[Claim]:
    """A birthday if the day is given, else a birth date."""
    if not _BORN.search(clause):
        return ()
    text = re.sub(r"^(?:since|on|in|from)\s+(?:the\s+)?", "", clause[when.start : when.end].strip())
    return [_made("birthday" if when.is_day else "birth_date", text, source, when.at)]


def _corrected(clause: str, source: SaidSource, before: Claim, *, is_new: bool) -> Sequence[Claim]:
    """`Actually it's Y`: replaces the object of the previous claim by one of the same sort. Returns
    the claims to make; `is_new`: the previous claim is one of this message."""
    unchanged = (before,) if is_new else ()
    match = _CORRECTION.match(clause)
    if match is None or before.valid_to is not None:
        return unchanged
    object_ = tidied(match["object"], "name")
    if object_ is None or (match["named"] and not before.predicate.endswith("name")):
        return unchanged
    new, old = object_[0], before.object[0]
    if (new.isupper(), new.isdigit()) != (old.isupper(), old.isdigit()):
        return unchanged
    corrected = replace(before, object=object_, source=source)
    if is_new or before.functional:
        return (corrected,)
    # Ended explicitly: a new object does not end one that is not functional.
    return (replace(before, valid_to=before.valid_from, source=source), corrected)

"""What people say of themselves, found by patterns: without a model, and in microseconds. Pure.

Rather misses something than learns what nobody said: no questions, nothing that is quoted, supposed
or told of others, no code. Bounded: only the begin of a long message is looked at, in clauses of a
bounded length.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gateway.domain.facts import SUBJECT, Claim, EntityType, Source
from gateway.domain.hearing import Said
from gateway.domain.ids import SessionKey
from gateway.memory import dates
from gateway.memory.clauses import Sentence, sentences_of
from gateway.memory.objects import tidied
from gateway.memory.phrases import HELLO, PETS, PLURALS, Form, Makes, forms_for
from gateway.memory.predicates import is_functional, predicate_of

CONFIDENCE = 0.8
MOST_CLAIMS = 20  # of a message
_JUST_BEFORE = timedelta(microseconds=1)
_AND = re.compile(r"\s*(?:,| and | or | und |、|和)\s*", re.IGNORECASE)
_CORRECTION = re.compile(
    r"(?:(?:no|oh|oops|sorry|wait|actually|hmm|correction)[,:]?\s){0,4}"
    r"(?:(?P<named>(?<=[,\s])(?:his|her|its) name(?: is|['’]s)\s)|(?:actually[,:]?\s|correction[,:]?\s"
    r"|(?:it['’]?s|it is|that['’]?s|i mean|i meant|make that|rather)\s){1,2})"
    r"(?:(?:it['’]?s|it is)\s)?(?P<object>[^\s,].{0,60})$",
    re.IGNORECASE,
)


def claims_in(said: Said, key: SessionKey, *, last: Claim | None = None) -> tuple[Claim, ...]:
    """`last`: what was claimed before in this conversation, for who corrects it. Never raises."""
    claims: list[Claim] = []
    hello = HELLO.match(said.text[:200])
    for sentence in sentences_of(said.text):
        source = _source(said, key, sentence)
        if hello and sentence.start <= hello.start("object") < sentence.end:
            claims += _made("name", hello["object"], source, said.at)
        for clause in sentence.clauses:
            if made := _claims(clause, source):
                claims += made
            elif corrected := _corrected(clause, source, claims[-1] if claims else last):
                before = () if claims else _taken_back(last, corrected)
                claims[-1:] = [*before, corrected]
    return tuple(claims[:MOST_CLAIMS])


def _source(said: Said, key: SessionKey, sentence: Sentence) -> Source:
    said_by = said.sender or key.peer
    return Source(said.message_id, key, said.at, sentence.quote, said_by)


def _claims(clause: str, source: Source) -> Sequence[Claim]:
    if span := _SPAN.search(clause):
        since, until = (datetime(int(year), 1, 1, tzinfo=UTC) for year in span.groups())
        told = _stated(_without(clause, *span.span()), source, since)
        return [replace(one, valid_from=since, valid_to=until) for one in told if until < source.at]
    when = dates.named(clause, source.at)
    if when is None:
        return _stated(clause, source, source.at)
    bare = _without(clause, when.start, when.end)
    if when.at > source.at:  # it is not so yet, or the date itself is told
        return () if _stated(bare, source, source.at) else _stated(clause, source, source.at)
    # A date may be what is told, and not since when.
    told = _stated(bare, source, when.at) or _stated(clause, source, source.at)
    return (*_birth(clause, source, when), *told)


_SPAN = re.compile(
    r"\b(?:from|between) ((?:19|20)\d\d) (?:to|until|till|and|through) ((?:19|20)\d\d)\b",
    re.IGNORECASE,
)


def _without(clause: str, start: int, end: int) -> str:
    return " ".join(f"{clause[:start]} {clause[end:]}".split()).strip(" ,")


def _stated(clause: str, source: Source, since: datetime) -> Sequence[Claim]:
    for form in forms_for(clause):
        match = form.pattern.match(clause)
        if match is not None:
            claims = tuple(_of_form(form, match, source, since))
            if claims:
                return claims
    return ()


def _of_form(form: Form, match: re.Match[str], source: Source, since: datetime) -> Iterator[Claim]:
    parts = match.groupdict()
    if parts.get("was") and (was := tidied(parts["was"], form.keeps)):
        yield from _made(form.predicate, was, source, since - _JUST_BEFORE, ends=True)
    at = source.at if form.makes is Makes.MENTIONED else since
    is_beside = _ANOTHER.match(match.string) is not None
    for object_ in _objects(form, parts["object"]):
        subject, predicate = _about(form, parts, object_)
        type_: EntityType = "relationship" if subject != SUBJECT else form.type
        made = _made(predicate, object_, source, at, ends=form.makes is Makes.END)
        for one in made if predicate else ():
            functional = one.functional and not is_beside
            yield replace(one, subject=subject, entity_type=type_, functional=functional)


def _objects(form: Form, text: str) -> Iterator[str]:
    texts = _AND.split(text) if form.is_list else (text,)
    return filter(None, (tidied(one, form.keeps) for one in texts))


def _about(form: Form, parts: dict[str, str | None], object_: str) -> tuple[str, str]:
    """Subject and predicate; no predicate for what is hardly a fact."""
    thing, of = parts.get("thing") or "", parts.get("of") or ""
    match form.makes:
        case Makes.NAME_OF | Makes.MENTIONED:
            one = thing.removesuffix("s") if form.is_list else thing.removeprefix("other ")
            return SUBJECT, predicate_of(f"{one} name")
        case Makes.FAVOURITE:
            return SUBJECT, predicate_of(f"favourite {thing}")
        case Makes.ATTRIBUTE:
            return SUBJECT, _attribute(thing, object_)
        case Makes.OF_MINE:
            return SUBJECT, predicate_of(f"{of} {thing}")
        case Makes.OF_ANOTHER:
            return of, _attribute(thing, object_)
        case _:
            return SUBJECT, form.predicate


def _attribute(thing: str, object_: str) -> str:
    """`My X is Y`: facts are about what has a name or a number, or is known to be a quality."""
    name, last = predicate_of(thing), thing.lower().rpartition(" ")[2]
    has_mark = _MARK.search(object_) is not None
    is_loose = _LOOSE.fullmatch(last) is not None and not (has_mark and last != thing.lower())
    if is_loose or not (is_functional(name) or has_mark or object_[0].isupper()):
        return ""
    return predicate_of(f"{thing} name") if _PET.fullmatch(last) and object_.isalpha() else name


_ANOTHER = re.compile(  # it stands beside what is known
    r"(?:i|we)(?:['’]ve)? (?:also|(?:\w+ ){1,2}(?:another|a second|two|three|four|[2-9]))\b"
    rf"|(?:my|our) (?:other|(?:\w+ )?(?:{PLURALS}) are)\b",
    re.IGNORECASE,
)
_MARK = re.compile(r"[\d@]")
_PET = re.compile(PETS)
_LOOSE = re.compile(  # what is said to be this or that in passing
    r"|question|problem|point|guess|issue|idea|plan|concern|understanding|task|opinion|code|bug"
    r"|error|message|request|assumption|answer|goal|suggestion|advice|mistake|bad|fault|turn|thing"
    r"|way|reason|favou?rite|prompt|text|sentence|example|output|input|script|program"
)


def _made(
    predicate: str, object_: str, source: Source, at: datetime, *, ends: bool = False
) -> Sequence[Claim]:
    claim = Claim(
        SUBJECT,
        predicate,
        object_,
        is_functional(predicate),
        at,
        source.session_key,
        "attribute",
        CONFIDENCE,
        at if ends else None,
        source,
    )
    return (claim,)


_BORN = re.compile(r"\bi\s(?:was|am)\sborn\b|\bich bin .{0,40}\bgeboren\b", re.IGNORECASE)


def _birth(clause: str, source: Source, when: dates.When) -> Sequence[Claim]:
    """A day, or the year or month if no more was said."""
    if not _BORN.search(clause):
        return ()
    text = re.sub(r"^(?:since|on|in|from)\s+(?:the\s+)?", "", clause[when.start : when.end].strip())
    return _made("birthday" if when.is_day else "birth_date", text, source, when.at)


def _corrected(clause: str, source: Source, before: Claim | None) -> Claim | None:
    """`Actually it's Y`: another object, of the same sort, for what was claimed last, since then."""
    match = _CORRECTION.match(clause)
    if match is None or before is None or before.valid_to is not None:
        return None
    object_ = tidied(match["object"], "name")
    if match["named"] and not before.predicate.endswith("name"):
        return None
    if object_ is None or _sort(object_) != _sort(before.object):
        return None
    return replace(before, object=object_, source=source)


def _taken_back(before: Claim | None, corrected: Claim) -> Sequence[Claim]:
    """What stands beside others does not end by itself when another is told."""
    if before is None or before.functional:
        return ()
    return [replace(before, valid_to=before.valid_from, source=corrected.source)]


def _sort(text: str) -> tuple[bool, bool]:
    return text[0].isupper(), text[0].isdigit()

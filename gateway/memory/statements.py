"""Finds what people state about themselves, by patterns and a table of phrases, in microseconds. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import takewhile
from typing import Literal

from gateway.domain.facts import SUBJECT, Claim, EntityType, SaidMessage, SaidSource
from gateway.domain.ids import SessionKey
from gateway.memory import wording as dates
from gateway.memory.wording import is_functional, predicate_of

# --- phrases -------------------------------------------------------------------------------------
Keeps = Literal["name", "place", "thing"]  # how far the object reaches

# Ends of an object, and texts that are no object.
_OVER = re.compile(
    r"\s*[,;:(–—]\s*.*$|\s(?:but|because|so|which|who|whom|where|when|since|while|until|although"
    r"|though|if|btw|by the way|these days|at the moment|right now|now|currently|too|as well"
    r"|any ?more|any longer|again|already|instead|please|actually|haha|of course|as of|either"
    r"|(?:and|or) (?:i|my|we|it|he|she|they|you|that|this)|very much|a lot|so much|and|is|was|are)$"
    r"|\s(?:but|because|so|which|who|whom|where|when|since|while|until|although|though|if|btw|is|was|are"
    r"|by the way|these days|at the moment|(?:and|or) (?:i|my|we|it|he|she|they|you|that|this))\s.*$",
    re.IGNORECASE,
)
_NAME_OVER = re.compile(
    r"\s(?:and|or|with|for|as|in|at|on|to|from|but|that|not)\b.*$", re.IGNORECASE
)
_PLACE_OVER = re.compile(
    r"\s(?:(?:and|or|with|for|as|after|before|by|that|together|alone|to|at|from|until|till)\s"
    r"|on\s\d|a (?:few|couple)\s|the (?:spring|summer|autumn|fall|winter)\b|next\s).*$"
    r"|\s(?:before|previously|formerly|earlier|originally|back then|in the past)$",
    re.IGNORECASE,
)
_NONE = re.compile(
    r"(?:it|that|this|these|those|them|him|her|you|your|how|what|the way|to|not|no|one|some|any|all"
    r"|later|back|when|tomorrow|today|crazy|old-fashioned|maybe|if|whatever|anything|something|there"
    r"|here|home|night|free|myself|peace|fear|hope|constant|order|general|fact|being|working|trying"
    r"|so|too|very|really|just|also|my|the (?:one|same|thing|best|past|moment|way)|a while|a lot|a bit)\b",
    re.IGNORECASE,
)


def tidied(text: str, keeps: Keeps) -> str | None:
    """The object without trailing words that are not part of it. None if nothing is left."""
    text = text.strip(" \t'’*_~-")
    for _ in range(3):  # `too, by the way`
        text = _OVER.sub("", text).strip(" .,!:;'’*_~)")
    text = _KEPT[keeps](text)
    if "\x00" in text or not _SAYS_SOMETHING.search(text) or _NONE.match(text):
        return None
    return text if len(text.split()) <= _MOST_WORDS[keeps] else None


_MOST_WORDS: Mapping[Keeps, int] = {"name": 4, "place": 6, "thing": 10}
_SAYS_SOMETHING = re.compile(r"[^\W_]")


def _name(text: str) -> str:
    """Keeps words as long as they are capitalized or begin with a digit."""
    first, *more = _NAME_OVER.sub("", text).split() or [""]
    proper = takewhile(lambda word: word[0].isupper() or word[0].isdigit(), more)
    return " ".join((first, *proper))


def _place(text: str) -> str:
    return _PLACE_OVER.sub("", text).strip()


_KEPT: Mapping[Keeps, Callable[[str], str]] = {"name": _name, "place": _place, "thing": str}


class Makes(Enum):
    PLAIN = "the form's predicate"
    END = "it holds no more"
    NAME_OF = "the name of a thing"
    MENTIONED = "the name of a thing, in passing: a date says nothing of it"
    FAVOURITE = "a favourite"
    ATTRIBUTE = "something of oneself"
    OF_MINE = "something of a thing of one's own"
    OF_ANOTHER = "something of somebody with a name"


@dataclass(frozen=True, slots=True)
class PhraseForm:
    """Groups of the pattern: `object`; `thing` and `of` as `makes` needs them; `was`: the former
    object. `is_list`: the object may be a list."""

    predicate: str
    pattern: re.Pattern[str]
    makes: Makes = Makes.PLAIN
    keeps: Keeps = "thing"
    type: EntityType = "attribute"
    is_list: bool = False


PETS = "dog|cat|puppy|kitten|parrot|hamster|rabbit|horse|pony|turtle"
_KIN = (
    rf"{PETS}|bird|fish|pet|son|daughter|brother|sister|wife|husband|partner|girlfriend|boyfriend"
    r"|fiancee?|mother|mom|mum|father|dad|child|kid|baby|cousin|uncle|aunt|grand(?:ma|pa|mother|father)"
    r"|nephew|niece|friend|boss|manager|colleague|neighbou?r|roommate|flatmate|vet|doctor|dentist"
    r"|therapist|teacher"
)
PLURALS = (
    "dogs|cats|puppies|kittens|parrots|hamsters|rabbits|horses|sons|daughters|brothers|sisters"
)
_ADV = (
    r"(?:(?:just|now|currently|really|also|still|recently|always|absolutely|already|finally|have"
    r"|truly|do|mostly|officially|actually|usually|only)\s){0,3}"
)
_AM = r"i(?:['’]?m| am| was)\s"
_I = rf"(?:i|we)(?:['’]ve|['’]m|['’]re| am| are| have)?\s{_ADV}"
_WORD = r"[\w'’-]{1,30}"
_THING = r"(?P<thing>[\w-]{1,30}(?:\s[\w-]{1,30}){0,2}?)"
_PROPER = r"(?-i:[A-ZÄÖÜ])[\w’-]{0,30}"
_REST = r"(?P<object>\S.{0,160})$"
_IS = r"(?:\s(?:is|are)(?:\s(?:still|now|always))?|['’]s)\s"
_CALLED = r",?\s(?:named|called|whose name is)\s"
_MY = r"(?:my|our)\s"
_JOBS = (
    r"engineer|developer|programmer|teacher|nurse|doctor|student|lawyer|designer|writer|author"
    r"|artist|musician|chef|cook|baker|pilot|driver|accountant|architect|scientist|researcher"
    r"|professor|consultant|manager|photographer|journalist|electrician|plumber|carpenter|farmer"
    r"|analyst|dentist|vet|veterinarian|pharmacist|physicist|biologist|chemist|mathematician"
    r"|freelancer|founder|entrepreneur|translator|librarian|paramedic|firefighter|therapist"
    r"|psychologist|administrator|technician|mechanic|retiree|barista|waiter|waitress|actor|dancer"
)


# Columns: predicate; what the form makes and how much it keeps; pattern. The first form that matches and
# has an object decides. `kin` marks a relationship. An indented line continues the pattern above it.
_TABLE = rf"""
name         name                   my (?:full |first |real )?name{_IS}{_REST}
name         name                   (?:(?:you (?:can|may) )?call me|{_AM}called|i go by)\s{_REST}
location     end place              i (?:no longer live|don['’]?t live|used to live|lived|was living) in {_REST}
location     place                  {_I}(?:moved|relocated)(?:\s(?:back|over|away|house
                                    |here))?(?:\sfrom (?P<was>.{{1,60}}?))? (?:to|into) {_REST}
location     place                  {_I}(?:live|living|lived|been living|reside|based
                                    |settled(?: down)?)(?: now)? (?:in|at) {_REST}
hometown     place                  (?:i come from|{_AM}(?:originally )?from) {_REST}
employer     end place              i (?:no longer work|don['’]?t work|used to work|stopped working|worked
                                    |was working) (?:at|for) {_REST}
employer     end place              i {_ADV}(?:left|quit|resigned from|got laid off from
                                    |got fired from) (?:my (?:old )?job (?:at|with) )?(?P<object>{_PROPER}.{{0,80}})$
employer     place                  {_I}(?:work|works|working|employed) (?:full[- ]time |part[- ]time )?(?:at|for
                                    |by) {_REST}
employer     place                  {_I}(?:joined|started (?:working )?(?:at|for)|got hired (?:by|at)|(?:got|took
                                    |accepted|started|have|landed) (?:a|my) (?:new )?(?:job|position|role) (?:at
                                    |with)) (?P<object>{_PROPER}.{{0,80}})$
occupation   place                  i {_ADV}work as (?P<object>\S.{{0,80}})$
occupation   place                  {_AM}{_ADV}an? (?P<object>(?:{_WORD} ){{0,3}}(?:{_JOBS}))\b
diet         end                    {_AM}(?:no longer|not) (?:an? )?(?P<object>vegan|vegetarian|pescatarian)\b
diet         -                      {_AM}{_ADV}(?:an? )?(?P<object>vegan|vegetarian|pescatarian)\b
age          -                      {_AM}{_ADV}(?P<object>\d{{1,3}})(?: years? old|[ -]?y/?o)\b
age          -                      (?:{_AM}|i {_ADV}turned |my age is )(?P<object>[1-9]\d)$
birthday     name                   {_MY}birthday{_IS}(?:on )?(?P<object>\S.{{0,40}})$
birthplace   place                  {_AM}born in (?P<object>{_PROPER}.{{0,60}})$
allergic_to  list                   {_AM}{_ADV}(?:severely )?allergic to {_REST}
allergic_to  -                      i have (?:an?|a severe) (?P<object>\w{{2,20}}) allergy\b
speaks       place list             i {_ADV}speak (?:fluent )?{_REST}
studies      -                      {_I}(?:study|studying|majoring in) {_REST}
spouse       name                   {_I}(?:married(?: to)?|got married to) (?P<object>{_PROPER}.{{0,40}})$
likes        end                    i (?:no longer|don['’]?t) (?:like|love|enjoy) (?P<object>.{{2,80}}?) (?:anymore
                                    |any more|any longer)$
likes        end                    i no longer (?:like|love|enjoy) {_REST}
dislikes     -                      i {_ADV}(?:hate|dislike|can['’]?t stand|detest|don['’]?t (?:really )?like) {_REST}
likes        -                      i {_ADV}(?:like|love|enjoy|adore|prefer) {_REST}
-            favourite              (?P<object>\S.{{1,60}}?) is {_MY}(?:new |absolute |all-time )?favou?rite {_THING}$
-            favourite              {_MY}(?:new |absolute |all-time )?favou?rite {_THING}(?:{_IS}
                                    |\shas always been ){_REST}
-            name_of name kin list  (?:{_MY}|{_I}(?:have|got|own) (?:two|three|four
                                    |[2-9]) )(?:{_WORD} )?(?P<thing>{PLURALS})(?: are)?(?:[,:]| called
                                    | named) (?P<object>{_PROPER}.{{0,80}})$
-            name_of name kin       the name of {_MY}{_THING} is {_REST}
-            name_of name kin       {_MY}{_THING}['’]s name{_IS}{_REST}
-            name_of name kin       {_MY}(?:new )?{_THING}{_IS}(?:named|called) {_REST}
-            name_of name           {_I}(?:named|called) {_MY}(?:new )?(?P<thing>{_WORD}) {_REST}
-            name_of name kin       {_I}(?:have|got|had|own|adopted|bought|keep)?\s?(?:a|an
                                    |one)\s(?:{_WORD} ){{0,3}}?(?P<thing>{_WORD}){_CALLED}{_REST}
has          end place              i {_ADV}(?:sold|gave away|got rid of|lost|scrapped) {_MY}{_REST}
has          place                  {_I}(?:bought|own|adopted|drive|purchased) (?:an?|the|my) (?:new |used )?{_REST}
has          -                      {_I}(?:have|got) an? (?P<object>(?:{_WORD} ){{0,2}}(?:{_KIN}|car|bike|boat|garden
                                    |motorbike|motorcycle))$
started      -                      {_I}(?:started|begun|began|taken up|took up) (?P<object>(?:learning|playing
                                    |studying|taking|doing|working on|going to|training|reading|writing|building|an?
                                    |my|new)\s.{{1,80}})$
-            of_mine                {_MY}(?P<of>{_WORD})['’]s {_THING}{_IS}(?:called |named )?{_REST}
-            of_another             (?!(?:it|that|what|he|she|there|here|let|today|who
                                    |where)['’])(?P<of>{_PROPER}(?:\s{_PROPER})?)['’]s {_THING}{_IS}
                                    (?:called |named |on )?{_REST}
-            of_another name        (?P<object>{_PROPER}.{{0,60}}?) is (?P<of>{_PROPER})['’]s {_THING}$
-            name_of name kin       (?P<object>{_PROPER}) is {_MY}(?P<thing>{_KIN})$
-            attribute              {_MY}{_THING}{_IS}{_REST}
-            mentioned name kin     (?:.{{0,80}}\s)?{_MY}(?P<thing>{_KIN}),? (?P<object>(?-i:[A-Z])[a-z]{{1,20}})\b
                                    (?!['’])
name         name                   (?:mein name ist|ich hei(?:ß|ss)e) {_REST}
location     end place              ich (?:wohne|lebe) nicht mehr in {_REST}
location     place                  ich (?:wohne|lebe)(?: jetzt)? in {_REST}
location     place                  ich bin (?:von (?P<was>\S{{1,40}}) )?nach (?P<object>\S.{{0,60}}?) (?:um)?gezogen$
employer     place                  ich arbeite (?:bei|für) {_REST}
age          -                      ich bin (?P<object>\d{{1,3}}) jahre alt\b
allergic_to  list                   ich bin allergisch gegen {_REST}
-            name_of name           meine? (?P<thing>{_WORD}) (?:heißt|heisst) {_REST}
name         name                   (?:我叫|我的名字(?:是|叫))(?P<object>\w{{1,12}})$
location     place                  我(?:现在)?住在(?P<object>\w{{1,20}})$
location     end place              我(?:已经)?不住在(?P<object>\w{{1,12}}?)了?$
location     place                  我(?:从(?P<was>\w{{1,12}}?))?搬到(?:了)?(?P<object>\w{{1,12}}?)(?:了)?$
employer     place                  我在(?P<object>\w{{1,20}})(?:工作|上班)$
age          -                      我(?:今年)?(?P<object>\d{{1,3}})岁
likes        list                   我(?:很)?喜欢(?P<object>\w{{1,20}})$
-            name_of name           我的(?P<thing>狗|猫)叫(?P<object>\w{{1,12}})$
"""


def _forms(table: str) -> Iterator[PhraseForm]:
    for line in re.sub(r"\n {9,}", "", table).strip().splitlines():
        predicate, how, pattern = re.split(r" {2,}", line, maxsplit=2)
        words = how.split()
        yield PhraseForm(
            predicate.strip("-"),
            re.compile(pattern, re.IGNORECASE),
            next((one for one in Makes if one.name.lower() in words), Makes.PLAIN),
            next((one for one in _MOST_WORDS if one in words), "thing"),
            "relationship" if "kin" in words else "attribute",
            is_list="list" in words,
        )


FORMS = tuple(_forms(_TABLE))

# Forms by the opening of their patterns, so that most clauses are matched against few forms.
_OPENINGS = {"i": ("i ", "i(", "(?:i|we)"), "my": (_MY, "my ")}


def _opened(opening: str) -> tuple[PhraseForm, ...]:
    others = tuple(one for name, ones in _OPENINGS.items() if name != opening for one in ones)
    return tuple(form for form in FORMS if not form.pattern.pattern.startswith(others))


_BY_OPENING = {"i": _opened("i"), "we": _opened("i"), "my": _opened("my"), "our": _opened("my")}
_ELSE = _opened("")
_FIRST_WORD = re.compile(r"i(?=['’]?m\b|['’]ve\b)|[a-z]+", re.IGNORECASE)


def forms_for(clause: str) -> tuple[PhraseForm, ...]:
    """The forms that may match the clause, in their order."""
    word = _FIRST_WORD.match(clause)
    return _BY_OPENING.get(word[0].lower() if word else "", _ELSE)


HELLO = re.compile(
    r"\W{0,5}(?:hi|hello|hey)\b(?: there| all| everyone)?[\s,!.–-]{1,4}(?:i['’]?m|i am|this is)\s"
    r"(?!(?:american|german|french|english|british|chinese|italian|spanish|indian|russian)\b)"
    r"(?P<object>(?-i:[A-Z])[a-zà-ÿ’'-]{1,20})\b(?=\s*(?:[,.!;]|and\b|from\b|$))",
    re.IGNORECASE,
)


# --- statements ----------------------------------------------------------------------------------
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

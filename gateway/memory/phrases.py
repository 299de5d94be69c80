"""The table of phrases in which people state facts about themselves and their own. Data."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Literal

from gateway.domain.facts import EntityType

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

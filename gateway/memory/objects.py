"""What follows a phrase, as the object of a fact. Pure."""

import re
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Literal

Keeps = Literal["name", "place", "thing"]  # how much of what follows is the object

# Where the object ends, and what is none.
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
    """The object without what only follows it; None if it is none."""
    text = text.strip(" \t'’*_~-")
    for _ in range(3):  # `too, by the way`
        text = _OVER.sub("", text).strip(" .,!:;'’*_~)")
    text = _KEPT[keeps](text)
    if "\x00" in text or not _SAYS_SOMETHING.search(text) or _NONE.match(text):
        return None
    return text if len(text.split()) <= _MOST_WORDS[keeps] else None


_MOST_WORDS = {"name": 4, "place": 6, "thing": 10}
_SAYS_SOMETHING = re.compile(r"[^\W_]")


def _name(text: str) -> str:
    """It goes on as long as its words are capitals, or numbers."""
    first, *more = _NAME_OVER.sub("", text).split() or [""]
    proper = takewhile(lambda word: word[0].isupper() or word[0].isdigit(), more)
    return " ".join((first, *proper))


def _place(text: str) -> str:
    return _PLACE_OVER.sub("", text).strip()


_KEPT: Mapping[Keeps, Callable[[str], str]] = {"name": _name, "place": _place, "thing": str}

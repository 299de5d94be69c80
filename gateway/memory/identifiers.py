"""Finds what must not be paraphrased: addresses, paths, numbers, ids, names in code quotes. Pure."""

import re
from collections import Counter
from collections.abc import Sequence

_LOOKED_AT = 20_000  # characters of a text

# Without nested repetitions: what people paste must not stop us.
_KINDS = (
    re.compile(r"`([^`\n]{1,120})`"),
    re.compile(r"\b(?:https?|ftp|wss?|file|result)://[^\s<>\"'`)\]]{1,190}"),
    re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,32}){1,4}"),
    re.compile(r"(?<![\w/.])(?:~|\.{1,2})?(?:/[\w.@+-]{1,64}){2,12}"),
    re.compile(r"(?<![\w/.])[\w-]{1,64}(?:/[\w.@-]{1,64}){1,8}\.\w{1,8}\b"),
    re.compile(r"(?<![\w/.])(?=[\w.-]{5})\w[\w-]{0,62}(?:\.[A-Za-z][\w-]{0,62}){1,6}\b"),
    re.compile(r"#\d{1,12}\b"),
    re.compile(r"(?<![\w.,])[$€£]?\d{1,15}(?:[.,:-]\d{1,12}){0,6}%?(?!\w)"),
    re.compile(r"\b(?=[\w-]{0,60}\d)(?=[\w-]{0,60}[A-Za-z])[A-Za-z0-9][\w-]{3,60}\b"),
    re.compile(r"\b[A-Za-z]{1,40}(?:_[A-Za-z0-9]{1,40}){1,8}\b"),
)
_FILE = re.compile(r"[\w.@+~/-]{1,150}\.\w{1,8}")
_SYMBOL = re.compile(r"[A-Za-z_][\w.]{1,80}(?:\(\))?")
_SAYS = re.compile(r"(?!\d{1,2}$).{1,200}")  # a small number says nothing by itself


def identifiers(text: str) -> Sequence[str]:
    """In the order of their first place, each once; of those that overlap, the longest."""
    matches = (match for kind in _KINDS for match in kind.finditer(text[:_LOOKED_AT]))
    spans = sorted((match.start(), -match.end(), match[match.lastindex or 0]) for match in matches)
    names: dict[str, None] = {}
    taken_to = 0
    for start, end, name in spans:
        if start >= taken_to:
            taken_to = -end
            names[name.strip(".,;:")] = None
    return [name for name in names if _SAYS.fullmatch(name)]


def missing_from(told: str, texts: Sequence[str], later: str, *, most: int) -> Sequence[str]:
    """Those of the texts that `told` has lost: first what is spoken of later, then what was said
    most often, then the newest."""
    counts: Counter[str] = Counter()
    newest: dict[str, int] = {}
    for place, text in enumerate(texts):
        for name in identifiers(text):
            counts[name] += 1
            newest[name] = place
    lost = [name for name in counts if name not in told]
    lost.sort(key=lambda name: (name in later, counts[name], newest[name]), reverse=True)
    return lost[:most]


def files_and_symbols(texts: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    names = dict.fromkeys(name for text in texts for name in identifiers(text))
    quoted = {quote for text in texts for quote in _KINDS[0].findall(text[:_LOOKED_AT])}
    files = [name for name in names if _FILE.fullmatch(name) and not name[0].isdigit()]
    symbols = [name for name in names if name in quoted and _SYMBOL.fullmatch(name)]
    return files, [name for name in symbols if name not in files]

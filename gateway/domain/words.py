"""A text as the words by which it is found again, in any script."""

import re
from unicodedata import category, normalize

LONGEST = 64  # characters of a word that count
MOST_GROWN = 4  # times

# Written without spaces between words: kana, Han, Hangul, Thai, Lao, Burmese, Khmer.
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = f"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\uac00-\ud7af{_HAN}]+"
_PIECE = re.compile(f"({_UNSPACED})")
_IS_HAN = re.compile(f"[{_HAN}]")
_ASCII = re.compile(r"[0-9a-z]+")


def words_of(text: str) -> tuple[str, ...]:
    """In their order, in one case and Unicode form. Scripts without spaces come as pairs of
    characters (and Han as single ones too), which is what one can find them by."""
    if text.isascii():
        return tuple(word[:LONGEST] for word in _ASCII.findall(text.lower()))
    even = normalize("NFKC", normalize("NFKC", text).casefold())
    even = even[: MOST_GROWN * len(text) + LONGEST]  # some signs stand for whole sentences
    apart = {ord(one): " " for one in set(even) if not _is_of_a_word(one)}
    words: list[str] = []
    for run in even.translate(apart).split():
        for piece in filter(None, _PIECE.split(run)):
            words += _pairs(piece) if _PIECE.match(piece) else (piece[:LONGEST],)
    return tuple(words)


def _is_of_a_word(one: str) -> bool:
    return one.isalnum() or category(one)[0] == "M"


def _pairs(run: str) -> list[str]:
    if len(run) == 1:
        return [run]
    pairs = [first + second for first, second in zip(run, run[1:], strict=False)]
    return pairs + _IS_HAN.findall(run)

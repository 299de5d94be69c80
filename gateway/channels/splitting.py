"""Cuts a text into messages within a platform's limit, at paragraphs, lines, sentences or words."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Literal

Unit = Literal["utf16", "characters", "bytes"]

_OPENS = re.compile(r"^ {0,3}(?P<mark>`{3,12}|~{3,12})(?P<info>[^`\n]{0,80})$", re.MULTILINE)
# Parts that stay whole if they fit: character references, links, inline code.
_WHOLE = re.compile(r"&#?\w{1,32};|!?\[[^\[\]\n]*\]\([^()\n]*\)|(`{1,2})[^`\n]+\1")
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_LINE = re.compile(r"\n")
_SENTENCE = re.compile(r"[.!?…][\"')\]]*\s+|[。！？]")  # the second branch is for other scripts
_WORD = re.compile(r"\s+")
_JOINER = "\u200d"


@dataclass(frozen=True, slots=True)
class Piece:
    """One message: `text` is the sent form of the slice from `start` to `end`; blank if that is."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced code block; its content is from `body` to `close`."""

    start: int
    body: int
    close: int
    end: int
    opening: str  # the mark and the first word of the info string
    mark: str


def width_of(text: str, unit: Unit) -> int:
    return sum(map(_WIDTHS[unit], text))


class Splitting:
    """A text that can be cut from any offset. Joined slices give the text for all limits."""

    def __init__(self, text: str, unit: Unit = "characters") -> None:
        self.text = text
        self._unit: Unit = unit
        self._fences = tuple(_fences(text))
        self._starts = [fence.start for fence in self._fences]

    def cut(self, start: int, limit: int) -> Piece:
        """Returns the longest piece from `start` that fits, including the fences around it."""
        opened, reserved = self._fence_around(start, limit), 0
        before = opened.opening + "\n" if opened else ""
        while True:
            room = limit - width_of(before, self._unit) - reserved
            end = self._end(start, max(1, room))
            closed = self._fence_around(end, limit)
            after = "\n" + closed.mark if closed else ""
            needed = width_of(after, self._unit)
            if needed <= reserved:
                return Piece(start, end, self._dress(start, end, before, after))
            reserved = needed

    def _dress(self, start: int, end: int, before: str, after: str) -> str:
        said = self.text[start:end]
        if not before:
            said = said.lstrip("\n")
        if not after:
            return before + said.rstrip()
        return f"{before}{said}{'' if said.endswith(chr(10)) else chr(10)}{after.strip()}"

    def _fence_around(self, place: int, limit: int) -> Fence | None:
        """Returns the fence around an offset; None also if its opening is too long for the limit."""
        at = bisect_right(self._starts, place) - 1
        fence = self._fences[at] if at >= 0 else None
        is_around = fence and fence.body <= place < fence.close
        return fence if fence and is_around and 4 * len(fence.opening) < limit else None

    def _end(self, start: int, room: int) -> int:
        most = _fit_end(self.text, start, room, self._unit)
        if most == len(self.text):
            return most
        whole = self._whole(start, most, room)
        half = start + (most - start) // 2
        for pattern, least in (
            (_PARAGRAPH, half),
            (_LINE, half),
            (_SENTENCE, half),
            (_WORD, start),
        ):
            found = [match.end() for match in pattern.finditer(self.text, least, most + 1)]
            for end in reversed(found):
                if start < end <= most and end not in whole and not _joins(self.text, end):
                    return end
        return self._anywhere(start, most, whole)

    def _anywhere(self, start: int, most: int, whole: Set[int]) -> int:
        """Returns an end within a word, but not within one visible character if that fits."""
        end = most
        while end in whole:
            end -= 1
        end = place = end if end > start else most
        while place > start and _joins(self.text, place):
            place -= 1
        return place if place > start else end

    def _whole(self, start: int, most: int, room: int) -> Set[int]:
        """Returns the offsets inside the parts that stay whole; a part that cannot fit is cut."""
        spans = [match.span() for match in _WHOLE.finditer(self.text, start, most + room)]
        at = max(0, bisect_right(self._starts, start) - 1)
        for fence in self._fences[at : bisect_right(self._starts, most)]:
            spans.append((fence.start, min(fence.body + 1, len(self.text))))
            spans.append((max(fence.body, fence.close - 2), fence.end))
        return {
            place
            for first, last in spans
            if first >= start and last - first <= room
            for place in range(first + 1, last)
        }


def _fit_end(text: str, start: int, room: int, unit: Unit) -> int:
    """Returns the end of the longest slice that fits; at least one character always fits."""
    if unit == "characters":
        return min(len(text), start + room)
    width, end = _WIDTHS[unit], start
    for char in text[start : start + room]:
        room -= width(char)
        if room < 0:
            break
        end += 1
    return max(end, min(len(text), start + 1))


def _joins(text: str, place: int) -> bool:
    """True if the characters before and at an offset are visible as one."""
    if not 0 < place < len(text):
        return False
    char, before = text[place], text[place - 1]
    if before == "\r" and char == "\n":
        return True
    if char == _JOINER or before == _JOINER or _extends(char):
        return True
    flags = 0
    while _is_flag(char) and flags < min(place, 64) and _is_flag(text[place - 1 - flags]):
        flags += 1
    return flags % 2 == 1


def _extends(char: str) -> bool:
    return unicodedata.category(char).startswith("M") or (
        "\U0001f3fb" <= char <= "\U0001f3ff" or "\U000e0020" <= char <= "\U000e007f"
    )


def _is_flag(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _fences(text: str) -> Iterator[Fence]:
    place = 0
    while opens := _OPENS.search(text, place):
        mark = opens["mark"]
        body = min(len(text), opens.end() + 1)
        closing = re.compile(rf"^ {{0,3}}{mark[0]}{{{len(mark)},}}[ \t]*$", re.MULTILINE)
        closes = closing.search(text, body)
        close, place = closes.span() if closes else (len(text), len(text))
        word = opens["info"].split()[:1]
        yield Fence(opens.start(), body, close, place, mark + "".join(word), mark)
        if not closes:
            return


_WIDTHS: dict[Unit, Callable[[str], int]] = {
    "characters": lambda _char: 1,
    "utf16": lambda char: 2 if char > "\uffff" else 1,
    "bytes": lambda char: len(char.encode(errors="surrogatepass")),
}

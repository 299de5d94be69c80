"""Finds secrets in what others wrote, in every encoding that an echo gives them, in linear time.

Nothing is normalised: what is replaced is the place of the secret itself, all else stays as it is.
A match is made unit by unit (a unit is a character of the secret) and no unit is tried twice, so a
text of any kind costs its length times the length of the secret at most, and in practice its length.
"""

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html.entities import html5
from itertools import combinations

_SHORTEST_FORM = 6  # an encoded form that is shorter stands in unrelated data by chance
_UNITS = 96  # of one pattern: a longer secret is looked for piece by piece
_WINDOW = 65_536  # bytes that are looked at before others have their turn
STARS = "*"
_STARS = STARS.encode()
_ESCAPE = re.compile(b"%[0-9A-F]{2}")
_MARKERS = {"json": b"\\", "percent": b"%", "html": b"&"}
_SIGNS = (*_MARKERS.values(), b"+")
_HEX, _ALL = ("hex",), ("json", "percent", "html")
_FEW_UNITS = 4  # so many are told from unrelated data however they are written
_LONGEST_UNIT = 128  # bytes of one character, written in the longest way
_NAMED: dict[str, list[str]] = {}
for _name, _char in html5.items():
    _NAMED.setdefault(_char, []).append(_name.removesuffix(";"))
_JSON_SHORT = {
    "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", '"': '"', "'": "'", "/": "/",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Search:
    """For a secret, or for one piece of a long one."""

    pattern: re.Pattern[bytes]
    longest: int  # bytes that it can match
    shortest: int  # that count
    mark: bytes


class SecretScanner:
    """Replaces secrets by their marks. `marks` has a mark by the value of each secret; STARS: what is
    replaced keeps its length."""

    __slots__ = ("_literals", "_marks", "_searches")

    def __init__(self, marks: Mapping[str, str]) -> None:
        values = {_as_bytes(value): mark.encode() for value, mark in marks.items() if value}
        # A longer one first: it may contain a shorter one.
        self._marks = sorted(values.items(), key=lambda one: -len(one[0]))
        literals = {
            form: _fitting(mark, form) for value, mark in self._marks for form in _literals(value)
        }
        self._literals = sorted(literals.items(), key=lambda one: -len(one[0]))
        self._searches: dict[tuple[str, ...], Sequence[_Search]] = {}

    def __repr__(self) -> str:
        return "SecretScanner(***)"

    def text(self, text: str) -> str:
        """The same object if nothing was found."""
        raw = text.encode(errors="surrogatepass")
        scrubbed = self.data(raw)
        return text if scrubbed == raw else scrubbed.decode(errors="surrogatepass")

    def data(self, data: bytes) -> bytes:
        work = self.steps(data)
        while True:
            try:
                next(work)
            except StopIteration as done:
                scrubbed: bytes = done.value
                return scrubbed

    def finds(self, data: bytes) -> bool:
        return self.data(data) != data

    def steps(self, data: bytes) -> Generator[None, None, bytes]:
        """The same in steps of a millisecond or so, for whoever has others waiting."""
        for form, mark in self._literals:
            data = data.replace(form, mark)
            if len(data) > _WINDOW:
                yield
        for encodings in _sets(data):
            if encodings not in self._searches:
                # Made when a text needs them: most have nothing that is escaped.
                self._searches[encodings] = yield from self._made(encodings)
            for search in self._searches[encodings]:
                if len(data) > _WINDOW or search.pattern.search(data):
                    data = yield from _replaced(data, search)
        return data

    def _made(self, encodings: tuple[str, ...]) -> Generator[None, None, Sequence[_Search]]:
        made: list[_Search] = []
        for value, mark in self._marks:
            has_marker = any(marker in value for marker in _MARKERS.values())
            if has_marker or encodings in (_HEX, _ALL):
                for piece in _pieces(value):
                    made.append(_search(piece, encodings, mark))
                    yield  # a long secret takes a while
        return made


@lru_cache(maxsize=256)
def scanner(marks: tuple[tuple[str, str], ...]) -> SecretScanner:
    """The scanner of these secrets: to make one costs more than to use it."""
    return SecretScanner(dict(marks))


def _as_bytes(text: str) -> bytes:
    """Bytes that were no UTF-8 when they came in go out as they were."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def _fitting(mark: bytes, found: bytes) -> bytes:
    return b"*" * len(found) if mark == _STARS else mark


def _sets(data: bytes) -> Sequence[tuple[str, ...]]:
    """What may be mixed in one echo. Only a secret with a sign in it that another encoding begins
    with can be missed by the set of all."""
    if not any(map(data.__contains__, _SIGNS)):
        return (_HEX,)
    there = [name for name, marker in _MARKERS.items() if marker in data]
    if "percent" not in there and b"+" in data:
        there.append("percent")
    return (_HEX, _ALL, *combinations(there, 1), *combinations(there, 2))


def _replaced(data: bytes, search: _Search) -> Generator[None, None, bytes]:
    kept: list[bytes] = []
    done = begin = 0
    while begin < len(data):
        end = begin + _WINDOW
        found = search.pattern.search(data, begin, end + search.longest)
        if found is None or found.start() >= end:
            begin = end
            if begin < len(data):
                yield
        elif len(found[0]) < search.shortest:
            begin = found.start() + 1
        else:
            kept += (data[done : found.start()], _fitting(search.mark, found[0]))
            done = begin = found.end()
    return b"".join((*kept, data[done:])) if kept else data


def _literals(value: bytes) -> Iterator[bytes]:
    """Forms that always look the same."""
    yield value
    passed = value.decode(errors="surrogateescape").encode(errors="surrogatepass")
    if passed != value:
        yield passed
    for is_ascii in (True, False):
        text = value.decode(errors="surrogateescape")
        for _ in range(3):  # a text in a text in a text
            text = json.dumps(text, ensure_ascii=is_ascii)[1:-1]
            if len(text) >= _SHORTEST_FORM:
                yield _as_bytes(text)
    for form in _base64_forms(value):
        if len(form) >= _SHORTEST_FORM:
            yield form
            yield form.replace(b"/", rb"\/")
            escaped = form.replace(b"+", b"%2B").replace(b"=", b"%3D")  # and a path's signs, maybe
            for one in (escaped, escaped.replace(b"/", b"%2F")):
                yield one
                yield _ESCAPE.sub(lambda found: found[0].lower(), one)


def _base64_forms(value: bytes) -> Iterator[bytes]:
    """Alone, and inside of something longer: there it may begin at any of three places."""
    for encode in (b64encode, urlsafe_b64encode):
        alone = encode(value)
        yield alone
        yield alone.rstrip(b"=")
        for before in range(3):
            packed = encode(bytes(before) + value)
            # Only the characters that no neighbour has a bit in.
            yield packed[(8 * before + 5) // 6 : 8 * (before + len(value)) // 6]


def _pieces(value: bytes) -> Iterator[list[str]]:
    """The units, in pieces of a length that patterns can have; the last is no shorter than others."""
    units = list(value.decode(errors="surrogateescape"))
    count = max(1, len(units) // _UNITS)
    size = -(-len(units) // count)
    for at in range(0, len(units), size):
        yield units[at : at + size]


def _search(units: list[str], encodings: tuple[str, ...], mark: bytes) -> _Search:
    shortest = _SHORTEST_FORM if len(units) < _FEW_UNITS or encodings == _HEX else 0
    if encodings == _HEX:
        pattern = _digits(_as_bytes("".join(units)).hex())
        return _Search(re.compile(pattern), 8 * len(units), shortest, mark)
    parts: list[bytes] = []
    for before, unit, after in zip(["", *units[:-1]], units, [*units[1:], ""], strict=True):
        ways = b"|".join(_ways(unit, (before, after), encodings))
        # What was taken for one unit is never taken apart again. The first is only tried once, and
        # of a sign that is written several times over only one number of times fits.
        is_loose = not parts or unit in "%&\\"
        parts.append((b"(?:" if is_loose else b"(?>") + ways + b")")
    pattern = b"".join(parts)
    return _Search(re.compile(pattern), _LONGEST_UNIT * len(units), shortest, mark)


def _ways(unit: str, beside: tuple[str, str], encodings: tuple[str, ...]) -> Iterator[bytes]:
    """How a character may be written, the longest first. The sign that an encoding begins with
    never stands for itself there: so no two readings of one text are possible."""
    if "json" in encodings:
        yield from _json_ways(unit, beside)
    if "percent" in encodings:
        yield from _percent_ways(unit)
    if "html" in encodings:
        yield from _html_ways(unit, beside[1])
    raw = _as_bytes(unit)
    if not any(raw == _MARKERS[name] for name in encodings):
        yield re.escape(raw)


def _json_ways(unit: str, beside: tuple[str, str]) -> Iterator[bytes]:
    """Also in a text in a text: each level doubles the backslashes."""
    many = rb"\\(?:\\){0,15}+"
    if unit == "\\":
        # Of several in a row nobody could tell how many each of them became.
        yield rb"\\\\" if "\\" in beside else rb"\\{2}|\\{4}|\\{8}"
        many = rb"\\"
    elif unit in _JSON_SHORT:
        yield many + re.escape(_JSON_SHORT[unit].encode())
    number = ord(unit)
    if number <= 0xFFFF:
        yield many + b"u" + _digits(f"{number:04x}")
    else:
        high, low = divmod(number - 0x10000, 0x400)
        parts = (f"{0xD800 + high:04x}", f"{0xDC00 + low:04x}")
        yield b"".join(many + b"u" + _digits(part) for part in parts)
    yield many + rb"u\{0{0,8}" + _digits(f"{number:x}") + rb"\}"
    if number <= 0xFF:
        yield many + b"x" + _digits(f"{number:02x}")


def _percent_ways(unit: str) -> Iterator[bytes]:
    """Also if it was done more than once: then the sign itself is written %25."""
    if unit == "%":
        yield b"%(?:25){1,4}?"
        return
    yield b"".join(b"%(?:25){0,4}+" + _digits(f"{byte:02x}") for byte in _as_bytes(unit))
    if unit == " ":
        yield rb"\+"


def _html_ways(unit: str, after: str) -> Iterator[bytes]:
    ampersand = b"&(?:amp;){0,3}+" if unit != "&" else b"&(?:amp;){0,3}?"
    # The end may be left out. It is the next character if that has to be one and nothing else is.
    end = b";?+" if after != ";" else b"(?:;(?=[;&%\\\\]))?+"
    number = ord(unit)
    for name in sorted(_NAMED.get(unit, ()), key=len, reverse=True):
        yield ampersand + re.escape(name.encode()) + end
    if unit == "'":
        yield ampersand + b"apos" + end
    yield ampersand + b"#0{0,40}+" + str(number).encode() + end
    yield ampersand + b"#[xX]0{0,40}+" + _digits(f"{number:x}") + end


def _digits(digits: str) -> bytes:
    """Hexadecimal ones, in either case."""
    return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in digits).encode()

"""Finds secrets in foreign text, in every encoding in which a text may be echoed, in linear time.

Nothing is normalized: the scanner replaces the places of the secret and leaves all other bytes as
they are. A match proceeds unit by unit (a unit is a character of the secret) and never tries a unit
twice, so a text costs at most its length times the length of the secret, and in practice its
length.
"""

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html.entities import html5
from itertools import combinations

_SHORTEST_FORM = 6  # a shorter encoded form occurs in unrelated data by chance
_UNITS = 96  # of one pattern; a longer secret is searched for piece by piece
_WINDOW = 65_536  # bytes searched before other tasks run
STARS = "*"
_STARS = STARS.encode()
_ESCAPE = re.compile(b"%[0-9A-F]{2}")
_MARKERS = {"json": b"\\", "percent": b"%", "html": b"&"}
_SIGNS = (*_MARKERS.values(), b"+")
_HEX, _ALL = ("hex",), ("json", "percent", "html")
_FEW_UNITS = 4  # as many units differ from unrelated data in any spelling
_LONGEST_UNIT = 128  # bytes of one character in its longest spelling
_NAMED: dict[str, list[str]] = {}
for _name, _char in html5.items():
    _NAMED.setdefault(_char, []).append(_name.removesuffix(";"))
_JSON_SHORT = {
    "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", '"': '"', "'": "'", "/": "/",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for a secret, or for one piece of a long secret."""

    pattern: re.Pattern[bytes]
    longest: int  # bytes that the pattern can match
    shortest: int  # bytes of a match that counts
    mark: bytes


class SecretScanner:
    """Replaces secrets by marks. `marks` maps the value of each secret to its mark; the mark STARS
    keeps the length of the text."""

    __slots__ = ("_literals", "_marks", "_searches")

    def __init__(self, marks: Mapping[str, str]) -> None:
        values = {_as_bytes(value): mark.encode() for value, mark in marks.items() if value}
        # Longer secrets first, because they may contain shorter ones.
        self._marks = sorted(values.items(), key=lambda one: -len(one[0]))
        literals = {
            form: _fitting(mark, form) for value, mark in self._marks for form in _literals(value)
        }
        self._literals = sorted(literals.items(), key=lambda one: -len(one[0]))
        self._searches: dict[tuple[str, ...], Sequence[_Search]] = {}

    def __repr__(self) -> str:
        return "SecretScanner(***)"

    def text(self, text: str) -> str:
        """Returns the same object if it contains no secret."""
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
        """Scrubs in steps of about a millisecond, so that callers can run other tasks between
        them."""
        for form, mark in self._literals:
            data = data.replace(form, mark)
            if len(data) > _WINDOW:
                yield
        for encodings in _sets(data):
            if encodings not in self._searches:
                # Built on demand, because most texts contain no escapes.
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
                    yield  # a long secret takes long to compile
        return made


@lru_cache(maxsize=256)
def scanner(marks: tuple[tuple[str, str], ...]) -> SecretScanner:
    """Returns a cached scanner, because building one costs more than using it."""
    return SecretScanner(dict(marks))


def _as_bytes(text: str) -> bytes:
    """Encodes; bytes that were not UTF-8 when they were decoded are restored."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def _fitting(mark: bytes, found: bytes) -> bytes:
    return b"*" * len(found) if mark == _STARS else mark


def _sets(data: bytes) -> Sequence[tuple[str, ...]]:
    """Returns the combinations of encodings to search for. The set of all encodings misses only
    secrets that contain a marker of another encoding."""
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
    """Yields the encoded forms that always look the same."""
    yield value
    passed = value.decode(errors="surrogateescape").encode(errors="surrogatepass")
    if passed != value:
        yield passed
    for is_ascii in (True, False):
        text = value.decode(errors="surrogateescape")
        for _ in range(3):  # JSON inside JSON inside JSON
            text = json.dumps(text, ensure_ascii=is_ascii)[1:-1]
            if len(text) >= _SHORTEST_FORM:
                yield _as_bytes(text)
    for form in _base64_forms(value):
        if len(form) >= _SHORTEST_FORM:
            yield form
            yield form.replace(b"/", rb"\/")
            escaped = form.replace(b"+", b"%2B").replace(
                b"=", b"%3D"
            )  # the slash may be encoded too
            for one in (escaped, escaped.replace(b"/", b"%2F")):
                yield one
                yield _ESCAPE.sub(lambda found: found[0].lower(), one)


def _base64_forms(value: bytes) -> Iterator[bytes]:
    """Yields the forms alone and inside a longer text, where a value may begin at three offsets."""
    for encode in (b64encode, urlsafe_b64encode):
        alone = encode(value)
        yield alone
        yield alone.rstrip(b"=")
        for before in range(3):
            packed = encode(bytes(before) + value)
            # Only the characters that contain no bits of neighbouring bytes.
            yield packed[(8 * before + 5) // 6 : 8 * (before + len(value)) // 6]


def _pieces(value: bytes) -> Iterator[list[str]]:
    """Yields the units in pieces short enough for a pattern; the last is no shorter than others."""
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
        # Atomic groups, so that a matched unit is never split again. The first unit is tried only once,
        # and of a repeated marker only one number of repetitions fits.
        is_loose = not parts or unit in "%&\\"
        parts.append((b"(?:" if is_loose else b"(?>") + ways + b")")
    pattern = b"".join(parts)
    return _Search(re.compile(pattern), _LONGEST_UNIT * len(units), shortest, mark)


def _ways(unit: str, beside: tuple[str, str], encodings: tuple[str, ...]) -> Iterator[bytes]:
    """Yields the spellings of a character, the longest first. The marker of an encoding never
    stands for itself within that encoding, so a text has only one reading."""
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
    """Includes a JSON text inside a JSON text, where each level doubles the backslashes."""
    many = rb"\\(?:\\){0,15}+"
    if unit == "\\":
        # In a row of backslashes the number that each became is ambiguous.
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
    """Includes repeated encoding, in which the percent sign is written %25."""
    if unit == "%":
        yield b"%(?:25){1,4}?"
        return
    yield b"".join(b"%(?:25){0,4}+" + _digits(f"{byte:02x}") for byte in _as_bytes(unit))
    if unit == " ":
        yield rb"\+"


def _html_ways(unit: str, after: str) -> Iterator[bytes]:
    ampersand = b"&(?:amp;){0,3}+" if unit != "&" else b"&(?:amp;){0,3}?"
    # The semicolon may be missing. Before a unit ";" it counts only if that unit follows it.
    end = b";?+" if after != ";" else b"(?:;(?=[;&%\\\\]))?+"
    number = ord(unit)
    for name in sorted(_NAMED.get(unit, ()), key=len, reverse=True):
        yield ampersand + re.escape(name.encode()) + end
    if unit == "'":
        yield ampersand + b"apos" + end
    yield ampersand + b"#0{0,40}+" + str(number).encode() + end
    yield ampersand + b"#[xX]0{0,40}+" + _digits(f"{number:x}") + end


def _digits(digits: str) -> bytes:
    """Returns a pattern for hexadecimal digits in either case."""
    return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in digits).encode()

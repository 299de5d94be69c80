"""Keeps secrets out of what is shown about a configuration."""

import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.config.problems import KeyPath
from gateway.config.spans import Positions, Span

MASK = "***"
WIDTH = 120  # of a source line as it is shown

_SECRET_NAME = re.compile(
    r"(^|_)(token|api_?key|secrets?|pass(word|wd|phrase)?|credentials?|authorization|cookie"
    r"|private_key|access_key)$|^key$"
)
_SECRET_TEXT = re.compile(
    r"\b(?:sk|pk|rk)[-_][\w-]{6,}|\bgh[pousr]_\w{8,}|\bxox[a-z]-[\w-]{6,}|\bAIza[\w-]{10,}"
    r"|\bBearer +[^\s\"'$]{4,}",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"\$\{(?:env|file):[^}\"']*\}")


def looks_secret(name: str) -> bool:
    """Whether a key of this name would hold a secret, in our schema or anyone's."""
    return _SECRET_NAME.search(name.lower().replace("-", "_")) is not None


def is_sensitive(path: KeyPath) -> bool:
    return "headers" in path or any(isinstance(p, str) and looks_secret(p) for p in path)


def is_reference(text: str) -> bool:
    return _REFERENCE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Veil:
    """The literal secrets of one configuration, to be struck out wherever they turn up."""

    secrets: tuple[str, ...]

    def over(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return _SECRET_TEXT.sub(MASK, text)


def veil_over(document: Mapping[str, object]) -> Veil:
    """Collects what is literal under sensitive keys; anything shorter hides nothing by itself."""
    found = {text for text in _texts_below(document) if len(text) >= 4 and not is_reference(text)}
    return Veil(tuple(sorted(found, key=len, reverse=True)))


def _texts_below(document: Mapping[str, object]) -> Iterator[str]:
    """Every text that stands below a sensitive key."""
    todo: list[tuple[bool, object]] = [(False, document)]
    while todo:
        sensitive, value = todo.pop()
        match value:
            case dict():
                todo += [(sensitive or is_sensitive((str(k),)), v) for k, v in value.items()]
            case list():
                todo += [(sensitive, item) for item in value]
            case str() if sensitive:
                yield value


def secret_spans(positions: Positions, unknown: Iterable[KeyPath]) -> list[Span]:
    """What must not be shown: values of sensitive keys, texts of unknown ones, their comments."""
    strange = set(unknown)
    spans: list[Span] = []
    lines: set[int] = set()
    for path, span in positions.values():
        text = positions.source[span.start : span.end].decode(errors="replace")
        hidden = is_sensitive(path) or (_below(path, strange) and ("'" in text or '"' in text))
        if hidden and not is_reference(text.strip("\"'")):
            spans.append(span)
        if hidden:
            lines.add(positions.line(span.end))
    spans += [c for c in positions.comments if positions.line(c.start) in lines]
    return sorted(spans, key=lambda span: span.start)


def _below(path: KeyPath, above: set[KeyPath]) -> bool:
    return any(path[:length] in above for length in range(1, len(path) + 1))


def masked_line(source: bytes, offset: int, spans: Sequence[Span], veil: Veil) -> tuple[str, int]:
    """The line around an offset, fit to be shown, and where in it the caret belongs (from 0).

    `spans` are in order of their start.
    """
    start = source.rfind(b"\n", 0, offset) + 1
    end = source.find(b"\n", offset)
    line = Span(start, len(source) if end < 0 else end)
    before, after = "", ""
    for shown, piece in _pieces(source, line, spans, offset):
        if shown.end <= offset and shown.start < offset:
            before += piece
        else:
            after += piece
    return _fit(veil.over(before.removeprefix("\ufeff")), veil.over(after))


def _pieces(
    source: bytes, line: Span, hidden: Sequence[Span], offset: int
) -> Iterator[tuple[Span, str]]:
    """The line cut at what is hidden, which is masked, and at the offset."""
    cursor = line.start
    for span in hidden[: bisect_left(hidden, line.end, key=lambda span: span.start)]:
        if span.end > cursor:
            yield from _open_pieces(source, Span(cursor, max(span.start, cursor)), offset)
            yield Span(max(span.start, cursor), span.end), MASK
            cursor = min(span.end, line.end)
    yield from _open_pieces(source, Span(cursor, line.end), offset)


def _open_pieces(source: bytes, span: Span, offset: int) -> Iterator[tuple[Span, str]]:
    middle = min(max(offset, span.start), span.end)
    for start, end in ((span.start, middle), (middle, span.end)):
        if start < end:
            yield Span(start, end), source[start:end].decode(errors="replace")


def _fit(before: str, after: str) -> tuple[str, int]:
    """Cuts a long line around its caret; one column a character."""
    before, after = _plain(before), _plain(after.rstrip())
    if len(before) > WIDTH - 20:
        before = f"...{before[-(WIDTH // 2) :]}"
    room = WIDTH - len(before)
    after = after if len(after) <= room else f"{after[:room]}..."
    return before + after, len(before)


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in text)


def guarded_line(source: bytes, offset: int, harmless: Container[str]) -> tuple[str, int]:
    """A line of a file that is not TOML: nothing can be told for sure, so a value is only shown
    behind a key that is known to be `harmless`."""
    start = source.rfind(b"\n", 0, offset) + 1
    end = source.find(b"\n", offset)
    raw = source[start : len(source) if end < 0 else end]
    line = raw.decode(errors="replace").removeprefix("\ufeff")
    column = len(source[start:offset].decode(errors="replace").removeprefix("\ufeff"))
    if not _may_be_shown(line, source[:start].decode(errors="replace"), harmless):
        kept = line.partition("=")[0].rstrip() if "=" in line else ""
        line = f"{kept} = {MASK}" if kept and _BARE.fullmatch(kept) else MASK
        column = min(column, len(line))
    line = _SECRET_TEXT.sub(MASK, line)
    return _fit(line[:column], line[column:])


_BARE = re.compile(r"\s*[\w.-]+\s*")
_WORD = re.compile(r"[\w-]+")
_HEADER = re.compile(r"^\s*\[+\s*([^\]\n]+)", re.MULTILINE)


def _may_be_shown(line: str, above: str, harmless: Container[str]) -> bool:
    words = _WORD.findall(line)
    section = _WORD.findall((_HEADER.findall(above) or [""])[-1])
    if _is_inside_text(above) or is_sensitive((*words, *section)):
        return False
    if "=" in line:
        key = line.partition("=")[0]
        is_plain = line.count("=") == 1 and _BARE.fullmatch(key) is not None
        return is_plain and key.strip().rpartition(".")[2] in harmless
    return all(word in harmless for word in words)


def _is_inside_text(above: str) -> bool:
    """Of several lines, whose ever it is."""
    return any(above.count(quote) % 2 for quote in ('"""', "'''"))

"""Findings with their place in the file; imported only to show an error, or where a value stands."""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import tree_sitter_toml
from tree_sitter import Language, Node, Parser

from gateway.config.document import Document
from gateway.config.masking import MASK, fitted, is_sensitive, struck
from gateway.config.problems import (
    SHOWN,
    At,
    Code,
    ConfigInvalid,
    Finding,
    KeyPath,
    Problem,
    dotted,
)
from gateway.config.secrets import REFERENCE
from gateway.config.values import StartNotice
from gateway.domain.text import printable

DEEPEST = 32  # far deeper than any key of ours: paths below are not told apart
KINDS: tuple[At, ...] = ("value", "key", "table")
_KEYS = {"bare_key", "quoted_key", "dotted_key"}
_PART = re.compile(rb"""'[^']*'|"(?:[^"\\]|\\.)*"|[\w-]+""")  # of a dotted key


class Span(NamedTuple):
    """Bytes of the file."""

    start: int
    end: int


@dataclass(slots=True)
class Positions:
    """A place for every key path of one file."""

    source: bytes
    places: dict[KeyPath, dict[At, Span]] = field(default_factory=dict)
    elements: dict[KeyPath, int] = field(default_factory=dict)  # arrays of tables: the last index

    def span(self, path: KeyPath, at: At) -> Span:
        """The nearest place that the file has for this path."""
        for length in range(len(path), 0, -1):
            place = self.places.get(path[:length], {})
            # what is missing is missing from the table that there is
            wanted: At = at if length == len(path) else "table"
            for kind in (wanted, *KINDS):
                if kind in place:
                    return place[kind]
        return Span(0, 0)

    def value(self, path: KeyPath) -> Span | None:
        return self.places.get(path, {}).get("value")

    def elements_of(self, path: KeyPath) -> list[Span]:
        """The elements of a list that is written in brackets."""
        spans: list[Span] = []
        while span := self.value((*path, len(spans))):
            spans.append(span)
        return spans

    def leaves(self) -> list[tuple[KeyPath, Span]]:
        """Every value that is no table or list, or too deep to be told apart."""
        found = ((path, place["value"]) for path, place in self.places.items() if "value" in place)
        return [
            (path, span)
            for path, span in found
            if len(path) >= DEEPEST or self.source[span.start] not in b"[{"
        ]

    def line_column(self, offset: int) -> tuple[int, int]:
        """From one, in characters."""
        before = self.source[:offset].decode(errors="replace").removeprefix("\ufeff")
        return before.count("\n") + 1, len(before) - before.rfind("\n")

    def add_table(self, node: Node) -> KeyPath:
        """The path of the table, which is empty for what is none."""
        if not node.named_children or node.named_children[0].type not in _KEYS:
            return ()
        opening = Span(node.start_byte, node.start_byte + 1)  # its first bracket
        path: KeyPath = ()
        parts = _parts(node.named_children[0])
        for number, (name, span) in enumerate(parts, start=1):
            path = self._add((*path, name), {"key": span, "table": opening})
            if number == len(parts) and node.type == "table_array_element":
                self.elements[path] = self.elements.get(path, -1) + 1
            if path in self.elements:
                path = self._add((*path, self.elements[path]), {"key": span, "table": opening})
        self.places[path]["table"] = opening  # better than a header that passes through
        for child in node.named_children:
            if child.type == "pair":
                self.add_pair(path, child)
        return path

    def add_pair(self, path: KeyPath, pair: Node) -> None:
        if len(pair.named_children) < 2 or pair.named_children[0].type not in _KEYS:
            return
        parts = _parts(pair.named_children[0])
        for name, span in parts:
            path = self._add((*path, name), {"key": span, "table": parts[0][1]})
        self._add_value(path, pair.named_children[1])

    def _add_value(self, path: KeyPath, node: Node) -> None:
        span = Span(node.start_byte, node.end_byte)
        self._add(path, {"value": span, "table": span})
        if len(path) >= DEEPEST:
            return
        if node.type == "inline_table":
            for child in node.named_children:
                self.add_pair(path, child)
        elif node.type == "array":
            values = [child for child in node.named_children if child.type != "comment"]
            for index, child in enumerate(values):
                self._add_value((*path, index), child)

    def _add(self, path: KeyPath, spans: dict[At, Span]) -> KeyPath:
        """The first place of each kind counts."""
        self.places[path] = {**spans, **self.places.get(path, {})}
        return path


def locate(source: bytes) -> Positions:
    """Finds every key of a file that is valid TOML."""
    positions = Positions(source)
    root = Parser(Language(tree_sitter_toml.language())).parse(source).root_node
    for node in root.named_children:
        if node.type == "pair":
            positions.add_pair((), node)
        else:
            positions.add_table(node)
    return positions


def written(source: bytes, gone: Callable[[KeyPath], bool]) -> list[Span]:
    """Whole lines of the tables and pairs whose path is `gone`, in order; comments behind a table's
    last pair belong to what follows."""
    positions = Positions(source)
    root = Parser(Language(tree_sitter_toml.language())).parse(source).root_node
    found: list[Span] = []
    for node in root.named_children:
        path = () if node.type == "pair" else positions.add_table(node)
        pairs = [one for one in (node, *node.named_children) if one.type == "pair"]
        if path and gone(path):
            found.append(Span(node.start_byte, (pairs or [node])[-1].end_byte))
        else:
            found += [
                Span(one.start_byte, one.end_byte) for one in pairs if gone((*path, *_names(one)))
            ]
    return [_lines(source, span) for span in found]


def _names(pair: Node) -> KeyPath:
    return tuple(name for name, _ in _parts(pair.named_children[0]))


def _lines(source: bytes, span: Span) -> Span:
    start, end = source.rfind(b"\n", 0, span.start) + 1, source.find(b"\n", max(span.end - 1, 0))
    return Span(start, len(source) if end < 0 else end + 1)


def _parts(key: Node) -> list[tuple[str, Span]]:
    """The parts of a dotted key, each with its place."""
    found = list(_PART.finditer(key.text or b""))[:DEEPEST]
    at = key.start_byte
    return [(_name(part[0].decode()), Span(at + part.start(), at + part.end())) for part in found]


def _name(part: str) -> str:
    return next(iter(tomllib.loads(f"{part} = 0"))) if part[0] in "\"'" else part


def placed(
    findings: Sequence[Finding],
    document: Document,
    *,
    left_out: int = 0,
    notices: Sequence[StartNotice] = (),
) -> ConfigInvalid:
    """In the order of the file, behind what did not come from it."""
    places = _Places(document, findings)
    problems = places.problems(findings)
    more = left_out + len(findings) - len(problems)
    return ConfigInvalid(problems, left_out=more, warnings=warned(notices, document))


def warned(notices: Sequence[StartNotice], document: Document) -> tuple[Problem, ...]:
    """Notices with their places, in the order of the file."""
    found = [Finding(one.code, one.place, one.message, one.fix) for one in notices]
    return _Places(document, ()).problems(found, severity="warning")


class _Places:
    """Where findings stand in one file, and what of it may be shown."""

    def __init__(self, document: Document, findings: Sequence[Finding]) -> None:
        self._document, self._positions = document, locate(document.source)
        unknown = {finding.path for finding in findings if finding.code == Code.UNKNOWN_KEY}
        self._hidden, self._secrets = _hiding(self._positions, unknown)

    def problems(
        self, findings: Sequence[Finding], severity: Literal["error", "warning"] = "error"
    ) -> tuple[Problem, ...]:
        return tuple(
            self._problem(one, severity) for one in sorted(findings, key=self._start)[:SHOWN]
        )

    def _start(self, finding: Finding) -> int:
        if finding.variable:
            return -1
        span = self._positions.span(finding.path, finding.at)
        source = self._document.source[span.start : span.end]
        return span.start + _into(source, finding.column)

    def _problem(self, finding: Finding, severity: Literal["error", "warning"]) -> Problem:
        document, secrets = self._document, self._secrets
        line, column, text, caret = 0, 0, "", 0
        if not finding.variable and document.path:
            start = self._start(finding)
            line, column = self._positions.line_column(start)
            text, caret = fitted(*excerpt(document.source, start, self._hidden), secrets)
        source = finding.variable or document.name or "configuration"
        key = struck(dotted(finding.path), secrets)
        said = struck(finding.message, secrets), struck(finding.fix, secrets)
        return Problem(finding.code, source, line, column, key, *said, text, caret, severity)


def _into(text: bytes, column: int | None) -> int:
    """Where in a text, as the file has it, a character is; its beginning if that is not sure."""
    if column is None or text[:1] not in {b"'", b'"'} or b"\\" in text or b"\r" in text:
        return 0
    quotes = 3 if text[:3] in {b"'''", b'"""'} and len(text) >= 6 else 1
    quotes += text[quotes : quotes + 1] == b"\n"  # which does not count
    return quotes + len(text[quotes:].decode()[:column].encode())


def _hiding(positions: Positions, unknown: set[KeyPath]) -> tuple[list[Span], list[str]]:
    """What must not be shown: what sensitive keys hold, which is also struck out wherever else it
    stands (what is shorter than four hides nothing by itself), and the texts of unknown keys."""
    hidden: list[Span] = []
    secrets: set[str] = set()
    for path, span in positions.leaves():
        value = positions.source[span.start : span.end].decode()
        if is_sensitive(path):
            hidden.append(span)
            secrets.add(_bare(value))
        elif value[0] in "'\"[{" and any(
            path[: depth + 1] in unknown for depth in range(len(path))
        ):
            hidden.append(span)
    return sorted(hidden), sorted((s for s in secrets if len(s) >= 4), key=len, reverse=True)


def _bare(value: str) -> str:
    return value.strip("\"'\r\n")


def masked(source: bytes) -> list[str]:
    """The lines of a valid file as they may be shown. References are: they hold no secret."""
    positions = locate(source)

    def is_reference(span: Span) -> bool:
        return bool(REFERENCE.fullmatch(_bare(source[span.start : span.end].decode())))

    everything, secrets = _hiding(positions, set())
    hidden = [span for span in everything if not is_reference(span)]
    secrets = [secret for secret in secrets if not REFERENCE.fullmatch(secret)]
    starts = [0, *(found.end() for found in re.finditer(rb"\n", source))]
    lines = ["".join(excerpt(source, start, hidden)) for start in starts]
    return [printable(struck(line, secrets)) for line in lines]


def excerpt(source: bytes, offset: int, hidden: Sequence[Span]) -> tuple[str, str]:
    """The line before and after an offset, with what is hidden masked.

    Beside something hidden a comment is left out; a line that begins inside of it is not shown.
    """
    start = source.rfind(b"\n", 0, offset) + 1
    end = source.find(b"\n", offset)
    end = len(source) if end < 0 else end
    spans = [span for span in hidden if span.start < end and span.end > start]
    if spans and spans[0].start < start:
        return "", ""
    if spans:
        comment = source.find(b"#", max(offset, spans[-1].end), end)
        end = end if comment < 0 else comment
    before, after = source[start:offset], source[offset:end]
    for span in reversed(spans):
        if span.start < offset:
            before = before[: span.start - start] + MASK.encode() + before[span.end - start :]
        else:
            after = after[: span.start - offset] + MASK.encode() + after[span.end - offset :]
    return before.decode(errors="replace"), after.decode(errors="replace")

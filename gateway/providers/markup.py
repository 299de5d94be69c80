"""Tool calls that a model wrote as text, found while the text arrives and kept out of it.

Not inside code, quotes or quoted lines: what stands there is shown and never called. Memory is
bounded by whoever bounds the reply; each character is looked at a bounded number of times.
"""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from gateway.domain.model import ToolSpec
from gateway.providers.markup_calls import Calls, MarkupCall
from gateway.providers.markup_dialects import DIALECTS, read_calls
from gateway.providers.markup_tape import Tape, Waits

MOST_CALLS = 32  # of a reply; a turn refuses more anyway
_LINE_KEPT = 200
_TOKENS = re.compile(r"`+|~+|\n|[^`~\n]+")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_LISTED = r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*"
_BEGINS_LINE = re.compile(_LISTED)
_QUOTED_LINE = re.compile(_LISTED + ">")
_INDENTED = re.compile(r" {0,3}\t[ \t]*| {4}[ \t]*")
_QUOTES = tuple("\"'“‘„«‹\\")  # and what takes a mark's meaning away


class Recovery:
    """One stream of a reply: `feed` gives back what may be shown, `calls` are those found so far.
    In thought, a call that more thought follows was only considered: it does not count."""

    def __init__(self, tools: Sequence[ToolSpec], *, is_thought: bool = False) -> None:
        self.calls: list[MarkupCall] = []
        self._is_thought = is_thought
        self._tape = Tape()
        self._reader = Calls(self._tape, {tool.name: tool for tool in tools})
        self._lines = [tool.name + "{" for tool in tools]
        self._begins, self._begins_line, self._may_begin = _beginnings(tuple(self._lines))
        self._prose = _Prose()
        self._shown: list[str] = []
        self._space: list[str] | None = []  # held at the start and behind a call; None: not held
        self._reading = self._read()
        next(self._reading)

    @property
    def steps(self) -> int:
        """What was done so far, beside looking at whole pieces."""
        return self._tape.steps

    def feed(self, text: str) -> str:
        self._tape.feed(text)
        next(self._reading)
        return self._new()

    def finish(self) -> str:
        """The stream has ended: what was held back and is no call."""
        self._tape.is_over = True
        for _ in self._reading:  # it ends without another wait
            pass
        return self._new()

    def _new(self) -> str:
        shown = "".join(self._shown)
        self._shown.clear()
        return shown

    def _read(self) -> Waits[None]:
        while (yield from self._tape.has_more()):
            self._tape.mark()
            calls: list[MarkupCall] = []
            begins = self._begins_line if self._prose.is_line_start() else self._begins
            if self._tape.begins(begins) and self._prose.may_call():
                lines = self._lines if begins is self._begins_line else ()
                calls = yield from read_calls(self._reader, lines)
            if calls:
                self.calls += calls[: MOST_CALLS - len(self.calls)]
                self._prose.say("\N{OBJECT REPLACEMENT CHARACTER}")
                self._space = self._space or []
                self._say(self._tape.taken())
            else:
                self._say(self._tape.taken() or self._tape.take_to(self._may_begin))

    def _say(self, text: str) -> None:
        self._prose.say(text)
        if self._space is not None:
            said = text.lstrip()
            self._space.append(text[: len(text) - len(said)])
            if not said:
                return
            if self._is_thought:
                self.calls.clear()
            self._shown += self._space
            self._space, text = None, said
        self._shown.append(text)


@lru_cache(maxsize=64)
def _beginnings(lines: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Where a call may begin, also where the text ends before it is sure: a dialect's mark; at the
    start of a line also one of these; and both, to be searched for."""
    marks, both = _any_of(DIALECTS), _any_of((*DIALECTS, *lines))
    found = f"{marks}|(?<=\n)(?:{_any_of(lines)})" if lines else marks
    return re.compile(marks), re.compile(both), re.compile(found)


def _any_of(literals: Collection[str]) -> str:
    """An expression for any of these, none of which begins another, or for its beginning where the
    text ends. By their common beginnings, so that a look takes the same however many there are."""
    rests: dict[str, list[str]] = {}
    for literal in literals:
        rests.setdefault(literal[:1], []).append(literal[1:])
    found = [
        re.escape(first) + (f"(?:{_any_of(rest)}|\\Z)" if any(rest) else "")
        for first, rest in rests.items()
    ]
    return "|".join(found)


def counted(text: Recovery, thought: Recovery, answer: str) -> list[MarkupCall]:
    """The calls of a reply: those of its text, else those of its thought. Where something was
    answered, a call that was only begun in thought is none."""
    return text.calls or [one for one in thought.calls if one.is_whole or not answer.strip()]


class _Prose:
    """Where in Markdown the text has come to. In doubt it is code: then nothing is called."""

    def __init__(self) -> None:
        self._line = ""  # its beginning
        self._last = ""
        self._run = ("", 0)  # of backticks or tildes; it may go on
        self._span = 0  # backticks that opened a code span, or a fence whose first line it is
        self._fence = ("", 0)
        self._may_close = False  # the line is a fence's end so far

    def say(self, text: str) -> None:
        if "`" in text or "~" in text:
            self._say_marks(text)
        elif text:
            self._say_plain(text)

    def _say_plain(self, text: str) -> None:
        """Whole lines without a mark at once: of those that end, only blank ones matter."""
        if self._run[1]:
            self._settle()
        first, is_ended, rest = text.partition("\n")
        self._may_close = self._may_close and (not first or first.isspace())
        self._keep(first)
        self._last = text[-1]
        if is_ended:
            self._end_line()
            begun = rest.rfind("\n") + 1
            if self._span and _BLANK_LINE.search("\n" + rest[:begun]):
                self._span = 0
            self._keep(rest[begun : begun + _LINE_KEPT])

    def _say_marks(self, text: str) -> None:
        for token in _TOKENS.findall(text):
            char = token[0]
            if char in "`~":
                if self._run[1] and char != self._run[0]:
                    self._settle()
                self._run = (char, self._run[1] + len(token))
            else:
                if self._run[1]:
                    self._settle()
                if char == "\n":
                    self._end_line()
                else:
                    self._may_close = self._may_close and token.isspace()
                    self._keep(token)
            self._last = token[-1]

    def is_line_start(self) -> bool:
        return not self._line and not self._run[1]

    def may_call(self) -> bool:
        if self._run[1]:
            self._settle()
        if self._span or self._fence[1] or self._last in _QUOTES:
            return False
        return not (_QUOTED_LINE.match(self._line) or _INDENTED.fullmatch(self._line))

    def _keep(self, said: str) -> None:
        self._line += said[: _LINE_KEPT - len(self._line)]

    def _settle(self) -> None:
        """A run of backticks or tildes is over: what did it open or close?"""
        (char, length), self._run = self._run, ("", 0)
        before = self._line
        self._keep(char * min(length, 3))
        if _QUOTED_LINE.match(before):
            return
        if self._fence[1]:
            is_end = char == self._fence[0] and length >= self._fence[1]
            self._may_close = is_end and not before.strip()
        elif length >= 3 and _BEGINS_LINE.fullmatch(before):
            self._open(char, length)
        elif char == "`":
            self._span = 0 if self._span == length else self._span or length

    def _open(self, char: str, length: int) -> None:
        """A fence; of backticks it may still be a code span, until its line ends."""
        if char == "`":
            self._span = length
        else:
            self._fence, self._span = (char, length), 0

    def _end_line(self) -> None:
        if self._may_close:
            self._fence = ("", 0)
        elif self._span >= 3:
            self._fence, self._span = ("`", self._span), 0
        elif not self._line.strip():
            self._span = 0  # no code span goes beyond its paragraph
        self._may_close = False
        self._line = ""

"""A run's journal: one ordered record of its inputs, events, model calls, grants and chunks.

The journal is text. A line that begins with `[` is an entry, its kind first; a line that begins
with `{` is a chunk, byte for byte as clients got it. Crash resume, the chunk log, replay and
comparison read it.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from gateway.domain.errors import Conflict

MOST_BYTES = 8 * 1024 * 1024  # of a run; beyond it only chunks and GRANTS are kept
OVERRUN = "overrun"  # the end of an answer that exceeds its reservation, with the size

_NUMBER = (float, int)
_NO_TIME = 253_402_300_799_999_999  # microseconds; the end of the calendar

# The kinds of entries with the types of their values.
KINDS: Mapping[str, tuple[type | tuple[type, ...], ...]] = {
    "attempt": (int, list),  # an attempt began: its number, and the runs that it answers
    "at": (int, _NUMBER),  # both clocks were read: wall (microseconds) and monotonic
    "now": (int,),  # a provider's client read the wall clock
    "begin": (dict, dict),  # settings such as limits and tree; data read from the store
    "told": (list,),  # the turn received these events together
    "late": (),  # a wait of the turn timed out
    "ask": (dict,),  # a model is asked; digests of the request's parts
    "sent": (int,),  # a request was sent: its size in bytes
    "head": (int, dict),  # the answer began: status, and headers that decoding needs
    "bytes": (str,),  # one read of the answer, one character per byte
    "end": (str, str),  # the answer ended: complete, cut (by the gateway), or a network failure
    "text": (str,),  # a delta of a model without a wire
    "thinking": (str,),
    "metered": (
        (float, int, type(None)),
        list,
        (dict, type(None)),
    ),  # the cost of the reply that follows
    "reply": (
        int,
        (dict, type(None)),
    ),  # its step; the reply, if it has calls or was not read from bytes
    "failed": ((dict, type(None)),),  # a model failed
    "refused": (str, str, str, int, int, int, (float, int, type(None))),  # a budget was spent
    "taken": (int, str, str),  # a message was added to the turn: step, its run, its text
    "begun": (int, str),  # a call began that must not be repeated
    "result": (str, int, str, str, dict),  # a tool's call id, step, name, arguments, result
    "kept": (str,),  # earlier grants are stored and take effect
    "spent": (str, list),  # usage of models by a running call: its id, the usage
    "sub": (str, str, list),  # a grant of a subrun: its part, kind and values
    "stop": (str, bool),  # a stop was requested: the reason, and whether it is immediate
    "said": (str, str),  # a message for the running turn: its run, its text
    "unsaid": (str,),  # that message was withdrawn
    "over": (),  # the driver ended
    "cut": (),  # the journal exceeded MOST_BYTES; the run cannot be replayed
}
# Kinds that a resumed attempt needs; they are kept however long the journal is.
GRANTS = frozenset({"attempt", "reply", "taken", "begun", "result", "sub", "cut"})


class JournalEntry(NamedTuple):
    """One entry of a journal. `values` are plain."""

    kind: str
    values: tuple[Any, ...] = ()


class Record(Protocol):
    """A function that records an entry; it never waits and never fails."""

    def __call__(self, kind: str, *values: object) -> None: ...

    def hide(self, *secrets: str) -> None:
        """Keeps these texts out of all entries."""
        ...


class JournalUnreadable(Conflict):
    """The journal cannot be replayed; the text says why."""


def damaged(error: Exception) -> JournalUnreadable:
    return JournalUnreadable(f"the recording is damaged: {error}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The last attempt of a run, and the entries of earlier attempts. `asked` names the runs whose
    messages it answers; its own run is the last."""

    entries: tuple[JournalEntry, ...]
    earlier: tuple[JournalEntry, ...] = ()
    asked: tuple[str, ...] = ()
    is_cut: bool = False


def lines_of(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Yields the lines. Raises JournalUnreadable, also for a part that is too large unpacked."""
    for part in parts:
        reader = zlib.decompressobj()
        try:
            text = reader.decompress(part, 16 * MOST_BYTES)
        except zlib.error as error:
            raise damaged(error) from error
        if not reader.eof:
            raise damaged(ValueError("its end is missing"))
        yield from text.split(b"\n")


def chunks_of(parts: Sequence[bytes]) -> bytes:
    """Returns the chunks of the last attempt, one per line; empty if they cannot be read."""
    chunks: list[bytes] = []
    try:
        for line in lines_of(parts):
            if line[:1] == b"{":
                chunks.append(line)
            elif line.startswith(b'["attempt"'):
                chunks.clear()
    except JournalUnreadable:
        return b""
    return b"\n".join(chunks)


def attempt_of(parts: Sequence[bytes], decode: Callable[[bytes], object]) -> Attempt:
    """Parses the parts. Raises JournalUnreadable."""
    entries = [_entry(line, decode) for line in lines_of(parts) if line[:1] == b"["]
    begins = [place for place, entry in enumerate(entries) if entry.kind == "attempt"]
    begin = begins[-1] if begins else 0
    last = entries[begin + 1 :] if begins else entries
    asked = entries[begin].values[1] if begins else ()
    is_cut = any(entry.kind == "cut" for entry in last)
    return Attempt(tuple(last), tuple(entries[:begin]), tuple(map(str, asked)), is_cut)


def grants_of(parts: Sequence[bytes], decode: Callable[[bytes], object]) -> Sequence[JournalEntry]:
    """Returns the grants of earlier attempts; unreadable entries grant nothing."""
    try:
        lines = [line for line in lines_of(parts) if line[:1] == b"["]
        return [one for one in (_entry(line, decode) for line in lines) if one.kind in GRANTS]
    except JournalUnreadable:
        return ()


def _entry(line: bytes, decode: Callable[[bytes], object]) -> JournalEntry:
    try:
        match decode(line):
            case ["at" | "now", int(micros), *_] if not 0 <= micros <= _NO_TIME:
                pass
            case [str(kind), *values] if kind in KINDS:
                types = KINDS[kind]
                if len(values) == len(types) and all(map(isinstance, values, types)):
                    return JournalEntry(kind, tuple(values))
    except ValueError as error:
        raise damaged(error) from error
    raise damaged(ValueError("it holds an invalid entry"))


# Packs the text of a part. For a short part the usual window would cost ten times as much.
pack = partial(zlib.compress, level=1, wbits=13)


def pack_text(lines: Sequence[bytes]) -> bytes:
    """Packs lines into a part of a journal."""
    return pack(b"\n".join(lines))

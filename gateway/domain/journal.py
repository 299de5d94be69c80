"""A run's journal: one ordered record of what a run read, its events, model calls, grants and chunks.

It is text: a line that begins with `[` is an entry, its kind first; a line that begins with `{` is a
chunk, byte for byte as clients got it. Crash resume, the chunk log, replay and comparison read it.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from gateway.domain.errors import Conflict

MOST_BYTES = 8 * 1024 * 1024  # of a run; beyond it only chunks and what a crash needs are kept
OVERRUN = "overrun"  # how an answer ends that is longer than what was reserved, and by which size

_NUMBER = (float, int)
_NO_TIME = 253_402_300_799_999_999  # microseconds: the calendar has ended

# The kinds of entries, each with the types of its values. A new kind is a new row.
KINDS: Mapping[str, tuple[type | tuple[type, ...], ...]] = {
    "attempt": (int, list),  # an attempt begins: its number, and the runs that it answers
    "at": (int, _NUMBER),  # both clocks, each time they were read; the first in microseconds
    "now": (int,),  # a provider's client read the wall clock
    "begin": (dict, dict),  # limits, tree and the like; what was read from the store
    "told": (list,),  # the turn was told these events, at once
    "late": (),  # the time came that it waited for
    "ask": (dict,),  # a model is asked: digests of the request's parts
    "sent": (int,),  # a request of so many bytes went out
    "head": (int, dict),  # its answer began: status, and the headers that decoding needs
    "bytes": (str,),  # one read of it, a character a byte
    "end": (str, str),  # how it ended: complete, cut (by us), or a network's failure
    "text": (str,),  # a delta of a model that has no bytes
    "thinking": (str,),
    "metered": ((float, int, type(None)), list, (dict, type(None))),  # before a reply: its cost
    "reply": (
        int,
        (dict, type(None)),
    ),  # its step; the reply where no bytes tell it, or it has calls
    "failed": ((dict, type(None)),),  # a model failed
    "refused": (str, str, str, int, int, int, (float, int, type(None))),  # a budget was spent
    "taken": (int, str, str),  # at this step a person's message was taken: its run, its text
    "begun": (int, str),  # a call begins that must not be made twice
    "result": (str, int, str, str, dict),  # of a tool: call id, step, name, arguments, the result
    "kept": (str,),  # what was granted before is written, and takes effect
    "spent": (str, list),  # the id of a call at work, and what models used for it
    "sub": (str, str, list),  # a grant of a run inside this one: its part, kind and values
    "stop": (str, bool),  # somebody stopped the run: the reason, and whether at once
    "said": (str, str),  # somebody said more: the run that it came with, and the text
    "unsaid": (str,),  # and took it back
    "over": (),  # the driver has ended
    "cut": (),  # more happened than is kept: the run cannot be replayed
}
# What a resumed attempt needs, and therefore is kept however long the journal is.
GRANTS = frozenset({"attempt", "reply", "taken", "begun", "result", "sub", "cut"})


class JournalEntry(NamedTuple):
    """One thing that happened, in its place among all others. `values` are plain."""

    kind: str
    values: tuple[Any, ...] = ()


class Record(Protocol):
    """Takes entries. It never waits and never fails."""

    def __call__(self, kind: str, *values: object) -> None: ...

    def hide(self, *secrets: str) -> None:
        """Keeps these texts out of the journal, wherever they come from."""
        ...


class JournalUnreadable(Conflict):
    """A journal cannot be replayed; the text says why."""


def damaged(error: Exception) -> JournalUnreadable:
    return JournalUnreadable(f"the recording is damaged: {error}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The last attempt of a run, and the entries of those before it. `asked` are the runs whose
    messages it answers, its own the last."""

    entries: tuple[JournalEntry, ...]
    earlier: tuple[JournalEntry, ...] = ()
    asked: tuple[str, ...] = ()
    is_cut: bool = False


def lines_of(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Raises JournalUnreadable, also for what would swell beyond what is ever kept."""
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
    """The chunks of the last attempt as they were sent, one a line; none if they cannot be read."""
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
    """Raises JournalUnreadable."""
    entries = [_entry(line, decode) for line in lines_of(parts) if line[:1] == b"["]
    begins = [place for place, entry in enumerate(entries) if entry.kind == "attempt"]
    begin = begins[-1] if begins else 0
    last = entries[begin + 1 :] if begins else entries
    asked = entries[begin].values[1] if begins else ()
    is_cut = any(entry.kind == "cut" for entry in last)
    return Attempt(tuple(last), tuple(entries[:begin]), tuple(map(str, asked)), is_cut)


def grants_of(parts: Sequence[bytes], decode: Callable[[bytes], object]) -> Sequence[JournalEntry]:
    """What earlier attempts were granted. Entries that cannot be read grant nothing."""
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
    raise damaged(ValueError("it holds an entry that is none"))


# Packs the text of a part. As large a window as usual would cost ten times as much as a short part.
pack = partial(zlib.compress, level=1, wbits=13)


def pack_text(lines: Sequence[bytes]) -> bytes:
    """A part of a journal."""
    return pack(b"\n".join(lines))

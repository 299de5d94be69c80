"""What every audit promises, whatever it is made of."""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from gateway.domain.events import AuditEntry, AuditEvent
from gateway.domain.ports import Stores
from tests.conformance.test_ledger import opening
from tests.fakes.store import NOON

Open = Callable[[], AbstractAsyncContextManager[Stores]]


def a_deed(number: int = 1) -> AuditEvent:
    at = NOON + timedelta(microseconds=number)
    return AuditEvent(at, "budget.changed", "config", {"what": "é\n", "after": number})


def is_whole(entries: list[AuditEntry]) -> bool:
    first = entries[0].follows(None)
    return first and all(later.follows(before) for before, later in pairwise(entries))


async def test_entries_of_many_at_once_are_one_chain(opened: Open) -> None:
    async with opened() as stores:
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(stores.audit.append, a_deed(number))

        entries = list(await stores.audit.after(0, limit=100))

    assert [entry.seq for entry in entries] == list(range(1, 21))
    assert is_whole(entries)
    assert entries[0].detail == '{"after":0,"what":"\\u00e9\\n"}'


async def test_what_is_appended_without_waiting_is_in_its_place(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as stores:
        stores.audit.append_soon(a_deed(1))
        await stores.audit.append(a_deed(2))
        stores.audit.append_soon(a_deed(3))
        entries = list(await stores.audit.after(0, limit=9))
        newest = await stores.audit.newest()
    stores.audit.append_soon(a_deed(4))

    assert [entry.detail[9:10] for entry in entries] == ["1", "2", "3"]
    assert is_whole(entries)
    assert list(newest) == entries[-1:]
    warned = [one.message for one in caplog.records if one.levelno >= logging.WARNING]
    assert warned == ["audit_entry_not_written"]


async def test_entries_are_found_by_kind_and_place(opened: Open) -> None:
    async with opened() as stores:
        for number in range(3):
            await stores.audit.append(a_deed(number))
            await stores.audit.append(replace(a_deed(number), kind="config.applied"))

        newest = await stores.audit.newest(limit=2)
        applied = await stores.audit.newest(kind="config.applied", before=6, limit=9)
        later = await stores.audit.after(4, limit=1)
        none = await stores.audit.newest(kind="plugin.refused")

    assert [entry.seq for entry in newest] == [6, 5]
    assert [entry.seq for entry in applied] == [4, 2]
    assert [entry.seq for entry in later] == [5]
    assert list(none) == []


@pytest.mark.parametrize(
    "change",
    [
        {"detail": "{}"},
        {"kind": "token.changed"},
        {"actor": "somebody"},
        {"at": NOON},
        {"seq": 3},
        {"hash": "0" * 64},
    ],
)
async def test_a_changed_entry_no_longer_follows(tmp_path: Path, change: dict[str, object]) -> None:
    with anyio.fail_after(60):
        async with opening("memory", tmp_path) as stores:
            for number in range(1, 4):
                await stores.audit.append(a_deed(number))
            first, second, third = await stores.audit.after(0, limit=3)

    changed = replace(second, **change)  # type: ignore[arg-type]  # by name

    assert second.follows(first)
    assert not changed.follows(first) or not third.follows(changed)
    assert not third.follows(first)

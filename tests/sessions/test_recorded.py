"""A journal that an earlier version wrote is read as it was meant."""

from pathlib import Path

from pydantic_core import from_json

from gateway.domain.events import Notice
from gateway.domain.journal import attempt_of, chunks_of, pack_text
from gateway.domain.mcp import UnreachableServer
from gateway.sessions.journal import NO_REQUEST, RunInputs, parts_after, parts_of, read_inputs
from tests.memory.test_context import NOW, a_fact, a_turn
from tests.sessions.test_asked import REQUEST

WRITTEN = Path(__file__).parent / "journal_as_written_in_november_2026.txt"
NOTICE = Notice("told", id="n", to="both", data={"a": [1]}, expires_at=NOW)


def test_what_an_earlier_version_wrote_is_read_as_it_was_meant() -> None:
    parts = [pack_text(WRITTEN.read_bytes().splitlines())]

    attempt = attempt_of(parts, from_json)

    (ask,) = (one.values[0] for one in attempt.entries if one.kind == "ask")
    recalled = (a_fact(1), a_turn(2, message_id="m"))
    assert read_inputs(attempt) == RunInputs(
        (NOTICE,), {"n": 1}, recalled, "why", (UnreachableServer("s", "gone"),)
    )
    assert parts_after(NO_REQUEST, ask) == parts_of(REQUEST)
    assert chunks_of(parts) == b'{"type":"content","content":"x","seq":1}'
    assert (attempt.asked, attempt.is_cut) == (("r",), False)

"""A run of another node is followed from where whoever follows it has heard."""

from gateway.domain.inbox import Entry
from gateway.sessions.mirrors import SharedRun
from tests.fakes.store import an_entry


def chunk(seq: int) -> bytes:
    return b'{"run_id":"r","seq":%d}' % seq


def test_what_was_heard_at_another_node_is_not_told_again_when_it_comes_here() -> None:
    run, told = SharedRun(Entry(an_entry("a"), 1, "queued", 0)), list[bytes]()
    run.listen(lambda event, _: told.append(event), after_seq=2)
    for seq in (1, 2, 3):
        run.hear(chunk(seq), seq)

    assert told == [chunk(3)]

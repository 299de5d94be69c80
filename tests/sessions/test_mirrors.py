"""A run of another node is followed from where whoever follows it has heard."""

from gateway.domain.cluster import Tenure
from gateway.domain.inbox import Entry
from gateway.sessions.mirrors import SharedRun
from tests.fakes.store import an_entry


def chunk(seq: int) -> bytes:
    return b'{"run_id":"r","seq":%d}' % seq


def test_what_was_heard_at_another_node_is_not_told_again_when_it_comes_here() -> None:
    run, told = SharedRun(Entry(an_entry("a"), 1, "queued", 0)), list[bytes]()
    run.listen(lambda event, _: told.append(event), after_seq=2)
    for seq in (1, 2, 3):
        run.receive(chunk(seq), seq)

    assert told == [chunk(3)]


def test_what_was_heard_of_a_run_is_not_told_again_though_it_was_taken_up_here_meanwhile() -> None:
    entry, told = Entry(an_entry("a"), 1, "queued", 0), list[bytes]()
    run = SharedRun(entry)
    run.listen(lambda event, _: told.append(event))
    run.receive(chunk(1), 1)
    run.adopt(entry, Tenure(run.session_key, 2))
    run.detach()
    for seq in (1, 2):
        run.receive(chunk(seq), seq)

    assert told == [chunk(1), chunk(2)]

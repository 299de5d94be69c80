"""RunControl: a message can be withdrawn until the run has taken it; a run that has ended takes none."""

from gateway.agent.driver import RunControl, drop_said
from gateway.agent.effects import Steered
from gateway.domain.ids import RunId

ONE, TWO = Steered(RunId("r1"), "one"), Steered(RunId("r2"), "two")


def test_a_message_that_the_run_has_not_seen_is_withdrawn() -> None:
    control = RunControl()
    control.stop("cancelled", at_once=True)
    control.steer(ONE)
    control.steer(TWO)

    assert control.withdraw(ONE.run_id)
    assert list(control.requests)[1:] == [TWO]
    assert not control.withdraw(ONE.run_id)


def test_a_message_that_the_run_holds_already_is_its_to_forget() -> None:
    control, held = RunControl(), [TWO]
    control.forget = lambda run_id: drop_said(held, run_id)

    assert not control.withdraw(ONE.run_id)
    assert control.withdraw(TWO.run_id)
    assert held == []


def test_a_run_that_has_ended_takes_nothing_and_forgets_nothing() -> None:
    control = RunControl()
    control.forget = lambda _: True
    control.close()

    assert not control.steer(ONE)
    assert not control.withdraw(ONE.run_id)


def test_the_run_is_woken_each_time_until_it_is_over() -> None:
    woken: list[int] = []
    control = RunControl()
    control.wake = lambda: woken.append(len(control.requests))

    control.stop("timeout", at_once=True)
    control.steer(ONE)
    control.close()
    control.stop("cancelled", at_once=True)

    assert woken == [1, 2]


def test_a_listener_is_told_each_request_that_counts_until_the_run_is_over() -> None:
    told: list[tuple[object, ...]] = []
    control = RunControl(record=lambda *entry: told.append(entry))

    control.steer(ONE)
    control.withdraw(TWO.run_id)
    control.withdraw(ONE.run_id)
    control.close()
    control.stop("cancelled", at_once=True)

    assert told == [("said", ONE.run_id, ONE.text), ("unsaid", ONE.run_id)]

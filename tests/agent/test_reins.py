"""RunControl: what was said can be taken back until the run has taken it, and a loose run hears nothing."""

from gateway.agent.effects import RunControl, Said, Stop, drop_said
from gateway.domain.ids import RunId

ONE, TWO = Said(RunId("r1"), "one"), Said(RunId("r2"), "two")


def test_what_the_run_has_not_begun_to_hear_is_taken_back() -> None:
    reins = RunControl()
    reins.stop("cancelled", at_once=True)
    reins.say(ONE)
    reins.say(TWO)

    assert reins.unsay(ONE.run_id)
    assert list(reins.pulled)[1:] == [TWO]
    assert not reins.unsay(ONE.run_id)


def test_what_the_run_holds_already_is_its_to_forget() -> None:
    reins, held = RunControl(), [TWO]
    reins.forget = lambda run_id: drop_said(held, run_id)

    assert not reins.unsay(ONE.run_id)
    assert reins.unsay(TWO.run_id)
    assert held == []


def test_a_loose_run_takes_nothing_and_forgets_nothing() -> None:
    reins = RunControl()
    reins.forget = lambda _: True
    reins.let_go()

    assert not reins.say(ONE)
    assert not reins.unsay(ONE.run_id)


def test_what_is_pulled_before_the_run_is_there_when_it_begins() -> None:
    reins = RunControl()

    reins.stop("cancelled", at_once=False)
    reins.say(ONE)

    assert list(reins.pulled) == [Stop("cancelled", at_once=False), ONE]


def test_the_run_is_woken_each_time_until_it_is_over() -> None:
    woken: list[int] = []
    reins = RunControl()
    reins.wake = lambda: woken.append(len(reins.pulled))

    reins.stop("timeout", at_once=True)
    reins.say(ONE)
    reins.let_go()
    reins.stop("cancelled", at_once=True)

    assert woken == [1, 2]

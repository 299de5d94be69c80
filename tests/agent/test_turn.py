"""A turn under either of the trees that ship: how it goes on, warns, stops and is taken up again."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.agent.effects import (
    CallTool,
    Fail,
    Finish,
    ModelReplied,
    StopRequested,
    TimePassed,
    ToolReturned,
)
from gateway.agent.output import BROKEN, EMPTY, INTERRUPTED, stop_text
from gateway.domain.agents import Limits
from gateway.domain.messages import Message, ToolResult
from tests.agent.paper import SHIPPED, Paper, call, is_valid_for_a_model
from tests.fakes.model import says
from tests.forms import examples

Play = Callable[[Paper], Paper]

# What is said of each part of a run; ! is an event, ? a wish.
BEGIN = "!query.start context_update !agent.turn.started ?ask"
ASKED = "usage tool_call !tool.call.started"
WORKED = "tool_result !tool.call.success context_update"
FAILED = "tool_result !tool.call.failure context_update"
REFUSED = "usage tool_call tool_result context_update"
OVER = "!agent.turn.ended"
NEXT = "!agent.turn.started ?ask"
TOLD = "!agent.turn.started context_update ?ask"  # the model has notices to read


def turn(number: int, came: str = WORKED) -> str:
    """One call, executed."""
    return f"{ASKED} ?{number} {came} {OVER}"


@dataclass(frozen=True)
class Scene:
    """A run from its beginning to its end."""

    play: Play
    reason: str
    trace: str
    limits: Limits = Limits()
    system: tuple[str, ...] = ()  # what the user is told besides


def rounds(count: int, tokens: int = 10) -> Play:
    """Turns with a call each, none like another."""

    def play(paper: Paper) -> Paper:
        for number in range(count):
            paper.round(call(str(number)), tokens=tokens)
        return paper

    return play


def same(count: int) -> Play:
    """Turns with the same call and the same result."""

    def play(paper: Paper) -> Paper:
        for number in range(count):
            paper.reply("", call(str(number), "{}")).give_all("same")
        return paper

    return play


def errors(paper: Paper) -> Paper:
    for number in range(3):
        paper.round(call(str(number)), is_error=True)
    return paper


def warned(kind: str, current: int, most: int) -> str:
    return f"Approaching {kind} ({current}/{most}). Consider wrapping up."


LOOP = "Loop detected: echo with the same arguments, 3 times."
SAME = "No progress detected - same action attempted 3 times."
SCENES = {
    "answered": Scene(
        lambda paper: paper.reply("done"),
        "answered",
        f"{BEGIN} content usage {OVER}",
    ),
    "answered after tools": Scene(
        lambda paper: paper.round(call("0")).reply("done"),
        "answered",
        f"{BEGIN} {turn(0)} {NEXT} content usage {OVER}",
    ),
    "max_iterations": Scene(
        rounds(3),
        "max_iterations",
        f"{BEGIN} {turn(0)} limit_warning !budget.iteration.warning {TOLD} {turn(1)} {NEXT} "
        f"{turn(2)} limit_reached !budget.iteration.exceeded",
        Limits(max_iterations=3),
        (warned("iteration limit", 2, 3), "Maximum iterations reached. Saving partial response."),
    ),
    "max_iterations of 1": Scene(
        rounds(1),
        "max_iterations",
        "!query.start context_update limit_warning !budget.iteration.warning "
        f"{TOLD} {turn(0)} limit_reached !budget.iteration.exceeded",
        Limits(max_iterations=1),
        (warned("iteration limit", 1, 1), "Maximum iterations reached. Saving partial response."),
    ),
    "token_budget between turns": Scene(
        rounds(3, tokens=4_500),
        "token_budget",
        f"{BEGIN} {turn(0)} {NEXT} usage limit_warning !budget.token.warning tool_call "
        f"!tool.call.started ?1 {WORKED} {OVER} {TOLD} {turn(2)} "
        "limit_reached !budget.token.exceeded",
        Limits(token_budget=10_000),
        (warned("token budget", 9_000, 10_000), "Token budget reached. Saving partial response."),
    ),
    "token_budget in mid-stream": Scene(
        lambda paper: paper.hear("x" * 260).hear("y" * 100),
        "token_budget",
        f"{BEGIN} content limit_warning !budget.token.warning content "
        "usage limit_reached !budget.token.exceeded ?cancel",
        Limits(token_budget=127),  # of which 27 are sent
        (warned("token budget", 108, 127), "Token budget reached. Saving partial response."),
    ),
    "timeout": Scene(
        lambda paper: paper.stop("timeout"),
        "timeout",
        f"{BEGIN} usage limit_reached ?cancel",
        system=("Time limit reached. Saving partial response.",),
    ),
    "no_progress": Scene(
        same(5),
        "no_progress",
        f"{BEGIN} {turn(0)} {NEXT} {turn(1)} {NEXT} usage tool_call notice !agent.loop.detected "
        f"!tool.call.started ?2 {WORKED} !agent.no_progress {OVER} {TOLD} "
        f"{REFUSED} {OVER} {NEXT} {REFUSED} {OVER} no_progress",
        system=(LOOP, SAME),
    ),
    "error_limit": Scene(
        errors,
        "error_limit",
        f"{BEGIN} {turn(0, FAILED)} {NEXT} {turn(1, FAILED)} {NEXT} {turn(2, FAILED)} error_limit",
        system=("Tool calls failed in 3 turns in a row. Saving partial response.",),
    ),
    "cancelled": Scene(
        lambda paper: paper.stop(),
        "cancelled",
        f"{BEGIN} usage notice ?cancel",
        system=("Cancelled by user",),
    ),
    "cancelled after the turn": Scene(
        lambda paper: paper.reply("", call("0")).stop(at_once=False).give_all(),
        "cancelled",
        f"{BEGIN} {turn(0)} notice",
        system=("Cancelled by user",),
    ),
    "superseded": Scene(
        lambda paper: paper.stop("superseded"),
        "superseded",
        f"{BEGIN} usage notice ?cancel",
        system=("A newer message took the place of this one.",),
    ),
    "failed": Scene(
        lambda paper: paper.round(call("0")).break_off(),
        "provider_error",
        f"{BEGIN} {turn(0)} {NEXT} !model.failed",
    ),
}


@pytest.mark.requirement(
    "S-001-System-04",
    "S-001-System-05",
    "S-001-System-06",
    "S-001-Tree-05",
    "S-002-Budget-01",
    "S-002-Budget-02",
    "S-002-Budget-03",
    "S-002-Budget-04",
    "S-002-Loop-03",
    "S-002-Query-02",
    "S-002-Query-10",
    "S-002-Query-11",
    "S-002-Tools-01",
    "S-002-Tools-08",
    "S-002-BT-04",
    "S-002-Cancel-01",
    "S-002-BT-05",
)
@pytest.mark.parametrize("plan", SHIPPED)
@pytest.mark.parametrize("name", SCENES)
def test_each_end_comes_at_its_step_with_all_that_belongs_to_it(name: str, plan: str) -> None:
    scene = SCENES[name]

    paper = scene.play(Paper(plan, scene.limits).begin())

    assert paper.reason == scene.reason
    assert " ".join(paper.trace) == scene.trace
    assert tuple(paper.system) == scene.system
    assert is_valid_for_a_model(paper.said)
    assert paper.open == {}


@pytest.mark.requirement("S-002-BT-04")
@pytest.mark.parametrize("name", SCENES)
def test_both_trees_tell_the_same(name: str) -> None:
    scene = SCENES[name]

    one, other = (scene.play(Paper(plan, scene.limits).begin()) for plan in SHIPPED)

    assert one.chunks == other.chunks
    assert one.events == [replace(event, source=event.source) for event in other.events]
    assert (one.said, one.turn.end) == (other.said, other.turn.end)


@pytest.mark.requirement("S-001-System-01", "S-002-Budget-06")
def test_a_limit_is_told_with_its_values_and_its_time() -> None:
    paper = Paper(limits=Limits(max_iterations=3)).begin()
    paper.at = 2.5

    rounds(3)(paper)

    warning, stop = paper.of("system")
    expected = {"current_value": 2, "limit_value": 3, "percent": 66.7}
    assert warning["metadata"] == {**expected, "limit_type": "max_iterations"}
    assert stop["metadata"]["current_value"] == stop["metadata"]["limit_value"] == 3
    assert warning["timestamp"].isoformat() == "2026-01-01T12:00:02.500000+00:00"
    [told] = paper.told_of("budget.iteration.warning")
    assert told == {
        "current": 2,
        "max": 3,
        "percent": 66.7,
        "message": warned("iteration limit", 2, 3),
        "limit_type": "max_iterations",
    }


@pytest.mark.requirement("S-001-System-07", "S-002-Loop-03")
@pytest.mark.parametrize(
    ("limits", "play", "told"),
    [
        (Limits(max_iterations=10), rounds(6), [warned("iteration limit", 7, 10)]),
        (Limits(max_iterations=10), rounds(7), []),
        (
            Limits(token_budget=10_000),
            rounds(2, tokens=4_500),
            [warned("token budget", 9_000, 10_000)],
        ),
        (
            Limits(),
            same(3),
            [LOOP, "echo gave the same result 3 times. It is not executed again unchanged."],
        ),
        (Limits(), same(4), []),
    ],
)
def test_the_model_is_told_once_between_the_lines(
    limits: Limits, play: Play, told: list[str]
) -> None:
    paper = play(Paper(limits=limits).begin())

    assert paper.notices[-len(told) :] == told if told else paper.question.messages[-1].result
    assert not any("<system-notice>" in message.text for message in paper.said)


# -- how it ends


@pytest.mark.requirement("S-004-Result-01")
@pytest.mark.parametrize(
    ("play", "end"),
    [
        (lambda paper: paper.reply("hello"), Finish("answered", "hello")),
        (lambda paper: paper.reply(""), Finish("answered", EMPTY)),
        (lambda paper: paper.reply(" \n"), Finish("answered", EMPTY)),
        (
            lambda paper: paper.hear("half").stop(),
            Finish("cancelled", "half", partial=True),
        ),
        (
            lambda paper: paper.reply("let me see", call("0")).stop(),
            Finish("cancelled", "let me see", partial=True),
        ),
        (
            lambda paper: paper.reply("let me see", call("0")).give_all().hear("so").stop(),
            Finish("cancelled", "so", partial=True),
        ),
        (
            lambda paper: paper.stop(),
            Finish("cancelled", "Cancelled by user", partial=True),
        ),
        (
            lambda paper: paper.break_off("rate"),
            Fail(
                BROKEN["rate"].format(provider="fake"),
                BROKEN["rate"].format(provider="fake"),
                retryable=True,
                provider="fake",
            ),
        ),
        (
            lambda paper: paper.hear("half").break_off("auth", started=True),
            Fail(BROKEN["auth"].format(provider="fake"), "half", provider="fake"),
        ),
        (
            lambda paper: paper.reply("done").stop(),
            Finish("answered", "done"),
        ),
        (
            lambda paper: paper.stop().stop("timeout"),
            Finish("cancelled", "Cancelled by user", partial=True),
        ),
        (
            lambda paper: paper.stop(at_once=False).stop("timeout"),
            Finish("timeout", "Time limit reached. Saving partial response.", partial=True),
        ),
        (
            lambda paper: paper.stop(at_once=False).reply("done"),
            Finish("cancelled", "done", partial=True),
        ),
        (
            lambda paper: paper.stop(at_once=False).break_off(),
            Finish("cancelled", "Cancelled by user", partial=True),
        ),
    ],
)
@pytest.mark.parametrize("plan", SHIPPED)
def test_what_the_user_has_read_is_what_stays(plan: str, play: Play, end: Finish | Fail) -> None:
    paper = play(Paper(plan).begin())

    assert paper.turn.end == end
    assert replace(paper.said[-1], notices=()) == Message("assistant", end.text)
    assert [text for _, text in paper.said[-1].notices] == paper.system
    assert "secret" not in str(paper.chunks)


@pytest.mark.requirement("S-002-Cancel-03")
def test_cancelling_after_the_turn_wins_over_a_limit_that_the_turn_reaches() -> None:
    paper = Paper(limits=Limits(max_iterations=1)).begin()

    paper.reply("", call("0")).stop(at_once=False).give_all()

    assert paper.reason == "cancelled"
    assert paper.told_of("budget.iteration.exceeded") == []


@pytest.mark.requirement("S-002-Query-12")
@pytest.mark.parametrize("plan", SHIPPED)
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("answered", ("answered", False, False)),
        ("cancelled", ("cancelled", True, True)),
        ("timeout", ("timeout", False, True)),
        ("failed", ("provider_error", False, True)),
    ],
)
def test_the_end_of_the_session_is_told_to_rules_first_and_kept_for_later(
    plan: str, name: str, told: tuple[str, bool, bool]
) -> None:
    rule = '[[rules]]\nid = "e"\non = ["on_session_end"]\ndo = [{ emit = "house.end" }]\n'

    paper = SCENES[name].play(Paper(plan, rules=rule).begin())

    assert paper.turn.end_event is not None
    payload = paper.turn.end_event.payload
    assert (payload["reason"], payload["cancelled"], payload["partial"]) == told
    assert payload["exchange_saved"] is True
    assert len(paper.told_of("house.end")) == 1
    assert paper.told_of("session.end") == []  # it is told once what there is, is durable


@pytest.mark.requirement("S-002-ANS-02", "S-002-Query-07")
@pytest.mark.parametrize("plan", SHIPPED)
def test_a_run_that_goes_on_from_a_history_says_so(plan: str) -> None:
    history = [Message("user", "before"), Message("assistant", "indeed")]

    paper = Paper(plan, history=history).begin()

    assert paper.trace[:2] == ["!query.start", "!session.resumed"]
    assert [message.text for message in paper.question.messages] == ["before", "indeed", "hi"]


@pytest.mark.requirement("S-002-Query-01", "S-002-Loop-05")
def test_the_next_run_knows_nothing_of_the_one_before() -> None:
    same(5)(Paper().begin())

    paper = same(2)(Paper().begin()).reply("done")

    assert paper.reason == "answered"
    assert paper.system == []


# -- interrupts and resuming, at every point of a run


def act(paper: Paper, number: int) -> None:
    """Whatever may happen next, chosen by a number."""
    choice, number = number % 10, number // 10
    if choice == 0:
        paper.say("and this?", f"r_{len(paper.story)}")
    elif choice == 1:
        paper.pass_time(0.5)
    elif choice == 2 and paper.asked and not paper.calls:
        paper.hear("some text " * (number % 3))
    elif paper.calls:
        wish = paper.calls[number % len(paper.calls)]
        paper.give(wish.call.id, str(number % 3), is_error=number % 4 == 0)
    else:
        ids = [f"{len(paper.story)}.{index}" for index in range(number % 4)]
        calls = [call(one, f'{{"n":{number % 2}}}', name=_TOOLS[number % 3]) for one in ids]
        paper.reply("text" if number % 2 else "", *calls)


_TOOLS = ("echo", "other", "unheard of")
NUMBERS = st.lists(st.integers(0, 400), max_size=25)


def played(plan: str, numbers: list[int]) -> Paper:
    rule = '[[rules]]\nid = "e"\non = ["on_session_end"]\ndo = [{ emit = "house.end" }]\n'
    limits = Limits(max_iterations=6, token_budget=1_000, max_tool_calls_per_turn=2)
    paper = Paper(plan, limits, rules=rule).begin()
    for number in numbers:
        if paper.turn.end is not None:
            break
        assert paper.open, "nothing is wished for, and yet it is not over"
        act(paper, number)
    return paper


@pytest.mark.requirement(
    "S-002-Cancel-01", "S-002-Query-12", "S-002-BT-06", "S-002-BT-09", "S-001-System-06"
)
@given(st.sampled_from(SHIPPED), NUMBERS, st.sampled_from(["cancelled", "superseded", "timeout"]))
@settings(max_examples=examples(300), deadline=None)
def test_wherever_it_is_stopped_it_ends_once_and_leaves_nothing_open(
    plan: str, numbers: list[int], reason: str
) -> None:
    paper = played(plan, numbers)
    was_over = paper.turn.end is not None

    paper.tell(StopRequested(reason))  # type: ignore[arg-type]  # one of the literals

    assert was_over or paper.reason == reason
    assert paper.open == {}
    assert paper.turn.open == {}
    assert is_valid_for_a_model(paper.said)
    assert paper.said[-1].role == "assistant"
    assert not paper.said[-1].tool_calls
    limits = [one["system_type"] for one in paper.of("system")]
    kinds = [one["metadata"].get("limit_type") for one in paper.of("system")]
    told_of = [(one, kind) for one, kind in zip(limits, kinds, strict=True) if kind is not None]
    loops = [told["signature"] for told in paper.told_of("agent.loop.detected")]
    assert len(told_of) == len(set(told_of))
    assert len(loops) == len(set(loops))
    assert was_over or paper.system.count(stop_text(paper.reason, paper.limits)) == 1  # type: ignore[arg-type]  # one of the literals
    assert len(paper.told_of("house.end")) == 1
    shown = [one["tool_call"]["id"] for one in paper.of("tool_result")]
    asked = [one["tool_call"]["id"] for one in paper.of("tool_call")]
    assert sorted(shown) == sorted(asked)
    assert len(paper.called) == len(set(paper.called))
    before = list(paper.trace)
    for late in (StopRequested("cancelled"), TimePassed(), ModelReplied(1, says("late"))):
        paper.tell(late)
    assert paper.trace == before


@pytest.mark.requirement("S-002-Query-10")
@given(st.sampled_from(SHIPPED), NUMBERS)
@settings(max_examples=examples(200), deadline=None)
def test_whatever_happens_a_model_is_asked_what_it_can_read(plan: str, numbers: list[int]) -> None:
    paper = played(plan, numbers)

    for wish in paper.asked:
        assert is_valid_for_a_model(wish.messages)
        assert wish.messages[0].text == "hi"
    assert len(paper.asked) <= 6
    assert [wish.step for wish in paper.asked] == sorted({wish.step for wish in paper.asked})


def retold(plan: str, first: Paper, upto: int) -> Paper:
    """Another attempt, told again what the first one was granted in its first steps: replies,
    results that had come, and what people had said where it was taken."""
    granted = first.story[:upto]
    replies = [told.reply for told in granted if isinstance(told, ModelReplied)]
    results: dict[tuple[int, str], ToolResult] = {}
    steps = {wish.ticket: wish.step for wish in first.wishes if isinstance(wish, CallTool)}
    for told in granted:
        if isinstance(told, ToolReturned):
            results[steps[told.ticket], told.result.call_id] = told.result
    again = Paper(plan, first.limits, known=results, rules=first.rules).begin()
    for step, reply in enumerate(replies):
        taken = next((wish.taken for wish in first.asked if wish.step == step + 1), ())
        for said in taken if step + 1 < len(replies) else ():
            again.tell(said)
        again.tell(ModelReplied(again.question.ticket, reply, was_heard=False))
        while known := [one for one in again.calls if (one.step, one.call.id) in results]:
            wish = known[0]
            again.tell(ToolReturned(wish.ticket, results[wish.step, wish.call.id]))
    return again


@pytest.mark.requirement("S-003-Message-06")
@given(st.sampled_from(SHIPPED), NUMBERS)
@settings(max_examples=examples(150), deadline=None)
def test_a_run_that_is_told_its_story_again_asks_the_same(plan: str, numbers: list[int]) -> None:
    first = played(plan, [number for number in numbers if number % 10 > 1])

    for upto in range(len(first.story) + 1):
        again = retold(plan, first, upto)

        count = len(again.asked)
        assert [wish.messages for wish in again.asked] == [
            wish.messages for wish in first.asked[:count]
        ]
        came = {one.result.call_id for one in first.story[:upto] if isinstance(one, ToolReturned)}
        done = [message.result.call_id for message in again.said if message.result]
        assert not {one.call.id for one in again.calls} & came
        assert len(done) == len(set(done))


def test_a_call_whose_result_is_known_keeps_it_when_the_run_is_stopped() -> None:
    known = {(0, "0"): ToolResult("0", "echo", "PAID")}
    paper = Paper(known=known).begin().reply("", call("0"), call("1"))

    paper.stop()

    assert paper.results == [("0", "PAID", False), ("1", INTERRUPTED, True)]

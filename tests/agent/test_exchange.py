"""What people add, what notices say, and what a model is shown of it."""

import pytest

from gateway.agent.effects import Finish, ModelReplied, Steered
from gateway.agent.output import SKIPPED
from gateway.domain.agents import Limits
from gateway.domain.errors import FailureKind
from gateway.domain.events import Notice, Point, To
from gateway.domain.ids import RunId
from gateway.domain.messages import Message, ToolResult
from tests.agent.paper import SHIPPED, Paper, call, is_valid_for_a_model, tree
from tests.fakes.model import says


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages if message.role == "user"]


# -- steering


@pytest.mark.parametrize("plan", SHIPPED)
def test_what_people_add_is_taken_with_the_next_question(plan: str) -> None:
    paper = Paper(plan).begin().reply("", call("0")).say("faster", "r_2").say("please", "r_3")

    paper.give_all()

    assert texts(paper.question.messages) == ["hi", "faster", "please"]
    assert [said.run_id for said in paper.question.taken] == ["r_2", "r_3"]
    assert [message.text for message in paper.said if message.role == "user"] == [
        "faster",
        "please",
    ]
    assert paper.round(call("1")).question.taken == ()
    assert is_valid_for_a_model(paper.question.messages)


@pytest.mark.parametrize("plan", SHIPPED)
def test_calls_that_have_not_begun_give_way_to_what_people_add(plan: str) -> None:
    paper = Paper(plan, Limits(max_parallel_tools=1)).begin()
    paper.reply("", call("0"), call("1"), call("2"))

    paper.say("stop that").give("0")

    assert paper.called == ["0"]
    assert paper.results == [("0", "result 0", False), ("1", SKIPPED, True), ("2", SKIPPED, True)]
    assert texts(paper.question.messages) == ["hi", "stop that"]
    assert paper.told_of("tool.call.failure") == []


def test_calls_that_gave_way_are_no_errors_of_tools() -> None:
    paper = Paper(limits=Limits(error_limit=1)).begin().say("wait")

    paper.reply("", call("0"))

    assert paper.results == [("0", SKIPPED, True)]
    assert paper.reason is None
    assert paper.turn.state.consecutive_errors == 0


@pytest.mark.parametrize("plan", SHIPPED)
def test_what_people_add_to_an_answer_is_not_taken(plan: str) -> None:
    paper = Paper(plan).begin().say("and this?")

    paper.reply("done")

    assert paper.turn.end == Finish("answered", "done")
    assert paper.turn.taken == []
    assert texts(tuple(paper.said)) == []


@pytest.mark.parametrize("plan", SHIPPED)
def test_what_people_add_to_a_run_at_its_limit_is_not_taken(plan: str) -> None:
    paper = Paper(plan, Limits(max_iterations=1)).begin().reply("", call("0")).say("more")

    paper.give_all()

    assert paper.reason == "max_iterations"
    assert paper.turn.taken == []


@pytest.mark.parametrize("plan", SHIPPED)
def test_a_run_that_is_told_again_takes_it_at_the_same_step(plan: str) -> None:
    """A call that was executed then keeps its result, and one that gave way gives way again."""
    limits = Limits(max_parallel_tools=1)
    calls = (call("0"), call("1"))
    first = Paper(plan, limits).begin().reply("look", *calls).say("faster").give("0")
    known = {(0, "0"): ToolResult("0", "echo", "result 0")}
    again = Paper(plan, limits, known=known).begin()

    again.tell(Steered(RunId("r_2"), "faster"))
    again.reply("look", *calls).give("0")

    assert again.question.messages == first.question.messages
    assert again.question.taken == first.question.taken
    assert again.called == ["0"]


# -- notices


RULE = """[[rules]]
id = "r"
on = ["{on}"]
once_per = "run"
do = [{{ notify = "{content}", to = "{to}", {options} }}]
"""


def noticing(on: str, options: str, to: To = "both", content: str = "psst") -> str:
    return RULE.format(on=on, options=options, to=to, content=content)


@pytest.mark.requirement("S-002-ANS-04", "S-002-ANS-05", "S-002-Tools-11")
@pytest.mark.parametrize("plan", SHIPPED)
@pytest.mark.parametrize(
    ("on", "options", "step"),
    [
        ("query.start", 'inject_at = "turn_start"', 0),
        ("query.start", 'inject_at = "after_tool"', 1),
        ("query.start", 'inject_at = "immediate"', 0),
        ("agent.turn.started", 'inject_at = "immediate"', 0),
        ("tool.call.success", 'inject_at = "immediate"', 1),
        ("tool.call.success", 'inject_at = "after_tool"', 1),
        ("tool.call.success", 'inject_at = "turn_start"', 1),
        ("tool.call.started", 'inject_at = "after_tool"', 1),
        ("query.start", "after_turns = 2", 2),
        ("query.start", 'after_tool = "other"', 2),
        ("query.start", 'not_before = "state.turn >= 1"', 1),
        ("query.start", "not_before = \"'other' in turn.tools_done\"", None),
        ("query.start", 'not_before = "usage.total_tokens > 25"', 3),
        ("query.start", "not_before = \"'max_iterations' in state.warned\"", 2),
    ],
)
def test_a_notice_comes_at_its_point_and_only_there(
    plan: str, on: str, options: str, step: int | None
) -> None:
    paper = Paper(plan, Limits(max_iterations=5), rules=noticing(on, options)).begin()
    seen = [paper.notices]

    for number in range(4):
        paper.round(call(str(number), name="other" if number == 1 else "echo"))
        seen.append(paper.notices)

    told = [index for index, lines in enumerate(seen) if "psst" in lines]
    assert (told[0] if told else None) == step
    assert paper.system.count("psst") == (step is not None)
    assert seen[-1].count("psst") == (step is not None)
    assert not any("psst" in message.text for message in paper.said)


@pytest.mark.requirement("S-002-ANS-06", "S-001-System-07")
@pytest.mark.parametrize(
    ("to", "model", "client"), [("both", 1, 1), ("model", 1, 0), ("client", 0, 1)]
)
def test_a_notice_reaches_those_it_is_for(to: To, model: int, client: int) -> None:
    paper = Paper(rules=noticing("query.start", 'inject_at = "turn_start"', to)).begin()

    assert paper.notices.count("psst") == model
    assert paper.system.count("psst") == client


@pytest.mark.parametrize("point", ["turn_start", "after_tool", "immediate"])
def test_no_notice_comes_between_a_call_and_its_result(point: Point) -> None:
    rule = noticing("tool.call.started", f'inject_at = "{point}"')
    paper = Paper(rules=rule).begin().reply("", call("0"), call("1")).give("1").give("0")

    assert [message.role for message in paper.question.messages] == [
        *("user", "assistant", "tool", "tool", "user")
    ]
    assert paper.notices == ["psst"]


@pytest.mark.requirement("S-002-Query-11")
@pytest.mark.parametrize("plan", SHIPPED)
def test_what_is_told_at_once_is_told_at_a_limit_too(plan: str) -> None:
    rule = noticing("budget.iteration.exceeded", 'inject_at = "immediate"')
    paper = Paper(plan, Limits(max_iterations=1), rules=rule).begin()

    paper.round(call("0"))

    assert paper.reason == "max_iterations"
    assert "psst" in paper.system


def test_what_waits_for_other_sessions_is_posted_and_not_told() -> None:
    paper = Paper(rules=noticing("query.start", 'inject_at = "cross_session"')).begin()

    assert [notice.content for notice in paper.turn.output.posts] == ["psst"]
    assert paper.notices == []
    assert paper.system == []


def test_an_expired_notice_of_another_session_is_not_told() -> None:
    gone = Notice("old", inject_at="cross_session", expires_at=Paper().moment.wall)

    assert Paper(waiting=(gone,)).begin().notices == []


# -- what is shown and what it costs


@pytest.mark.requirement("S-002-Query-09", "S-002-Tools-10")
@pytest.mark.parametrize("plan", SHIPPED)
def test_the_size_of_the_context_is_told_when_it_grows(plan: str) -> None:
    paper = Paper(plan).begin()
    first = paper.of("context_update")

    paper.reply("", call("0"), call("1")).give_all().reply("done")

    assert first == [{"context_tokens": 27, "max_context_tokens": 128_000}]
    sizes = [one["context_tokens"] for one in paper.of("context_update")]
    assert sizes == sorted(set(sizes))
    assert len(sizes) == 3


@pytest.mark.parametrize("kind", ["network", "timeout", "bad_request"])
@pytest.mark.parametrize("started", [False, True])
def test_a_reply_that_breaks_off_is_counted_if_it_was_made(
    kind: FailureKind, *, started: bool
) -> None:
    paper = Paper().begin()

    paper.break_off(kind, started=started)

    used, told = paper.turn.state.usage, paper.of("usage")
    assert (used.total > 0) == started
    assert used.estimated == started
    assert used.total == sum(one["input_tokens"] + one["output_tokens"] for one in told)
    assert [(one["estimated"], one["model"]) for one in told] == [(True, "fake-1")] * started


def test_thinking_that_was_heard_is_counted_when_it_breaks_off() -> None:
    paper = Paper().begin()
    paper.count("hm")

    paper.break_off()

    assert paper.turn.state.usage.output_tokens == 1
    assert paper.of("content") == []


def test_what_was_heard_in_pieces_is_not_told_again() -> None:
    paper = Paper().begin().hear("do").hear("ne")

    paper.tell(ModelReplied(paper.question.ticket, says("done")))

    assert [one["content"] for one in paper.of("content")] == ["do", "ne"]


def test_the_answer_keeps_what_the_model_thought() -> None:
    paper = Paper().begin()
    reply = says("done")

    paper.tell(ModelReplied(paper.question.ticket, reply, was_heard=False))

    assert paper.said == [Message("assistant", "done")]
    assert paper.of("usage")[0]["output_tokens"] == 5


def test_a_leaf_offers_only_the_tools_that_it_names() -> None:
    paper = Paper(tree('(llm-call :tools ["other" "rm"])')).begin()

    assert [tool.name for tool in paper.question.tools] == ["other"]


@pytest.mark.requirement("S-002-BT-08")
def test_a_leaf_says_how_long_a_reply_may_pause() -> None:
    paper = Paper(tree("(llm-call :idle-timeout 7s)")).begin()

    assert paper.question.idle_timeout_s == 7

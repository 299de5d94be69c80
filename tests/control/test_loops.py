"""Going in circles is noticed by what calls mean, not by how they are written, and said once."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.policy import LoopState, digest, signature
from gateway.domain.agents import Limits

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def mark(arguments: str, tool: str = "echo") -> str:
    return signature(tool, arguments)


# -- signatures


@pytest.mark.requirement("S-002-Loop-01")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}'),
        ('{"a":1}', ' {\n "a" :\t1 } '),
        ('{"a":{"x":1,"y":[1,2]}}', '{"a": {"y": [1, 2], "x": 1}}'),
        ('{"a":"é"}', '{"a":"\\u00e9"}'),
        ('{"a":"😀"}', '{"a":"\\ud83d\\ude00"}'),
        ('{"a":"/"}', '{"a":"\\/"}'),
        ("", "{}"),
        (" ", "{}"),
        ('{"a":', '  {"a":\n'),
        ('{"a":"\\ud800"}', '{"a": "\\uD800"}'),
    ],
)
def test_the_same_arguments_written_otherwise_are_the_same_call(one: str, other: str) -> None:
    assert mark(one) == mark(other)


@pytest.mark.requirement("S-002-Loop-01")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1}', '{"a":2}'),
        ('{"a":1}', '{"a":"1"}'),
        ('{"a":1}', '{"a":true}'),
        ('{"a":null}', "{}"),
        ('{"a":[1,2]}', '{"a":[2,1]}'),
        ('{"a":"x "}', '{"a":"x"}'),
        ('{"a":"é"}', '{"a":"e"}'),
        ('{"a":', '{"b":'),
        ('{"other":1}', '{"path":1}'),
    ],
)
def test_other_arguments_are_another_call(one: str, other: str) -> None:
    assert mark(one) != mark(other)


def test_the_same_arguments_for_another_tool_are_another_call() -> None:
    assert mark("{}", "echo") != mark("{}", "other")
    assert mark("{}", "echo").startswith("echo:")


@pytest.mark.parametrize(
    "arguments", ["[" * 100_000, "\ud800", '{"a":1e999}', '{"a":NaN}', "1" * 5_000, "null", "\x00"]
)
def test_whatever_a_model_writes_has_a_signature(arguments: str) -> None:
    assert mark(arguments) == mark(arguments)


@given(PLAIN)
def test_neither_order_nor_whitespace_nor_escapes_count(value: object) -> None:
    def turned(part: object) -> object:
        if isinstance(part, dict):
            return {key: turned(one) for key, one in reversed(part.items())}
        return [turned(one) for one in part] if isinstance(part, list) else part

    written = json.dumps(turned(value), indent=3, ensure_ascii=False)

    assert mark(json.dumps(value)) == mark(written)


@given(st.text(), st.text())
def test_results_are_the_same_only_if_their_texts_are(one: str, other: str) -> None:
    assert (digest(one) == digest(other)) == (one == other)


# -- circles


@dataclass
class Course:
    """A run as letters: `A1,B2` is a turn that calls A with the result 1, and B with 2. The answer
    has a word for each turn: L loop reported, R something refused, S stuck, N the same so often that
    the next one is refused, and . for nothing."""

    window: int = 6
    threshold: int = 3
    repeats: int = 3
    circles: LoopState = field(default_factory=LoopState)

    def found(self, turns: str) -> str:
        words = []
        for turn in turns.split():
            words.append(self._of(turn.split(",")) or ".")
            if self.circles.is_stuck:
                break
        return " ".join(words)

    def _of(self, calls: list[str]) -> str:
        limits = Limits(
            loop_window=self.window,
            loop_threshold=self.threshold,
            no_progress_repeats=self.repeats,
        )
        asked = {str(number): one[0] for number, one in enumerate(calls)}
        self.circles, loop, refused = self.circles.after_calls(asked, limits)
        word = ("L" if loop else "") + ("R" if refused else "")
        if self.circles.is_stuck:
            return word + "S"
        for number, one in enumerate(calls):
            if str(number) not in refused:
                self.circles = self.circles.after_result(one[0], one[1:])
                counts = {each.signature: each.count for each in self.circles.repeats}
                word += "N" if counts[one[0]] == self.repeats else ""
        return word


LOOPS = [
    # Too little to say anything
    ("A1", "."),
    ("A1 A1", ". ."),
    ("A1 B1", ". ."),
    ("A1 B1 A1", ". . ."),
    ("A1 B1 A1 B1", ". . . ."),
    ("A1 B1 C1 D1 E1 F1 G1 H1", ". . . . . . . ."),
    ("A1 A1 B1 B1 C1 C1", ". . . . . ."),
    # The ladder: noticed, refused, stopped
    ("A1 A1 A1", ". . LN"),
    ("A1 A1 A1 A1", ". . LN R"),
    ("A1 A1 A1 A1 A1", ". . LN R RS"),
    ("B1 A1 A1 A1 A1 A1", ". . . LN R RS"),
    ("A1 A1 A1 A1 B1", ". . LN R ."),
    # Results that change never stop a run: it waits for something
    ("A1 A2 A3", ". . L"),
    ("A1 A2 A3 A4 A5 A6 A7 A8 A9", ". . L . . . . . ."),
    ("A1 A1 A2 A1 A1", ". . L . ."),
    ("A1 A1 A2 A2 A3 A3", ". . L . . ."),
    ("A1 A1 A2 A2 A2", ". . L . N"),
    ("A1 A1 A2 A2 A2 A2 A2", ". . L . N R RS"),
    ("A1 A2 A1 A2 A1 A2 A1 A2", ". . L . . . . ."),
    # A turn without the call begins anew
    ("A1 A1 B1 A1 A1", ". . . L ."),
    ("A1 A1 B1 A1 A1 A1", ". . . L . N"),
    ("A1 A1 A1 B1 A1", ". . LN . ."),
    ("A1 A1 A1 A1 B1 A1", ". . LN R . ."),
    ("A1 A1 A1 A1 B1 A1 A1 A1 A1 A1", ". . LN R . . . N R RS"),
    # To and fro
    ("A1 B1 A1 B1 A1", ". . . . L"),
    ("A1 B1 A1 B1 A1 B1", ". . . . L L"),
    ("A1 B1 A1 B1 A1 B1 A1 B1 A1 B1", ". . . . L L . . . ."),
    ("A1 B1 C1 A1 B1 C1 A1 B1 C1", ". . . . . . . . ."),
    ("A1 B1 C1 A1 D1 A1", ". . . . . L"),
    ("A1 B1 C1 D1 A1 E1 A1", ". . . . . . ."),
    ("A1 B1 C1 D1 E1 A1 A1", ". . . . . . ."),
    ("A1 A1 B1 C1 D1 A1", ". . . . . L"),
    ("A1 A1 B1 C1 D1 E1 A1", ". . . . . . ."),
    # Calls of one turn
    ("A1,B1 A1,B1 A1,B1", ". . LNN"),
    ("A1,B1 B1,A1 A1,B1", ". . LNN"),
    ("A1,B1 B1,A1 A1,B1 B1,A1", ". . LNN R"),
    ("A1,B1 B1,A1 A1,B1 B1,A1 A1,B1", ". . LNN R RS"),
    ("A1,B1 A1 A1,B1", ". . N"),
    ("A1,B1 A1,C1 A1,D1", ". . N"),
    ("A1,B1 A1,C1 A1,D1 A1,E1", ". . N R"),
    ("A1,B1 A1,C1 A1,D1 A1,E1 A1,F1", ". . N R RS"),
    ("A1,B1 A1,C1 A1,D1 E1 A1,F1", ". . N . ."),
    ("A1,B1 A1,B2 A1,B3 A1,B4", ". . LN R"),
    ("A1,A1 A1,A1 A1,A1", ". N LR"),
    ("A1,A1,A1 A1", "N R"),
    ("A1,A1,A1 A1 A1", "N R RS"),
    ("A1,A1,A1 B1 A1", "N . ."),
    ("A1 A1,A1 A1 A1", ". N R LRS"),
    ("A1,A1 A1,A1 B1", ". N ."),
    ("A1,A2 A1,A2 A1,A2 A1,A2", ". . L ."),
    ("A1,B1 A1 B1 A1,B1", ". . . ."),
    ("A1 A1,B1 A1", ". . N"),
]


@pytest.mark.requirement(
    "S-002-Loop-02", "S-002-Loop-03", "S-002-Loop-04", "S-002-Loop-06", "S-001-Tree-05"
)
@pytest.mark.parametrize(("turns", "words"), LOOPS)
def test_what_is_found_in_a_course_of_calls(turns: str, words: str) -> None:
    assert Course().found(turns) == words


@pytest.mark.requirement("S-002-Loop-02", "S-002-Budget-07")
@pytest.mark.parametrize(
    ("window", "threshold", "repeats", "turns", "words"),
    [
        (2, 2, 3, "A1 B1 A1 A1", ". . . L"),
        (3, 2, 3, "A1 B1 A1", ". . L"),
        (20, 3, 3, "A1 B1 C1 D1 E1 F1 G1 A1 H1 A1", ". . . . . . . . . L"),
        (6, 4, 3, "A1 A1 A1 A1 A1", ". . N LR RS"),
        (6, 3, 2, "A1 A1 A1 A1", ". N LR RS"),
        (6, 3, 5, "A1 A1 A1 A1 A1 A1 A1", ". . L . N R RS"),
    ],
)
def test_window_threshold_and_repeats_are_as_configured(
    window: int, threshold: int, repeats: int, turns: str, words: str
) -> None:
    assert Course(window, threshold, repeats).found(turns) == words


LETTERS = st.lists(
    st.lists(st.sampled_from(["A1", "A2", "B1", "C1"]), min_size=1, max_size=3), max_size=15
)


@pytest.mark.requirement("S-002-Loop-04")
@given(LETTERS)
def test_the_order_inside_a_turn_never_matters_for_loops(turns: list[list[str]]) -> None:
    def loops(each: list[list[str]]) -> list[bool]:
        circles, found = LoopState(), []
        limits = Limits(loop_window=6, loop_threshold=3, no_progress_repeats=3)
        for turn in each:
            asked = {str(number): one[0] for number, one in enumerate(turn)}
            circles, loop, _ = circles.after_calls(asked, limits)
            found.append(loop is not None)
        return found

    assert loops(turns) == loops([turn[::-1] for turn in turns])


@given(LETTERS)
def test_each_loop_is_reported_once_and_a_stuck_run_was_refused_before(
    turns: list[list[str]],
) -> None:
    words = Course().found(" ".join(",".join(turn) for turn in turns)).split()

    assert sum(word.count("L") for word in words) <= len({tuple(sorted(t)) for t in turns})
    stuck = [place for place, word in enumerate(words) if "S" in word]
    assert all("R" in words[place - 1] for place in stuck)


@given(st.lists(st.sampled_from("ABC"), max_size=30))
def test_a_run_whose_results_always_change_is_never_refused(letters: list[str]) -> None:
    turns = " ".join(f"{letter}{number}" for number, letter in enumerate(letters))

    assert not set(Course().found(turns)) & set("RSN")

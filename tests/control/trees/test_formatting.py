"""One layout: the same tree, the same comments, and nothing to change the second time."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.control.trees.lint import WIDTH, format_tree
from gateway.control.trees.reader import TreeForm, TreeInvalid, TreeSource, read
from tests.fakes.plans import TEXTS
from tests.forms import examples

SAMPLES = Path(__file__).parent / "samples"


def meaning(text: str) -> list[object]:
    """Forms and comments without their places."""

    def bare(form: TreeForm) -> object:
        return form.kind, form.value, [bare(item) for item in form.items]

    return [bare(form) for form in read(TreeSource("t.bt", text))]


def test_a_real_tree_keeps_its_meaning_and_is_laid_out_once() -> None:
    text = (SAMPLES / "first-draft.bt").read_text(encoding="utf-8")
    once = format_tree(text)

    assert meaning(once) == meaning(text)
    assert format_tree(once) == once


@pytest.mark.parametrize("name", TEXTS)
def test_the_trees_that_ship_are_laid_out(name: str) -> None:
    assert format_tree(TEXTS[name]) == TEXTS[name]


def test_short_lists_stay_on_one_line_and_long_ones_break_below_their_head() -> None:
    text = '(tree "t" (sequence (action a) (repeat :max 3 :until "x" (sequence ' + (
        "(action some-longer-name) " * 4 + "))))"
    )

    assert format_tree(text) == (
        '(tree "t"\n'
        "  (sequence\n"
        "    (action a)\n"
        '    (repeat :max 3 :until "x"\n'
        "      (sequence\n"
        + "        (action some-longer-name)\n" * 3
        + "        (action some-longer-name)))))\n"
    )


def test_comments_stay_where_they_were() -> None:
    text = (
        ';; about\n\n(tree "t" ; here\n  ; above\n  (sequence\n'
        "    (action a) ; behind\n    #;(action b)\n    ; last\n  ))\n"
    )

    assert format_tree(text) == (
        ';; about\n\n(tree "t"  ; here\n  ; above\n  (sequence\n'
        "    (action a)  ; behind\n    #;(action b)\n    ; last\n  ))\n"
    )


def test_an_option_stays_with_its_value() -> None:
    text = (
        '(tree "t" (llm-call :model $model :messages $messages :tools $tools :budget $max_tokens '
        ":stream-to [:a] :interruptible true))"
    )

    assert "    :budget $max_tokens\n    :stream-to [:a]\n" in format_tree(text)


def test_what_cannot_be_read_is_not_laid_out() -> None:
    with pytest.raises(TreeInvalid):
        format_tree('(tree "t" (a)')


def test_nothing_stays_nothing() -> None:
    assert format_tree(" \n") == ""


ATOMS = st.sampled_from(
    ["a", "set!", ":k", ":until-success", "$x.y", "12", "1.5s", '"a b"', '"x\ny"', "nil", "x" * 40]
)
COMMENTS = st.sampled_from(
    ["; note\n", "\n; own line\n", "#| b |#", "\n#| b\n c |#\n", "#;(x y)", "\n\n"]
)
FORMS = st.recursive(
    ATOMS,
    lambda inner: st.tuples(
        st.sampled_from(["()", "[]", "{}", "(sequence )", '(tree "t" )']),
        st.lists(st.one_of(inner, COMMENTS), max_size=6),
    ).map(lambda made: f"{made[0][:-1]}{' '.join(made[1])}{made[0][-1]}"),
    max_leaves=25,
)


@given(st.lists(st.one_of(FORMS, COMMENTS), max_size=4).map(" ".join))
@settings(max_examples=examples(300))
def test_any_text_keeps_its_meaning_and_is_laid_out_once(text: str) -> None:
    source = TreeSource("t.bt", text)
    read(source)
    if source.has_errors:  # a comment may have swallowed a bracket
        return

    once = format_tree(text)

    assert meaning(once) == meaning(text)
    assert format_tree(once) == once
    assert not any(line.endswith(" ") for line in once.splitlines())


def test_lines_are_no_longer_than_they_have_to_be() -> None:
    text = f'(tree "t" (sequence {" ".join(f"(action a{n})" for n in range(30))}))'

    assert max(len(line) for line in format_tree(text).splitlines()) <= WIDTH

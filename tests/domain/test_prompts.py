"""A template says where what stands; no value is ever taken for a part of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agents import PLACES, TemplateInvalid, compile_prompt

plain = st.text(st.characters(exclude_characters="{}"))
tricky = st.sampled_from(["{soul}", "{{", "}}", "{", "}", "{facts}{summary}", "a\nb"]) | st.text()


@given(st.lists(st.tuples(plain, st.sampled_from(PLACES)), unique_by=lambda part: part[1]), tricky)
def test_each_value_stands_once_in_its_place_as_it_is(
    parts: list[tuple[str, str]], value: str
) -> None:
    values = {name: f"{value}{name}" for name in PLACES}
    template = compile_prompt("".join(f"{text}{{{name}}}" for text, name in parts) + "end")

    assert template.render(values) == "".join(text + values[name] for text, name in parts) + "end"
    assert {name for _, name in parts} == template.places - {""}


@given(st.text())
def test_any_text_can_be_written_with_doubled_braces(text: str) -> None:
    written = text.replace("{", "{{").replace("}", "}}")

    assert compile_prompt(written).render({}) == text


@given(st.lists(st.sampled_from(["{soul}", "{tools}", *"{}\n as"])).map("".join))
def test_any_text_is_a_template_or_is_refused_with_a_place_in_it(text: str) -> None:
    wrong = None
    try:
        compile_prompt(text)
    except TemplateInvalid as error:
        wrong = error

    assert wrong is None or text.split("\n")[wrong.line - 1][wrong.column - 1] in "{}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Hello {name}", "1:7: there is no placeholder {name}"),
        ("\n\n  {soul }", "3:3: there is no placeholder {soul }"),
        ("a {} b", "1:3: there is no placeholder {}"),
        ("{soul}\n{soul}", "2:1: placeholder {soul} is used twice"),
        ("é\r\n}", "2:1: write {{ or }} for a single brace"),
        ("{soul\n}", "1:1: write {{ or }} for a single brace"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(TemplateInvalid) as caught:
        compile_prompt(text)

    assert str(caught.value) == told

"""Words in messages."""

from gateway.domain.text import meant, nearest, short


def test_the_nearest_word_is_found_whatever_its_case() -> None:
    assert nearest("Sequnce", ["sequence", "selector"]) == "sequence"
    assert nearest("xyz", ["sequence"]) is None
    assert meant("selektor", ["selector"]) == '; did you mean "selector"?'


def test_what_is_shown_is_short_and_on_one_line() -> None:
    assert short("a\nb\0c") == "a b?c"
    assert len(short("x" * 500)) == 60

"""What is read of a text does not depend on where its pieces were cut."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.markup import Lookahead, NotMarkup, Waits
from tests.providers.looking import read


@given(st.text("ab<", max_size=20), st.sampled_from(["<a>", "<", "ab<ab"]))
def test_what_is_searched_for_is_found_at_its_first_place(text: str, mark: str) -> None:
    before, found, behind = text.partition(mark)
    expected = (before, behind) if found else (None, "")

    for pieces in ([text], list(text)):
        assert read(pieces, lambda ahead: ahead.until(mark)) == expected


def test_what_is_never_long_is_given_up_with_nothing_taken() -> None:
    def ask(ahead: Lookahead) -> Waits[str]:
        try:
            return (yield from ahead.short(">", most=3))
        except NotMarkup:
            return "given up"

    assert read(list("abc>d"), ask) == ("abc", "d")
    assert read(list("abcd>"), ask) == ("given up", "abcd>")
    assert read(list("ab"), ask) == ("given up", "ab")

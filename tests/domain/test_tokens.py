"""A token estimate is cheap, never negative, and grows with the text."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.messages import estimate_tokens

texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(texts, texts)
def test_more_text_is_never_fewer_tokens(one: str, other: str) -> None:
    assert estimate_tokens("") == 0
    assert max(estimate_tokens(one), estimate_tokens(other)) <= estimate_tokens(one + other)
    assert estimate_tokens(one) <= len(one.encode())

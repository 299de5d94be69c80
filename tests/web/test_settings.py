"""The settings of the web room."""

import pytest

from gateway.web.settings import TokenDef, WebSettings


@pytest.mark.parametrize("name", ["local", "operator"])
def test_a_token_cannot_take_the_name_of_a_principal_of_ours(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        WebSettings(tokens=(TokenDef(name, "x"),))


def test_two_tokens_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="same name"):
        WebSettings(tokens=(TokenDef("a", "x"), TokenDef("a", "y")))


def test_no_secret_is_shown() -> None:
    settings = WebSettings(
        tokens=(TokenDef("a", "hush-1"),), operator_secret="hush-2", cli_secret="hush-3"
    )

    assert "hush" not in repr(settings)


def test_the_command_line_s_own_token_does_not_count_as_a_configured_one() -> None:
    assert not WebSettings(cli_secret="x").has_tokens
    assert WebSettings(operator_secret="x").has_tokens
    assert WebSettings(tokens=(TokenDef("a", "x"),)).has_tokens

"""A secret is shown only to whoever asks for it by name."""

from gateway.domain.ids import Secret


def test_no_way_of_printing_shows_it() -> None:
    secret = Secret("hush")

    assert {str(secret), repr(secret), f"{secret}", f"{secret!r}", "%s" % (secret,)} == {"***"}  # noqa: UP031 - every way
    assert "hush" not in repr([secret, {"a": secret}])
    assert secret.reveal() == "hush"

"""A secret goes where it is declared for, and comes back from nowhere."""

import json
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import Denied
from gateway.outbound.guard import Scrubber, SecretFiller
from tests.outbound.guarded import a_secret, origin

API = "https://api.example.com"
KEY = 'kü/p+q r"s\\t&u=v%w:x'
VALUES = st.text(min_size=8, max_size=40).filter(lambda text: text.strip() == text)


def filler(value: str, *declared: str, asked: str = API) -> SecretFiller:
    return SecretFiller([a_secret(value, *(declared or (API,)))], origin(asked))


def test_a_placeholder_becomes_the_value() -> None:
    assert filler("1:a-B_c.d~e=").fill("/bot${secret:key}/x", "URL") == "/bot1:a-B_c.d~e=/x"
    assert filler("p/q+r s").fill("Bearer ${secret:key}", "header") == "Bearer p/q+r s"


@pytest.mark.parametrize("value", ["a/b", "a?b", "a#b", "a&b", "a%2fb", "a b", "a\\b", "ä", ""])
def test_a_value_that_would_break_the_url_is_not_filled_in(value: str) -> None:
    with pytest.raises(Denied, match="no URL allows") as denied:
        filler(value).fill("/x?k=${secret:key}", "URL")
    assert value == "" or value not in str(denied.value)


@pytest.mark.parametrize("value", [".", "..", "a\n", "../a"])
def test_a_value_that_would_climb_the_path_is_not_filled_in(value: str) -> None:
    with pytest.raises(Denied, match="no URL allows"):
        filler(value).fill("/${secret:key}/x", "URL")


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\n", " a", "a ", "a\x00", "ä", ""])
def test_a_value_that_would_break_the_header_is_not_filled_in(value: str) -> None:
    with pytest.raises(Denied, match="no header allows"):
        filler(value).fill("${secret:key}", "header")


def test_a_secret_that_is_not_declared_is_not_filled_in() -> None:
    with pytest.raises(Denied, match="'other' is not declared for this plugin"):
        filler("value").fill("${secret:other}", "header")


@pytest.mark.parametrize(
    "asked",
    ["https://evil.com", "https://api.example.com:8443", "https://example.com", "http://127.0.0.1"],
)
def test_a_secret_is_not_filled_in_for_an_origin_it_is_not_declared_for(asked: str) -> None:
    with pytest.raises(Denied, match=r"is not for .*declared: https://api\.example\.com"):
        filler("value", asked=asked).fill("${secret:key}", "header")


@pytest.mark.parametrize("plain", ["http://api.example.com", "http://10.0.0.1:8080"])
def test_a_secret_does_not_travel_in_the_open(plain: str) -> None:
    with pytest.raises(Denied, match="without TLS"):
        filler("value", plain, asked=plain).fill("${secret:key}", "header")


@pytest.mark.parametrize("local", ["http://127.0.0.1:8080", "http://[::1]", "http://localhost:1"])
def test_a_secret_may_go_to_this_machine_without_tls(local: str) -> None:
    assert filler("value", local, asked=local).fill("${secret:key}", "header") == "value"


def test_a_secret_is_filled_in_once_in_a_request() -> None:
    with pytest.raises(Denied, match="only once"):
        filler("value").fill("/${secret:key}/${secret:key}", "URL")

    both = filler("value")
    both.fill("/?k=${secret:key}", "URL")
    with pytest.raises(Denied, match="only once"):
        both.fill("${secret:key}", "header")


@pytest.mark.parametrize(
    "text", ["${secret:", "${secret:key", "${secret:${secret:key}}", "${secret:key$}"]
)
def test_half_a_placeholder_is_none(text: str) -> None:
    with pytest.raises(Denied, match="incomplete"):
        filler("value").fill(text, "header")


def test_a_value_that_looks_like_a_placeholder_is_not_filled_again() -> None:
    secrets = [a_secret("${secret:b}", API, name="a"), a_secret("deep", API, name="b")]

    assert SecretFiller(secrets, origin(API)).fill("${secret:a}", "header") == "${secret:b}"


@pytest.mark.parametrize(
    "echo",
    [
        KEY,
        quote(KEY, safe=""),
        quote(KEY),
        quote_plus(KEY),
        quote(KEY, safe="").replace("%2F", "%2f").replace("%2B", "%2b").replace("%C3", "%c3")
        .replace("%BC", "%bc").replace("%5C", "%5c").replace("%3D", "%3d").replace("%3A", "%3a"),
        json.dumps(KEY)[1:-1],
        json.dumps(KEY, ensure_ascii=False)[1:-1],
        json.dumps(KEY)[1:-1].replace("/", "\\/"),
        b64encode(KEY.encode()).decode(),
        urlsafe_b64encode(KEY.encode()).decode().rstrip("="),
    ],
)  # fmt: skip
async def test_an_echo_is_replaced_in_every_form(echo: str) -> None:
    scrubber = Scrubber([a_secret(KEY, API)])

    assert scrubber.text(f"<{echo}>") == "<[secret key]>"
    assert await scrubber.body(f"<{echo}>".encode() * 3) == b"<[secret key]>" * 3


@given(VALUES, st.binary(max_size=9), st.binary(max_size=9))
def test_an_echo_in_the_middle_of_base64_is_found(value: str, before: bytes, after: bytes) -> None:
    scrubber = Scrubber([a_secret(value, API)])

    for encode in (b64encode, urlsafe_b64encode):
        assert "[secret key]" in scrubber.text(encode(before + value.encode() + after).decode())


@given(VALUES, st.text(max_size=20), st.text(max_size=20))
def test_what_was_scrubbed_holds_no_secret(value: str, before: str, after: str) -> None:
    scrubber = Scrubber([a_secret(value, API, name="k")])
    for text in (value, quote(value, safe=""), json.dumps(value)):
        scrubbed = scrubber.text(before + text + after)
        assert value not in scrubbed.replace("[secret k]", "\x00")


def test_a_short_secret_leaves_unrelated_text_alone() -> None:
    scrubber = Scrubber([a_secret("pw", API)])

    assert scrubber.text("cHc= pw %70") == "cHc= [secret key] %70"


def test_an_empty_secret_is_nowhere() -> None:
    scrubber = Scrubber([a_secret("", API)])

    assert scrubber.text("as it is") == "as it is"
    assert not scrubber.finds_in_url("https://wttr.in/")


def test_each_secret_has_its_own_name_and_the_longer_one_goes_first() -> None:
    secrets = [a_secret("swordfish", API, name="a"), a_secret("swordfish-2", API, name="b")]

    assert Scrubber(secrets).text("swordfish-2 swordfish") == "[secret b] [secret a]"


@pytest.mark.parametrize(
    "text", ["/sword~fish", "/sword%7efish", "/%73word~fis%68", "/c3dvcmR-ZmlzaA"]
)
def test_a_secret_in_a_url_is_seen_through_every_escape(text: str) -> None:
    scrubber = Scrubber([a_secret("sword~fish", API)])

    assert scrubber.finds_in_url(f"https://wttr.in{text}/x")
    assert not scrubber.finds_in_url("https://wttr.in/sword/fish")

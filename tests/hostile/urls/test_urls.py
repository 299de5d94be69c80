"""No URL leads past the guard, whatever reader it was made for."""

import contextlib
from urllib.parse import urlsplit

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from gateway.domain.errors import Denied
from gateway.domain.plugins import Origin
from gateway.outbound.client import build_url, open_guarded
from gateway.outbound.guard import check_granted, read_url
from tests.fakes.lookup import ScriptedLookup
from tests.hostile.urls.corpus import GRANTED, REFUSED
from tests.outbound.guarded import a_secret, get, leave

WTTR = "https://wttr.in"
MINE = leave(WTTR, secrets=(a_secret("evil", WTTR),))
PIECES = st.sampled_from(
    ["https", "http", "://", ":", "/", "//", "\\", "@", "#", "?", ".", "wttr.in", "evil.com", "443"]
    + ["127.0.0.1", "[::1]", "[", "]", "%2e", "%", "\t", " ", "。", "ſ", "ı", "\u00ad", "0x7f", "a"]
)
URLS = st.one_of(
    st.lists(PIECES, max_size=12).map("".join),
    st.lists(PIECES, max_size=6).map(lambda more: "https://wttr.in" + "".join(more)),
    st.text().map(lambda more: "https://wttr.in" + more),
    st.text(),
)


@pytest.mark.requirement("S-003-Plugin-10")
async def test_every_hostile_url_is_refused_before_a_lookup() -> None:
    nobody, followed = ScriptedLookup(), []
    async with open_guarded(nobody) as guard:
        for url in REFUSED:
            with anyio.fail_after(60), contextlib.suppress(Denied):
                await guard.fetch(get(url), MINE)
                followed.append(url)
    assert followed == []
    assert nobody.asked == []
    assert len(REFUSED) == len(set(REFUSED)) > 200


@pytest.mark.parametrize("url", GRANTED)
async def test_every_spelling_of_a_granted_url_is_that_place(url: str) -> None:
    private = ScriptedLookup(["10.0.0.1"])
    with anyio.fail_after(60):
        async with open_guarded(private) as guard:
            with pytest.raises(Denied, match="not public"):
                await guard.fetch(get(url), MINE)

    assert private.asked == [("wttr.in", 443)]


@pytest.mark.requirement("S-003-Plugin-10")
@given(URLS)
def test_what_is_accepted_is_connected_to_the_granted_host_and_no_other(url: str) -> None:
    try:
        address = read_url(url)
        check_granted(address.origin, MINE)
        built = build_url(address.origin, address.target)
    except Denied:
        return
    assert address.origin == Origin("https", "wttr.in", 443)
    assert (built.scheme, built.raw_host, built.port) == ("https", "wttr.in", 443)
    assert built.user is None
    assert str(built).isascii()
    assert str(built).startswith("https://wttr.in/")


@given(URLS)
def test_other_readers_see_the_same_host_in_what_is_accepted(url: str) -> None:
    try:
        host = read_url(url).origin.host
    except Denied:
        return
    assert (urlsplit(url).hostname or "").removesuffix(".") == host
    assert (URL(url).raw_host or "").removesuffix(".") == host

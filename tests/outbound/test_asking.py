"""Methods, URLs and headers that an asker steers are read strictly, or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import Denied
from gateway.domain.plugins import Origin
from gateway.outbound.client import to_url
from gateway.outbound.guard import check_granted, read_headers, read_method, read_url
from tests.outbound.guarded import leave

WTTR = Origin("https", "wttr.in", 443)


def sent(url: str) -> str:
    address = read_url(url)
    return str(to_url(address.origin, address.target))


@pytest.mark.parametrize(
    ("asked", "connected"),
    [
        ("HTTPS://WTTR.in.", "https://wttr.in/"),
        ("https://wttr.in:443?a=b#c", "https://wttr.in/?a=b"),
        ("http://wttr.in:443/", "http://wttr.in:443/"),
        ("https://wttr.in/a/../b//c;d?e=f&g=h+i", "https://wttr.in/a/../b//c;d?e=f&g=h+i"),
        ("https://wttr.in/%2e%2E/%zz", "https://wttr.in/%2e%2E/%zz"),
        ("https://wttr.in/Köln?q=München", "https://wttr.in/K%C3%B6ln?q=M%C3%BCnchen"),
        ("https://wttr.in/{a}|<b>[c]", "https://wttr.in/%7Ba%7D%7C%3Cb%3E%5Bc%5D"),
        ("http://[0:0::1]:8080/x", "http://[::1]:8080/x"),
    ],
)
def test_what_is_connected_to_is_written_anew(asked: str, connected: str) -> None:
    assert sent(asked) == connected


def test_a_refusal_names_what_was_asked_and_what_is_granted() -> None:
    with pytest.raises(Denied) as denied:
        check_granted(read_url("https://api.evil.com/x").origin, leave("wttr.in"))
    assert str(denied.value) == (
        "not allowed to reach https://api.evil.com (granted: https://wttr.in)"
    )

    with pytest.raises(Denied, match=r"reach https://wttr\.in \(granted: nothing\)"):
        check_granted(WTTR, leave())


@pytest.mark.requirement("S-003-Plugin-10")
@pytest.mark.parametrize(
    "url",
    ["http://wttr.in/", "https://wttr.in:444/", "https://a.wttr.in/", "https://xwttr.in/"],
)
def test_another_scheme_port_or_sub_domain_is_another_place(url: str) -> None:
    with pytest.raises(Denied):
        check_granted(read_url(url).origin, leave("wttr.in"))


@pytest.mark.parametrize("more", ["/a" * 4096, "/" + "ä" * 1500])
def test_a_url_that_is_too_long_is_refused(more: str) -> None:
    with pytest.raises(Denied, match=r"at most 8192 bytes|longer than 8192 bytes"):
        sent(f"https://wttr.in{more}")
    with pytest.raises(Denied, match="at most 8192 bytes"):
        read_url("https://wttr.in" + "/a" * 4096)


@given(st.text())
def test_a_refusal_of_a_url_is_short_and_can_be_printed(url: str) -> None:
    with pytest.raises(Denied) as denied:
        read_url(f"ftp:{url}")
    assert len(str(denied.value)) < 1_300
    assert str(denied.value).isprintable()


@pytest.mark.parametrize("method", ["get", "HEAD", "Post", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_a_usual_method_is_allowed_in_any_case(method: str) -> None:
    assert read_method(method) == method.upper()


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "", "GET ", "GET /x HTTP/1.1\r\n", "PURGE"])
def test_another_method_is_refused(method: str) -> None:
    with pytest.raises(Denied, match="GET, HEAD, POST"):
        read_method(method)


@pytest.mark.parametrize(
    "name",
    ["Host", "content-length", "Transfer-Encoding", "connection", "keep-alive", "upgrade", "TE"]
    + ["trailer", "expect", "Proxy-Authorization", "proxy-connection", "Cookie", "cookie2"],
)
def test_a_header_that_is_the_hosts_is_refused_whatever_it_says(name: str) -> None:
    for value in ("x", "${secret:key}"):
        with pytest.raises(Denied, match="set by the host alone"):
            read_headers(((name, value),))


@pytest.mark.parametrize("name", ["Authorization", "X-API-Key", "api-key", "Private-Token"])
def test_a_credential_is_the_hosts_to_fill_in(name: str) -> None:
    with pytest.raises(Denied, match=r"write \$\{secret:NAME\}"):
        read_headers(((name, "Bearer of-the-guest"),))

    filled = ((name, "Bearer ${secret:key}"),)
    assert read_headers(filled) == filled


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x", "a\r\nhost: evil.com"),
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x", "a\x00b"),
        ("x", "ä"),
        ("x\r\nhost", "evil.com"),
        ("x:", "y"),
        ("x y", "z"),
        ("", "x"),
        ("host ", "evil.com"),
        ("\thost", "evil.com"),
        ("hоst", "the o is Cyrillic"),
        ("${secret:key}", "x"),
    ],
)
def test_a_header_that_would_smuggle_another_is_refused(name: str, value: str) -> None:
    with pytest.raises(Denied, match="no header has"):
        read_headers(((name, value),))


def test_headers_are_few_and_small() -> None:
    assert len(read_headers((("x", "y"),) * 64)) == 64
    with pytest.raises(Denied, match="at most 64"):
        read_headers((("x", "y"),) * 65)
    with pytest.raises(Denied, match="larger than"):
        read_headers((("x", "y" * 16_384),))


def test_how_an_answer_may_be_packed_is_the_hosts_to_say() -> None:
    assert read_headers((("Accept-Encoding", "br"), ("accept", "a/b"))) == (("accept", "a/b"),)

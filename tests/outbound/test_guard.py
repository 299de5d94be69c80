"""Requests of plugins, tools and models are read strictly or refused, and only addresses of the open internet are
connected to. A secret is filled in only for its declared origins, and no answer holds it."""

import json
from base64 import b64encode, urlsafe_b64encode
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import Denied
from gateway.domain.plugins import Origin
from gateway.outbound.client import CheckedResolver, build_url
from gateway.outbound.guard import (
    Scrubber,
    SecretFiller,
    check_granted,
    is_public,
    read_headers,
    read_method,
    read_url,
    resolve_host,
)
from tests.fakes.lookup import ScriptedLookup
from tests.outbound.guarded import a_secret, leave, origin

# --- guard ---------------------------------------------------------------------------------------
WTTR = Origin("https", "wttr.in", 443)


def sent(url: str) -> str:
    address = read_url(url)
    return str(build_url(address.origin, address.target))


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
    with pytest.raises(Denied, match="HTTP does not allow"):
        read_headers(((name, value),))


def test_headers_are_few_and_small() -> None:
    assert len(read_headers((("x", "y"),) * 64)) == 64
    with pytest.raises(Denied, match="at most 64"):
        read_headers((("x", "y"),) * 65)
    with pytest.raises(Denied, match="larger than"):
        read_headers((("x", "y" * 16_384),))


def test_how_an_answer_may_be_packed_is_the_hosts_to_say() -> None:
    assert read_headers((("Accept-Encoding", "br"), ("accept", "a/b"))) == (("accept", "a/b"),)


PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "198.17.255.255",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2001:200::1",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
]
NOT_PUBLIC = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a00:1::",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "2606:4700:4700::1111%eth0",
    "fec0::1",
    "ff02::1",
    "",
    "wttr.in",
    "127.1",
    "2130706433",
]


@pytest.mark.parametrize("text", PUBLIC)
def test_an_address_of_the_open_internet_is_public(text: str) -> None:
    assert is_public(text)


@pytest.mark.requirement("S-003-Plugin-10")
@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_every_other_address_is_not(text: str) -> None:
    assert not is_public(text)


@given(st.ip_addresses(v=4))
def test_an_address_behind_a_translation_is_as_public_as_itself(address: IPv4Address) -> None:
    assert is_public(f"::ffff:{address}") == is_public(f"64:ff9b::{address}")
    assert is_public(f"::ffff:{address}") == is_public(str(address))


@given(st.ip_addresses(v=6))
def test_nothing_is_public_that_python_knows_to_be_private(address: IPv6Address) -> None:
    if is_public(str(address)) and address.ipv4_mapped is None:
        assert not (address.is_private)
        assert not (address.is_loopback)
        assert not (address.is_multicast)


async def test_a_name_gives_its_public_addresses_each_of_them_once() -> None:
    lookup = ScriptedLookup(["1.1.1.1", "2606:4700:4700::1111", "1.1.1.1"])

    found = await CheckedResolver(lookup).resolve("wttr.in", 443)

    assert [(a["hostname"], a["host"], a["port"]) for a in found] == [
        ("wttr.in", "1.1.1.1", 443),
        ("wttr.in", "2606:4700:4700::1111", 443),
    ]


@pytest.mark.requirement("S-003-Plugin-10")
@pytest.mark.parametrize("bad", ["127.0.0.1", "10.0.0.1", "::1", "169.254.169.254", "fe80::1%lo"])
async def test_one_address_that_is_not_public_refuses_them_all(bad: str) -> None:
    for answers in ([bad], ["1.1.1.1", bad], [bad, "1.1.1.1"]):
        with pytest.raises(Denied, match=r"connect to wttr\.in: .* not public") as denied:
            await CheckedResolver(ScriptedLookup(answers)).resolve("wttr.in", 443)
        assert bad not in str(denied.value)


async def test_no_address_at_all_is_no_leave_to_go_anywhere() -> None:
    with pytest.raises(OSError, match="no address"):
        await CheckedResolver(ScriptedLookup([])).resolve("wttr.in", 443)


async def test_localhost_leads_to_this_machine_only() -> None:
    loopback = CheckedResolver(ScriptedLookup(["127.0.0.1", "::1"]))
    assert len(await loopback.resolve("localhost", 80)) == 2

    for elsewhere in ("1.1.1.1", "10.0.0.1", "::ffff:10.0.0.1"):
        poisoned = CheckedResolver(ScriptedLookup(["127.0.0.1", elsewhere]))
        with pytest.raises(Denied, match="not of this machine"):
            await poisoned.resolve("localhost", 80)


async def test_the_system_knows_where_localhost_is() -> None:
    assert {"127.0.0.1", "::1"}.intersection(await resolve_host("localhost", 80))


# --- secrets -------------------------------------------------------------------------------------
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

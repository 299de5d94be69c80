"""Only addresses of the open internet are connected to, and those that were checked."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import Denied
from gateway.outbound.client import CheckedResolver
from gateway.outbound.guard import is_public, look_up
from tests.fakes.lookup import ScriptedLookup

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
        with pytest.raises(Denied, match="not one of this machine"):
            await poisoned.resolve("localhost", 80)


async def test_the_system_knows_where_localhost_is() -> None:
    assert {"127.0.0.1", "::1"}.intersection(await look_up("localhost", 80))

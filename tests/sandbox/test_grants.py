"""What a guest imports and what it was granted are compared before it runs, and they match."""

from pathlib import Path

import anyio
import pytest

from gateway.config.sections import parse_capability
from gateway.domain.plugins import PluginDef
from gateway.sandbox.plugins import (
    Loaded,
    PluginRefused,
    missing_capabilities,
    needed_capabilities,
    require_granted,
)
from gateway.sandbox.protocol import INTERFACES, Guest, Inspection, import_name
from tests.fakes.sandbox import Stage, a_stage
from tests.fakes.wat import RELAY

GRANTS = {
    "http": "http:example.com",
    "store": "store:cart",
    "clock": "host_function:clock",
    "random": "host_function:random",
    "host": "host_function:up",
}
NEEDS = {
    "http": "http:HOST",
    "store": "store:NAME",
    "clock": "host_function:clock",
    "random": "host_function:random",
    "host": "host_function:NAME",
}


def a_plugin(*grants: str, deny_unused: bool = False) -> PluginDef:
    capabilities = tuple(map(parse_capability, grants))
    return PluginDef("shop", Path("shop.wasm"), capabilities, deny_unused=deny_unused)


def importing(*names: str, guest: Guest = "exogate") -> Inspection:
    return Inspection(guest, "tool", names, ())


def every(interface: str) -> list[str]:
    return [f"{import_name(interface)}#{function}" for function in INTERFACES[interface]]


@pytest.mark.requirement("S-003-Plugin-08", "S-003-Plugin-12")
@pytest.mark.parametrize("interface", NEEDS)
def test_an_import_without_its_grant_is_refused_by_name(interface: str) -> None:
    others = [grant for name, grant in GRANTS.items() if name != interface]

    for name in every(interface):
        with pytest.raises(PluginRefused) as refused:
            require_granted(a_plugin(*others), importing(name))

        told = str(refused.value)
        assert told.startswith("plugin shop: it imports " + name)
        assert f"needs the capability {NEEDS[interface]};" in told


@pytest.mark.parametrize("interface", NEEDS)
def test_an_import_with_its_grant_is_loaded(interface: str) -> None:
    require_granted(a_plugin(GRANTS[interface]), importing(*every(interface)))


def test_the_log_is_everybodys() -> None:
    assert needed_capabilities(importing(*every("log"))) == {}
    require_granted(a_plugin(), importing(*every("log")))


def test_what_is_missing_is_counted_and_can_be_done_without() -> None:
    wanted = importing(*every("http"), *every("clock"), *every("random"))

    with pytest.raises(PluginRefused, match=r"\(and 1 more\).*deny_unused"):
        require_granted(a_plugin("host_function:clock"), wanted)
    require_granted(a_plugin(deny_unused=True), wanted)


def test_clock_and_random_are_no_functions_of_an_operator() -> None:
    clock = a_plugin("host_function:clock", "host_function:random")

    assert list(missing_capabilities(clock, importing(*every("host"))).values()) == [
        "host_function:NAME"
    ]


@pytest.mark.parametrize(
    ("name", "grant"),
    [
        ("extism:host/env#http_request", "http:example.com"),
        ("extism:host/env#var_get", "store:vars"),
        ("extism:host/env#var_set", "store:vars"),
        ("extism:host/user#up", "host_function:up"),
    ],
)
def test_an_extism_guest_needs_the_same_grants(name: str, grant: str) -> None:
    wanted = importing("extism:host/env#input_length", name, guest="extism")

    require_granted(a_plugin(grant), wanted)
    with pytest.raises(PluginRefused, match=f"it imports {name}, which needs"):
        require_granted(a_plugin("store:other", "host_function:other"), wanted)


async def reaches(stage: Stage, guest: Loaded, text: str) -> bool:
    outcome = await stage.run(guest, text)
    return outcome.status != "denied" and "is not granted" not in outcome.text


@pytest.mark.requirement("S-003-Plugin-13")
async def test_what_a_plugin_can_touch_is_what_it_was_granted(cache: Path, tmp_path: Path) -> None:
    """The guest tries everything; what answers is exactly what was granted to it."""
    tries = {
        "http:example.com": 'h{"url":"https://example.com/"}',
        "store:cart": "gcart\nk",
        "host_function:clock": "c",
        "host_function:random": "r8",
        "host_function:up": 'xup\n"x"',
    }
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            for grants in ([], *([one] for one in tries), list(tries)):
                guest = await stage.load(RELAY, *grants, name="relay", deny_unused=True)
                touched = [name for name in tries if await reaches(stage, guest, tries[name])]
                assert touched == list(grants)

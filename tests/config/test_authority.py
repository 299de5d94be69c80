"""What a start writes into the audit: what is in force, and what differs from the start before."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config.access import note_start
from gateway.config.values import GatewayConfig
from gateway.domain.budgets import Budgets, Limit
from gateway.domain.channels import ChannelDef, GroupRule
from gateway.domain.events import AuditEntry
from gateway.domain.ids import Secret
from gateway.domain.plugins import PluginInfo, PluginSecret
from gateway.domain.ports import Stores
from tests.config.arena import Arena
from tests.fakes.store import NOON, open_memory

TOKEN = "secret-of-the-phone"
TEXT = f"""
[gateway]
token = "secret-of-the-operator"
[[tokens]]
name = "phone"
token = "{TOKEN}"
scopes = ["chat", "metrics"]
[budgets]
daily = {{ usd = 1.5 }}
agent.main = 7
[agent]
provider = "demo"
"""


@pytest.fixture
def config(tmp_path: Path) -> GatewayConfig:
    arena = Arena(tmp_path)
    arena.home.mkdir()
    return arena.load(TEXT)


async def test_who_may_talk_in_a_channel_is_told_when_it_changes(config: GatewayConfig) -> None:
    room = {"den": GroupRule(frozenset({"ben", "ann"}))}
    before = ChannelDef(
        "tg", "telegram", secrets=(PluginSecret("token", Secret(TOKEN), frozenset()),)
    )
    after = replace(before, dm_policy="open", allow_from=frozenset({"ann"}), groups=room)
    async with open_memory() as stores:
        starts = [replace(config, channels=(one,)) for one in (before, before, after)]
        entries = await noted(stores, *starts)

    (changed,) = [entry for entry in entries if entry.kind == "config.changed"]
    told = json.loads(changed.detail)
    assert told["what"] == "channels.tg"
    assert (told["before"]["dm_policy"], told["after"]["dm_policy"]) == ("pairing", "open")
    assert (told["before"]["groups"], told["after"]["groups"]) == ({}, {"den": ["ann", "ben"]})
    assert told["after"]["allow_from"] == ["ann"]
    assert all(TOKEN not in entry.detail for entry in entries)


async def noted(stores: Stores, *starts: GatewayConfig, refused: str = "") -> Sequence[AuditEntry]:
    plugins = [PluginInfo("bad", "refused", why=refused)] if refused else []
    for config in starts:
        await note_start(stores.audit, config, plugins, "1.2.3", NOON)
    return await stores.audit.after(0, limit=100)


async def test_a_first_start_says_what_is_in_force_and_nothing_secret(
    config: GatewayConfig,
) -> None:
    async with open_memory() as stores:
        (entry,) = await noted(stores, config)

    told = json.loads(entry.detail)
    assert (entry.kind, told["version"]) == ("config.applied", "1.2.3")
    assert told["authority"]["tokens.phone"] == ["chat", "metrics"]
    assert told["authority"]["gateway.has_token"] is True
    assert told["authority"]["budgets.daily"] == {"tokens": None, "usd": 1.5}
    assert told["authority"]["budgets.agent:main"] == {"tokens": 7, "usd": None}
    assert told["authority"]["agents.main"]["models"] == ["demo/demo"]
    assert "secret-of" not in entry.detail


async def test_the_next_start_says_what_changed(config: GatewayConfig) -> None:
    after = replace(config, tokens=(), budgets=Budgets(daily=Limit(tokens=9)))

    async with open_memory() as stores:
        entries = await noted(stores, config, after, after)

    said = [(entry.kind, json.loads(entry.detail)) for entry in entries[1:-2]]
    assert [(kind, told["what"]) for kind, told in said] == [
        ("budget.changed", "budgets.agent:main"),
        ("budget.changed", "budgets.daily"),
        ("token.changed", "tokens.phone"),
    ]
    assert said[1][1]["after"] == {"tokens": 9, "usd": None}
    assert (said[2][1]["before"], said[2][1]["after"]) == (["chat", "metrics"], None)
    assert [entry.kind for entry in entries[-2:]] == ["config.applied", "config.applied"]


async def test_a_refused_plugin_is_noted(config: GatewayConfig) -> None:
    async with open_memory() as stores:
        entry, _ = await noted(stores, config, refused="another file")

    assert entry.kind == "plugin.refused"
    assert json.loads(entry.detail) == {"plugin": "bad", "why": "another file"}

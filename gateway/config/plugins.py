"""Plugins and channels: their files, the secrets that the host sends for them, and the config that they receive,
which must not contain secrets."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, time
from pathlib import Path
from typing import cast

from gateway.config.problems import Code, KeyPath, items_of
from gateway.config.reading import BUNDLED as BUNDLED
from gateway.config.reading import Reading
from gateway.config.secrets import REFERENCE, looks_secret
from gateway.config.sections import BadCapability, parse_capability
from gateway.config.values import BundledPlugin, SecretKeys
from gateway.domain.agents import OWN_CHANNELS, OWN_TOOLS
from gateway.domain.channels import ChannelDef
from gateway.domain.model import is_loopback
from gateway.domain.plugins import HttpGrant, Origin, PluginDef, PluginSecret
from gateway.domain.text import choose, quoted

LARGEST_CONFIG = 65_536  # bytes; every call carries it
DEEPEST_CONFIG = 16
LARGEST_INTEGER_BITS = 63
ANYBODY = "*"


def resolve_plugins(reading: Reading, written: Iterable[PluginDef]) -> tuple[PluginDef, ...]:
    plugins: dict[str, PluginDef] = {}
    for index, one in enumerate(written):
        path: KeyPath = ("plugins", index)
        reading.check_name((*path, "name"), one.name, OWN_TOOLS, "a built-in tool")
        check_config(reading, (*path, "config"), one.config)
        # A wrong capability is already reported; its effects on secrets are not reported again.
        granted = reading.value_at((*path, "capabilities"))
        is_sure = isinstance(granted, list | None) and len(granted or ()) == len(one.capabilities)
        file, is_bundled = _file(reading, (*path, "path"), one)
        secrets = _secrets(reading, (*path, "secrets"), one.secrets, one, is_sure=is_sure)
        plugins[one.name] = replace(one, path=file, secrets=secrets, is_bundled=is_bundled)
    return tuple(plugins.values())


def _file(reading: Reading, path: KeyPath, plugin: PluginDef) -> tuple[Path, bool]:
    """Returns the file of a plugin, and True if it is bundled. Loading checks that a bundled file exists."""
    written, bundled = str(plugin.path), reading.known.bundled
    if written.startswith(BUNDLED):
        name = written.removeprefix(BUNDLED)
        if name not in bundled:
            message = f"there is no bundled plugin {quoted(name)}"
            reading.wrong(Code.UNKNOWN_NAME, path, message, choose(name, bundled))
        return bundled[name].file if name in bundled else Path(name), True
    if plugin.is_enabled:
        fix = "correct the path, build the plugin, or write enabled = false"
        reading.file(path, written, fix)
    return reading.inputs.path(written, reading.folder).absolute(), False


def _secrets(
    reading: Reading,
    above: KeyPath,
    written: Iterable[object],
    plugin: PluginDef,
    *,
    is_sure: bool = True,
    must_reach: bool = True,
) -> tuple[PluginSecret, ...]:
    """Resolves secrets. `is_sure`: all capabilities of the plugin are valid. `must_reach`: each secret needs a host."""
    secrets = []
    for secret in cast("Iterable[SecretKeys]", written):
        path = (*above, secret.name)
        where = (*path, "value") if secret.hosts else path
        origins: frozenset[Origin] = frozenset()
        if is_sure:
            origins = _origins(reading, path, secret, plugin, must_reach=must_reach)
        value = reading.secret(where, secret.value, is_needed=plugin.is_enabled)
        if value is not None:
            secrets.append(PluginSecret(secret.name, value, origins))
    return tuple(secrets)


def _origins(
    reading: Reading, path: KeyPath, secret: SecretKeys, plugin: PluginDef, *, must_reach: bool
) -> frozenset[Origin]:
    """Returns the origins that may receive a secret: granted hosts, reached by https or on this machine."""
    named = [((*path, "hosts", index), host) for index, host in enumerate(secret.hosts)]
    origins = [(where, _named_origin(reading, where, host, plugin)) for where, host in named]
    if not named:
        origins = [(path, _only_origin(reading, path, plugin, must_reach=must_reach))]
    for where, origin in origins:
        if origin and origin.scheme == "http" and not is_loopback(origin.host):
            message = f"secrets are not sent to {origin}, because http is not encrypted"
            reading.wrong(Code.MALFORMED, where, message, "grant and name the host with https")
    return frozenset(origin for _, origin in origins if origin)


def _only_origin(
    reading: Reading, path: KeyPath, plugin: PluginDef, *, must_reach: bool
) -> Origin | None:
    """Returns the origin for a secret without hosts: the only host of its plugin."""
    if len(plugin.origins) == 1:
        return next(iter(plugin.origins))
    if must_reach:
        hosts = ", ".join(sorted(as_host(origin) for origin in plugin.origins))
        reach = "several hosts" if hosts else "no host"
        fix = f'write {{ value = "...", hosts = [...] }} with some of: {hosts}'
        if not hosts:
            fix = 'add the host of the secret to its capabilities: "http:HOST"'
        message = f"plugin {quoted(plugin.name)} may reach {reach}"
        reading.wrong(Code.MISSING, path, message, fix)
    return None


def _named_origin(reading: Reading, path: KeyPath, host: str, plugin: PluginDef) -> Origin | None:
    granted = {str(HttpGrant(origin)): origin for origin in plugin.origins}
    try:
        wanted = str(parse_capability(f"http:{host}"))
    except BadCapability as error:
        message = f"{quoted(host)} {error.problem}"
        reading.wrong(Code.MALFORMED, path, message, "write HOST or SCHEME://HOST:PORT")
        return None
    if wanted not in granted:
        message = f"plugin {quoted(plugin.name)} is not granted {wanted}"
        fix = f'add "{wanted}" to its capabilities, or name a granted host'
        reading.wrong(Code.UNKNOWN_NAME, path, message, fix)
    return granted.get(wanted)


def as_host(origin: Origin) -> str:
    """Returns the origin as `hosts` writes it."""
    return str(HttpGrant(origin)).removeprefix("http:")


def check_config(reading: Reading, path: KeyPath, config: Mapping[str, object]) -> None:
    """Reports config that is not JSON, too large or too deep, and warns of values that look secret."""
    known = len(reading.findings)
    _check_value(reading, path, config)
    if len(reading.findings) == known and (size := len(json.dumps(config))) > LARGEST_CONFIG:
        message, fix = f"config has {size} bytes", f"shorten it to {LARGEST_CONFIG} bytes"
        reading.wrong(Code.OUT_OF_RANGE, path, message, fix)


def _check_value(reading: Reading, path: KeyPath, value: object) -> None:
    if len(path) > DEEPEST_CONFIG:
        reading.wrong(Code.OUT_OF_RANGE, path, "this is nested too deeply", "flatten it")
        return
    for key, item in items_of(value):
        _check_value(reading, (*path, key), item)
    if problem := _not_json(value):
        reading.wrong(Code.MALFORMED, path, *problem)
    elif isinstance(value, str) and looks_secret(str(path[-1])):
        message = "the plugin receives this value, and it looks like a secret"
        fix = "move it to secrets: the host inserts it, and the plugin never sees it"
        reading.note("secret-in-config", path, message, fix)


def _not_json(value: object) -> tuple[str, str] | None:
    """Returns why a value cannot be passed to a plugin, and the fix; None if it can."""
    if isinstance(value, str) and REFERENCE.search(value):
        return "config cannot refer to secrets: plugins never see them", "move it to secrets"
    if isinstance(value, date | time):
        return "JSON has no dates and times", "put it in quotes"
    if isinstance(value, float) and not math.isfinite(value):
        return "JSON has no such number", "write a finite number, or remove the key"
    if isinstance(value, int) and value.bit_length() > LARGEST_INTEGER_BITS:
        return "this number is too large", "put it in quotes"
    return None


def resolve_channels(
    reading: Reading, written: Iterable[ChannelDef], plugins: Sequence[PluginDef]
) -> tuple[ChannelDef, ...]:
    by_name = {one.name: one for one in plugins}
    shipped = {one.file: one for one in reading.known.bundled.values()}
    channels = tuple(_channel(reading, one, by_name) for one in written)
    known: dict[str, tuple[str, str]] = {}
    for channel in channels:
        plugin = by_name.get(channel.plugin)
        if plugin is not None and plugin.path in shipped:
            _check_proofs(reading, channel, shipped[plugin.path], known)
            _check_mentions(reading, channel, shipped[plugin.path].mention_key)
    return channels


def _channel(reading: Reading, written: ChannelDef, plugins: Mapping[str, PluginDef]) -> ChannelDef:
    """Checks a channel and resolves its secrets. Loading checks that its plugin is an adapter."""
    path: KeyPath = ("channels", written.name)
    reading.check_name(path, written.name, OWN_CHANNELS, "a built-in channel")
    check_config(reading, (*path, "config"), written.config)
    if reading.plugins.get(written.plugin) is False:
        where, message = (*path, "plugin"), f"plugin {quoted(written.plugin)} is not enabled"
        reading.wrong(Code.UNKNOWN_NAME, where, message, "enable it, or remove the channel")
    people = [(*path, "allow_from")]
    people += [(*path, "groups", room, "allow_from") for room in written.groups]
    for where in people:
        ids = reading.value_at(where)
        if isinstance(ids, list) and ANYBODY in ids:
            message = f"{quoted(ANYBODY)} is not the id of a person"
            fix = 'write dm_policy = "open"; in a room, remove allow_from'
            reading.wrong(Code.MALFORMED, (*where, ids.index(ANYBODY)), message, fix)
    plugin, secrets = plugins.get(written.plugin), (*path, "secrets")
    if plugin is None:
        return replace(written, secrets=())
    given = _secrets(reading, secrets, written.secrets, plugin, must_reach=False)
    return replace(written, secrets=given)


def _check_proofs(
    reading: Reading, channel: ChannelDef, adapter: BundledPlugin, known: dict[str, tuple[str, str]]
) -> None:
    """Reports two channels with the same proof of webhook calls. Loading checks adapters that are not bundled.
    `known` maps a proof to its channel and key."""
    is_called = adapter.is_called if channel.transport is None else channel.transport == "webhook"
    secrets = {one.name: one.value.reveal() for one in channel.secrets}
    for key in adapter.proofs if is_called else ():
        kind, _, name = key.partition(".")
        given = secrets.get(name) if kind == "secrets" else channel.config.get(name)
        if not isinstance(given, str) or not given:
            continue
        proof = given if kind == "secrets" else given.lower()
        first, its = known.setdefault(proof, (channel.name, key))
        if first != channel.name:
            message = (
                f"channels {quoted(first)} ({its}) and {quoted(channel.name)} ({key}) have the "
                "same value to prove calls, so each could accept the other's calls"
            )
            path = ("channels", channel.name, kind, name)
            reading.wrong(Code.DUPLICATE, path, message, "give each channel its own value")


def _check_mentions(reading: Reading, channel: ChannelDef, key: str | None) -> None:
    """Warns of rooms that need mentions although the adapter cannot recognize them."""
    if key is None or channel.config.get(key) not in (None, ""):
        return
    for room, rule in channel.groups.items():
        asked = rule.require_mention
        if channel.require_mention if asked is None else asked:
            message = f"require_mention needs config.{key}, which is missing"
            fix = f"add {key} to config of [channels.{channel.name}], or require_mention = false"
            where = ("channels", channel.name, "groups", room)
            reading.note("no-mentions", where, message, fix)

"""`[channels]` as the domain's definitions: whom each speaks through, and who may talk to it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.config.given import Given
from gateway.config.problems import Code, KeyPath, Report
from gateway.config.reaching import ChannelSection
from gateway.config.values import BundledPlugin
from gateway.domain.channels import ChannelDef, GroupRule
from gateway.domain.plugins import PluginDef, PluginSecret
from gateway.domain.text import choose, quoted

ANYBODY = "*"
OWN_SURFACES = ("websocket", "api")  # what sessions call the gateway's own doors


@dataclass(frozen=True, slots=True)
class Channels:
    """Reads `[channels]`; `plugins` are those of the file, `names` also those that are wrong."""

    given: Given
    report: Report
    plugins: Sequence[PluginDef]
    names: Mapping[str, bool]  # whether it is enabled
    bundled: Mapping[str, BundledPlugin] = field(default_factory=dict)

    def resolve(self, sections: Mapping[str, ChannelSection]) -> tuple[ChannelDef, ...]:
        channels = tuple(self._channel(name, section) for name, section in sections.items())
        self._check_proofs(channels)
        return channels

    def _check_proofs(self, channels: Sequence[ChannelDef]) -> None:
        """Of adapters of others it is seen when they are loaded."""
        known: dict[str, tuple[str, str]] = {}
        for channel in channels:
            for key, value in self._proofs(channel):
                first, its = known.setdefault(value, (channel.name, key))
                if first == channel.name:
                    continue
                message = (
                    f"channels {quoted(first)} ({its}) and {quoted(channel.name)} ({key}) have the "
                    "same value to prove who calls, so each may take the other's calls"
                )
                path = ("channels", channel.name, *key.split("."))
                self.report.wrong(
                    Code.DUPLICATE, path, message, "give each channel a value of its own"
                )

    def _called_adapter(self, channel: ChannelDef) -> BundledPlugin | None:
        """If it ships with the gateway and the channel's platform calls it."""
        file = next((one.path for one in self.plugins if one.name == channel.plugin), None)
        found = next((one for one in self.bundled.values() if one.file == file), None)
        if found is None or channel.transport == "webhook":
            return found
        return found if channel.transport is None and found.is_called else None

    def _proofs(self, channel: ChannelDef) -> Iterator[tuple[str, str]]:
        """What proves who calls it, by its key in the section."""
        adapter = self._called_adapter(channel)
        if adapter is None:
            return
        secrets = {one.name: one.value.reveal() for one in channel.secrets}
        for key in adapter.proofs:
            kind, _, name = key.partition(".")
            given = secrets.get(name) if kind == "secrets" else channel.config.get(name)
            if isinstance(given, str) and given:
                yield key, given if kind == "secrets" else given.lower()

    def _channel(self, name: str, section: ChannelSection) -> ChannelDef:
        path: KeyPath = ("channels", name)
        if name in OWN_SURFACES:
            message = f"{quoted(name)} is a surface of the gateway itself"
            self.report.wrong(Code.DUPLICATE, path, message, "choose another name")
        self.given.check_config((*path, "config"), section.config)
        plugin = self._plugin((*path, "plugin"), section.plugin)
        secrets: tuple[PluginSecret, ...] = ()
        if plugin is not None:
            where = (*path, "secrets")
            secrets = self.given.secrets(where, section.secrets, plugin, must_reach=False)
        groups = {
            room: GroupRule(
                self._people((*path, "groups", room, "allow_from"), group.allow_from),
                group.require_mention,
            )
            for room, group in section.groups.items()
        }
        return ChannelDef(
            name=name,
            plugin=section.plugin,
            account=section.account,
            transport=section.transport,
            secrets=secrets,
            config=section.config,
            dm_policy=section.dm_policy,
            allow_from=self._people((*path, "allow_from"), section.allow_from),
            groups=groups,
            require_mention=section.require_mention,
            on_unknown_send=section.on_unknown_send,
            max_age_s=section.max_age_s,
        )

    def _plugin(self, path: KeyPath, name: str) -> PluginDef | None:
        """None once its problem is reported. What kind it is of is seen when it is loaded."""
        found = next((one for one in self.plugins if one.name == name), None)
        if name not in self.names:
            message, fix = f"no plugin is named {quoted(name)}", choose(name, self.names)
            self.report.wrong(Code.UNKNOWN_NAME, path, message, fix)
        elif not self.names[name]:
            message = f"plugin {quoted(name)} is not enabled"
            self.report.wrong(Code.UNKNOWN_NAME, path, message, "enable it, or remove the channel")
        return found

    def _people(self, path: KeyPath, ids: Sequence[str]) -> frozenset[str]:
        if ANYBODY in ids:
            message = f"{quoted(ANYBODY)} is nobody's id"
            fix = 'write dm_policy = "open", or leave allow_from of a room empty'
            self.report.wrong(Code.MALFORMED, (*path, ids.index(ANYBODY)), message, fix)
        return frozenset(ids)

"""`[channels]` as the domain's definitions: whom each speaks through, and who may talk to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.config.given import Given
from gateway.config.problems import Code, KeyPath, Report, choose, quoted
from gateway.config.reaching import ChannelSection
from gateway.domain.channels import ChannelDef, GroupRule
from gateway.domain.plugins import PluginDef, PluginSecret

ANYBODY = "*"
OWN_SURFACES = ("websocket", "api")  # what sessions call the gateway's own doors


@dataclass(frozen=True, slots=True)
class Channels:
    """Reads `[channels]`; `plugins` are those of the file, `names` also those that are wrong."""

    given: Given
    report: Report
    plugins: Sequence[PluginDef]
    names: Mapping[str, bool]  # whether it is enabled

    def resolve(self, sections: Mapping[str, ChannelSection]) -> tuple[ChannelDef, ...]:
        return tuple(self._channel(name, section) for name, section in sections.items())

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

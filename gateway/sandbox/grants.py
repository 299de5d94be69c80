"""What a guest imports against what its plugin was granted: refused at load, by name."""

from gateway.domain.errors import GatewayError
from gateway.domain.plugins import PluginDef
from gateway.sandbox.programs import Inspection
from gateway.sandbox.worlds import interface_of

# Functions of Extism that need a grant; all others are the language between guest and host.
_EXTISM = {
    "http_request": "http:HOST",
    "var_get": "store:vars",
    "var_set": "store:vars",
}
_INTERFACES = {
    "http": "http:HOST",
    "store": "store:NAME",
    "clock": "host_function:clock",
    "random": "host_function:random",
    "host": "host_function:NAME",
}


class PluginRefused(GatewayError):
    """A plugin is not loaded; the text names it and says why and what would help."""

    code = "plugin_refused"

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"plugin {plugin}: {problem}")
        self.plugin, self.problem = plugin, problem


def needed(inspection: Inspection) -> dict[str, str]:
    """import -> the capability that it needs, for imports of ours; others are answered `denied`."""
    found: dict[str, str] = {}
    for name in inspection.imports:
        interface, _, function = name.partition("#")
        ours = interface_of(interface)
        if ours in _INTERFACES:
            found[name] = _INTERFACES[ours]
        elif interface == "extism:host/env" and function in _EXTISM:
            found[name] = _EXTISM[function]
        elif interface == "extism:host/user":
            found[name] = f"host_function:{function}"
    return found


def missing(plugin: PluginDef, inspection: Inspection) -> dict[str, str]:
    """Those that the plugin was not granted."""
    return {name: need for name, need in needed(inspection).items() if not _has(plugin, need)}


def require_granted(plugin: PluginDef, inspection: Inspection) -> None:
    """Raises PluginRefused."""
    lacking = missing(plugin, inspection)
    if lacking and not plugin.deny_unused:
        name, need = next(iter(lacking.items()))
        others = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        raise PluginRefused(
            plugin.name,
            f"it imports {name}{others}, which needs the capability {need}; grant it, or set "
            "deny_unused = true if the plugin does without it",
        )


def _has(plugin: PluginDef, need: str) -> bool:
    granted = {str(capability) for capability in plugin.capabilities}
    match need:
        case "http:HOST":
            return bool(plugin.origins)
        case "store:NAME":
            return any(one.startswith("store:") for one in granted)
        case "store:vars":
            return plugin.store_grant("vars") is not None
        case "host_function:NAME":
            return bool(plugin.functions - {"clock", "random"})
    return need in granted

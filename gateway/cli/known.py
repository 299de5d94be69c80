"""What the other rooms know and a configuration is checked against."""

from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from gateway.config.values import BundledPlugin, Known, Preset
from gateway.control.policy import DECISION_TREES
from gateway.control.rules import CORE, problems_of
from gateway.host.clock import SystemClock
from gateway.host.files import shipped_folder
from gateway.providers.prices import (
    DEFAULT_MODELS,
    PRESETS,
    context_window,
    is_priced,
    output_limit,
    why_no_thinking,
)

# The plugins that ship with the gateway, and what each cannot work without.
BUNDLED: dict[str, tuple[str, ...]] = {
    "echo": (),
    "calc": (),
    "time": ("host_function:clock",),
    "notes": ("store:notes",),
    "search_code": ("host_function:folder",),
    "fetch": (),
    "telegram": ("http:api.telegram.org",),
    "webhook": (),
    "slack": ("http:slack.com", "http:wss-primary.slack.com", "http:wss-backup.slack.com"),
    "discord": ("http:discord.com", "http:gateway.discord.gg", "host_function:clock"),
    "whatsapp": ("http:graph.facebook.com",),
    "matrix": (),
}
# By what the callers of webhooks prove who they are, and whether the adapter is called by default.
PROOFS: dict[str, tuple[tuple[str, ...], bool]] = {
    "telegram": (("secrets.webhook_secret",), False),
    "webhook": (("secrets.secret",), True),
    "slack": (("secrets.signing_secret",), True),
    "discord": (("config.public_key",), False),
    "whatsapp": (("secrets.app_secret",), True),
    "matrix": (("secrets.hs_token",), True),
}
# Names in `config` without which an adapter knows no mention.
MENTION_KEYS = {"telegram": "username"}
# Those of a start without any agent: whatever they are granted is harmless.
USUAL = frozenset({"echo", "calc", "time", "notes"})


@cache
def known() -> Known:
    presets = {
        name: Preset(preset.wire, preset.base_url, preset.key_env, DEFAULT_MODELS.get(name))
        for name, preset in PRESETS.items()
    }
    folder = shipped_folder("plugins")
    bundled = {
        name: _bundled(folder / name / "tool.wasm", name, needs) for name, needs in BUNDLED.items()
    }
    trees = tuple(sorted(path.stem for path in shipped_folder("agent/trees").glob("*.bt")))
    decisions = ("default", *(point.name for point in entry_points(group=DECISION_TREES)))
    return Known(
        presets,
        bundled,
        context_window,
        output_limit,
        why_no_thinking,
        trees,
        decisions,
        CORE,
        problems_of,
        has_mcp=find_spec("mcp") is not None,
        is_priced=lambda provider, model: is_priced(provider, model, SystemClock().now()),
    )


def _bundled(file: Path, name: str, needs: tuple[str, ...]) -> BundledPlugin:
    proofs, is_called = PROOFS.get(name, ((), False))
    return BundledPlugin(
        file,
        needs,
        is_usual=name in USUAL,
        proofs=proofs,
        is_called=is_called,
        mention_key=MENTION_KEYS.get(name),
    )

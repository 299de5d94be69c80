"""A start without a file: the same values, without anything that only a file needs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gateway.config.choice import DEMO, Choice, default_model, usual_choice
from gateway.config.environment import TOKEN, value_of
from gateway.config.paths import absolute
from gateway.config.values import GatewayConfig, GatewaySettings, Known, Overrides
from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId
from gateway.domain.providers import ProviderDef
from gateway.domain.secrets import Secret

MAIN = "main"
UNKNOWN_WINDOW = 128_000


def usual_agent_id(choice: Choice) -> str:
    return DEMO if choice.provider == DEMO else MAIN


def zero_config(
    environment: Mapping[str, str], home: Path, known: Known, overrides: Overrides
) -> GatewayConfig | None:
    """None where something needs an explanation: the thorough way gives it."""
    choice = usual_choice(environment, known)
    model = default_model(choice.provider, known)
    texts = [value_of(environment, name) for name in (TOKEN, choice.variable) if name]
    if model is None or choice.others or not all(_is_plain(text) for text in texts):
        return None
    if overrides.port is not None and not 0 <= overrides.port <= 65_535:
        return None
    agent = usual_agent(choice, model, known)
    provider = _provider(choice, environment, known)
    return GatewayConfig(
        gateway=_gateway(environment, home, overrides),
        agents=(agent,),
        default_agent=agent.id,
        providers={provider.name: provider} if provider else {},
        key_origins={choice.provider: choice.variable} if choice.variable else {},
    )


def usual_agent(choice: Choice, model: str, known: Known) -> AgentDef:
    """The agent of a start without any: every tool that is built in, the shipped soul."""
    usual = AgentDef(AgentId(usual_agent_id(choice)), choice.provider, model)
    window = known.context_window(model) or UNKNOWN_WINDOW
    budget = usual.context.token_budget
    return replace(
        usual,
        max_tokens=min(usual.max_tokens, known.output_limit(model) or usual.max_tokens),
        context_window=window,
        tools=known.tools,
        context=replace(
            usual.context, token_budget=budget if budget <= window else int(0.8 * window)
        ),
    )


def _gateway(environment: Mapping[str, str], home: Path, overrides: Overrides) -> GatewaySettings:
    settings = GatewaySettings()
    token = value_of(environment, TOKEN)
    given = overrides.data_dir
    data_dir = given.absolute() if given else absolute(str(settings.data_dir), home, home)
    return replace(
        settings,
        port=settings.port if overrides.port is None else overrides.port,
        data_dir=data_dir or settings.data_dir,
        token=Secret(token) if token else None,
    )


def _provider(choice: Choice, environment: Mapping[str, str], known: Known) -> ProviderDef | None:
    preset = known.presets.get(choice.provider)
    if preset is None or choice.variable is None:
        return None
    key = Secret(environment[choice.variable])
    return ProviderDef(choice.provider, preset.wire, preset.base_url, key)


def _is_plain(text: str | None) -> bool:
    return text is None or (text.isprintable() and text.isascii())

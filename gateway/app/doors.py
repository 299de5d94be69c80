"""What the front doors are told: where they are, whom they let in, and what they refuse."""

from gateway.app.agents import reach
from gateway.config.values import GatewayConfig
from gateway.web.settings import TokenDef, WebSettings


def web_settings(config: GatewayConfig, operator_key: str) -> WebSettings:
    settings = config.gateway
    tokens = tuple(
        TokenDef(token.name, token.token.reveal(), reach(config, token.name, token.scopes))
        for token in config.tokens
    )
    return WebSettings(
        bind=settings.bind,
        port=settings.port,
        tokens=tokens,
        operator_secret=settings.token.reveal() if settings.token else None,
        cli_secret=operator_key,
        allowed_origins=settings.allowed_origins,
        trusted_proxies=settings.trusted_proxies,
        max_connections=settings.max_connections,
        max_connections_per_address=settings.max_connections_per_address,
        max_unauthenticated=settings.max_unauthenticated,
        max_frame_bytes=settings.max_frame_bytes,
        max_body_bytes=settings.max_body_bytes,
    )

"""Who may reach the gateway: its address, its tokens and their scopes."""

from collections.abc import Iterable
from dataclasses import replace

from gateway.config.environment import TOKEN
from gateway.config.problems import Code, KeyPath
from gateway.config.reading import Reading
from gateway.config.values import GatewayConfig, GatewaySettings, TokenGrant
from gateway.domain.ids import Secret
from gateway.domain.model import is_loopback
from gateway.domain.text import choose, quoted

SCOPES = ("chat", "read", "admin", "impersonate", "metrics")
LEAST_TOKEN = 16  # characters of the operator's, where others can reach the gateway
RESERVED = ("local", "operator")  # principals that are not made by a token of the file
NEW_TOKEN = "make one: openssl rand -hex 32"
OPERATOR: KeyPath = ("gateway", "token")


def resolve_gateway(reading: Reading, config: GatewayConfig) -> GatewaySettings:
    written, overrides = config.gateway, reading.around.overrides
    port = written.port if overrides.port is None else overrides.port
    if not 0 <= port <= 65_535:
        message, path = f"{port} is out of range", ("gateway", "port")
        reading.wrong(Code.OUT_OF_RANGE, path, message, "0 to 65535", variable="--port")
    data_dir = overrides.data_dir or reading.around.path(str(written.data_dir), reading.folder)
    token = _operator_token(reading, written)
    is_meant = written.token is not None or TOKEN in reading.around.environment
    _check_door(reading, written.bind, token, has_tokens=is_meant or bool(config.tokens))
    return replace(written, port=port, data_dir=data_dir.absolute(), token=token)


def resolve_tokens(
    reading: Reading, tokens: Iterable[TokenGrant], operator: Secret | None
) -> tuple[TokenGrant, ...]:
    names = set[str]()
    values: dict[str, str] = {operator.reveal(): "[gateway] token"} if operator else {}
    grants = []
    for index, written in enumerate(tokens):
        path: KeyPath = ("tokens", index)
        where: KeyPath = (*path, "token")
        if written.name in RESERVED:
            message = f"{quoted(written.name)} is reserved for the local operator"
            reading.wrong(Code.MALFORMED, (*path, "name"), message, "choose another name")
        reading.is_taken((*path, "name"), "token", written.name, names)
        names.add(written.name)
        _check_scopes(reading, written.scopes, path)
        token = reading.source.follow(where, written.token.reveal())
        if token is None or _is_blank(reading, where, token):
            continue
        if token in values:
            message = f"the same token as that of {values[token]}"
            reading.wrong(Code.DUPLICATE, where, message, "make another: openssl rand -hex 32")
        values[token] = quoted(written.name)
        grants.append(replace(written, token=Secret(token)))
    return tuple(grants)


def _check_door(reading: Reading, bind: str, operator: Secret | None, *, has_tokens: bool) -> None:
    if is_loopback(bind):
        return
    if not has_tokens:
        message = (
            f"{quoted(bind)} can be reached from other machines, and no token is set: "
            "anyone could control the gateway"
        )
        fix = f'set {TOKEN} or [gateway] token, or write bind = "127.0.0.1"'
        reading.wrong(Code.OPEN_DOOR, ("gateway", "bind"), message, fix)
    if operator is not None and len(operator.reveal().strip()) < LEAST_TOKEN:
        message = (
            f"the operator's token is shorter than {LEAST_TOKEN} characters, and {quoted(bind)} "
            "can be reached from other machines: it could be guessed"
        )
        _wrong_token(reading, OPERATOR, Code.OPEN_DOOR, message)


def _operator_token(reading: Reading, written: GatewaySettings) -> Secret | None:
    token = None
    if TOKEN in reading.around.environment:
        token = reading.source.variable(OPERATOR, TOKEN)
    elif written.token is not None:
        token = reading.source.follow(OPERATOR, written.token.reveal())
    return None if token is None or _is_blank(reading, OPERATOR, token) else Secret(token)


def _is_blank(reading: Reading, path: KeyPath, token: str) -> bool:
    """Reports it: who wrote it meant a token, and without one anybody nearby is the operator."""
    if not token.strip():
        _wrong_token(reading, path, Code.MALFORMED, "the token is blank")
    return not token.strip()


def _wrong_token(reading: Reading, path: KeyPath, code: Code, message: str) -> None:
    is_variable = path == OPERATOR and TOKEN in reading.around.environment
    reading.wrong(code, path, message, NEW_TOKEN, variable=TOKEN if is_variable else None)


def _check_scopes(reading: Reading, scopes: Iterable[str], path: KeyPath) -> None:
    for index, scope in enumerate(scopes):
        kind, colon, agent_id = scope.partition(":")
        where = (*path, "scopes", index)
        if kind == "agent" and colon:
            reading.refers(where, "agent", agent_id, reading.agents)
        elif scope not in SCOPES:
            fix = choose(scope, (*SCOPES, "agent:ID"))
            reading.wrong(Code.NOT_A_CHOICE, where, f"{quoted(scope)} is no scope", fix)

"""What sections of config.toml and the values in them look like."""

import re
from ipaddress import ip_address, ip_network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from gateway.domain.model import base_url_problem

SECRET = {"format": "password"}
_HOST = r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*"
_ORIGIN = r"(https?)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?"


def address(text: str) -> str:
    if not re.fullmatch(_HOST, text) or text.replace(".", "").isdigit():
        ip_address(text)
    return text


def origin(text: str) -> str:
    """As a browser sends it."""
    found = re.fullmatch(_ORIGIN, text.lower())
    if found is None or int(found[3] or 0) > 65_535:
        raise ValueError("this is not scheme://host[:port]")
    scheme, host, port = found.groups()
    is_usual = port in {None, {"http": "80", "https": "443"}[scheme]}
    return f"{scheme}://{host}" if is_usual else f"{scheme}://{host}:{port}"


def base_url(text: str) -> str:
    problem = base_url_problem(text) if text.isprintable() else "holds a control character"
    if problem:
        raise ValueError(f"this address {problem}")
    return text.rstrip("/")


Text = Annotated[str, Field(min_length=1)]
SecretText = Annotated[str, Field(min_length=1, json_schema_extra=SECRET)]
PathText = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
Host = Annotated[str, AfterValidator(address)]
Origin = Annotated[str, AfterValidator(origin)]
Network = Annotated[str, AfterValidator(lambda text: str(ip_network(text, strict=False)))]
Url = Annotated[str, AfterValidator(base_url)]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
Header = Annotated[str, Field(json_schema_extra=SECRET)]
ProviderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Seconds = Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)]
TokenBudget = Annotated[int, Field(ge=4_000, le=128_000)] | Literal["auto"]
Id = Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$")]
SubagentName = Annotated[
    str, Field(pattern="^[A-Za-z0-9-]{1,55}$")
]  # its tool is called delegate_NAME
Scopes = Annotated[list[Text], Field(min_length=1)]
PluginName = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9-]*(_[a-z0-9-]+)*$", max_length=32)
]  # a tool is called PLUGIN__TOOL
SecretName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
StateName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Plain = str | bool | int | Annotated[float, Field(allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{64}$")]


def key(default: Any, description: str, **bounds: Any) -> Any:  # as pydantic's Field
    if isinstance(default, type):
        return Field(default_factory=default, description=description)
    if bounds:
        bounds["allow_inf_nan"] = False
    return Field(default, description=description, **bounds)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class PluginSecretSection(Section):
    """A secret that the host fills into what the plugin sends; the plugin never has it."""

    value: SecretText = key(..., "The secret.")
    hosts: list[Text] = key([], "Where it may go. Absent: to the one host that is granted.")


def _as_table(value: object) -> object:
    return {"value": value} if isinstance(value, str) else value


PluginSecretText = Annotated[
    PluginSecretSection,
    BeforeValidator(_as_table, json_schema_input_type=SecretText | PluginSecretSection),
]

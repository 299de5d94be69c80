"""platform.json: a platform that is simulated, and a conversation with it, as an adapter ships them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.cli.plugin_files import BadPlugin, problems_of

PLATFORM = "platform.json"


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Answer(_Table):
    """What a request is answered that fits; of several for one address each is given once, and the
    last one from then on."""

    method: str
    url: str  # after api_base, as `fits` has it
    status: int = 200
    headers: dict[str, str] = {}
    body: Any = None


class Call(_Table):
    """Signed by the simulator, as the adapter describes it."""

    method: str = "POST"
    path: str = ""
    query: str = ""
    headers: dict[str, str] = {}
    body: Any = ""

    @property
    def content(self) -> bytes:
        is_text = isinstance(self.body, str)
        return (self.body if is_text else json.dumps(self.body, ensure_ascii=False)).encode()


class Answered(_Table):
    status: int = 200
    body: Any = None  # a part of it if it is JSON


class Out(_Table):
    method: str
    url: str
    body: Any = None  # a part of it if it is JSON


class Step(_Table):
    name: str
    call: Call = Field(alias="in")
    answered: Answered = Answered()
    out: list[Out] = []


class Script(_Table):
    transport: Literal["webhook"]
    config: dict[str, Any] = {}  # a text that begins with `/` is an address of the platform
    secrets: dict[str, str] = {}
    ed25519_seed: str | None = None
    groups: dict[str, dict[str, Any]] = {}
    answers: list[Answer]
    steps: list[Step]


def read_script(path: Path) -> Script:
    """Raises BadPlugin."""
    try:
        return Script.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise BadPlugin(
            f"there is no {path}: its adapter ships no platform to play with"
        ) from error
    except (OSError, ValidationError) as error:
        raise BadPlugin(f"{path} cannot be used: {problems_of(error)}") from error


def fits(pattern: str, url: str) -> bool:
    """`*` is any text without a slash. The query counts only if the pattern has one."""
    url = url if "?" in pattern else url.partition("?")[0]
    return re.fullmatch("[^/]*".join(map(re.escape, pattern.split("*"))), url) is not None


def contains(whole: object, part: object) -> bool:
    """Whether all that is in the part is in the whole; a list has to be as long."""
    if isinstance(part, Mapping):
        return isinstance(whole, Mapping) and all(
            name in whole and contains(whole[name], value) for name, value in part.items()
        )
    if isinstance(part, list):
        if not isinstance(whole, list) or len(whole) != len(part):
            return False
        return all(contains(one, wanted) for one, wanted in zip(whole, part, strict=True))
    return whole == part


def decoded(body: bytes) -> object:
    """A JSON object or list, else the text."""
    text = body.decode(errors="replace")
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict | list) else text

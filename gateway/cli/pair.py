"""`exogate pair list|approve|deny|block|unblock|revoke`."""

import json
from collections.abc import Mapping
from typing import Any

import click

from gateway.cli.context import CliContext
from gateway.cli.link import linked
from gateway.domain.errors import BadSessionKey
from gateway.domain.ids import decode_part, encode_part
from gateway.host.terminal import one_line

STATES = {
    "asked": "waiting",
    "paired": "approved",
    "denied": "denied",
    "revoked": "approval revoked",
    "unblocked": "unblocked",
}


@click.group()
def pair() -> None:
    """Approve or block people in direct chats."""


@pair.command("list")
@click.option("--channel")
@click.pass_obj
def list_people(context: CliContext, channel: str | None) -> None:
    """List people who wait, then people approved or denied."""
    with linked(context) as link:
        told = link.call("pair.list", channel=channel)
    if context.json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    for one in told["pairings"]:
        click.echo(_line(one))
    if not told["pairings"]:
        click.echo("no pairing requests, no approved people", err=True)


@pair.command()
@click.argument("code")
@click.option("--owner", is_flag=True, help="May decide about others, by /pair in the chat.")
@click.pass_obj
def approve(context: CliContext, code: str, *, owner: bool) -> None:
    """Approve the person with that code. The first person of an account owns it."""
    with linked(context) as link:
        _tell(context, link.call("pair.approve", code=code, owner=owner))


@pair.command()
@click.argument("code", required=False)
@click.option("--channel", help="With --person: of that channel.")
@click.option("--account", default="default", show_default=True)
@click.option("--person", help="Their id, as `pair list` shows it.")
@click.pass_obj
def deny(
    context: CliContext, code: str | None, channel: str | None, account: str, person: str | None
) -> None:
    """Deny a person, by CODE or by --channel and --person. An approved person is a stranger again."""
    if (code is None) == (person is None) or (person is None) != (channel is None):
        raise click.UsageError("give either CODE, or --channel and --person")
    who = {"code": code} if code else {"channel": channel, "account": account, "person": person}
    with linked(context) as link:
        _tell(context, link.call("pair.deny", **who))


class _WhoType(click.ParamType[Mapping[str, str]]):
    name = "CHANNEL:ACCOUNT:PERSON"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Mapping[str, str]:
        """Percent-encoded as in a session key, or as it is: then the person is what is left."""
        parts = str(value).split(":", 2)
        if len(parts) != 3 or not all(parts):
            self.fail(f"write CHANNEL:ACCOUNT:PERSON, as `pair list` shows it, not {value!r}")
        return dict(zip(("channel", "account", "person"), map(_decoded, parts), strict=True))


def _decoded(part: str) -> str:
    try:
        return decode_part(part)
    except BadSessionKey:
        return part


WHO = _WhoType()


@pair.command()
@click.argument("who", metavar="ID", type=WHO)
@click.pass_obj
def block(context: CliContext, who: Mapping[str, str]) -> None:
    """Block a person, known or not. ID is CHANNEL:ACCOUNT:PERSON."""
    with linked(context) as link:
        _tell(context, link.call("pair.block", **who))


@pair.command()
@click.argument("who", metavar="ID", type=WHO)
@click.pass_obj
def unblock(context: CliContext, who: Mapping[str, str]) -> None:
    """Let a blocked or denied person ask again. ID is CHANNEL:ACCOUNT:PERSON."""
    with linked(context) as link:
        _tell(context, link.call("pair.unblock", **who))


@pair.command()
@click.argument("who", metavar="ID", type=WHO)
@click.pass_obj
def revoke(context: CliContext, who: Mapping[str, str]) -> None:
    """Revoke the approval of a person. ID is CHANNEL:ACCOUNT:PERSON."""
    with linked(context) as link:
        _tell(context, link.call("pair.revoke", **who))


def _tell(context: CliContext, one: Mapping[str, Any]) -> None:
    click.echo(json.dumps(one, ensure_ascii=False) if context.json else _line(one))


def _line(one: Mapping[str, Any]) -> str:
    name = f" ({one['name']})" if one.get("name") else ""
    state = STATES[one["state"]] + (", owner" if one.get("owner") else "")
    who = ":".join(encode_part(one[part]) for part in ("channel", "account", "person"))
    return one_line(f"{who}{name}  {state}")

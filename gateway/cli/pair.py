"""`exogate pair`: approves and blocks people in direct chats."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from gateway.cli.command import CliContext, ParsedType
from gateway.cli.link import ask
from gateway.cli.verbs import table
from gateway.domain.errors import BadSessionKey
from gateway.domain.ids import decode_part, encode_part

STATES = {"asked": "waiting", "paired": "approved", "revoked": "approval revoked"}
PARTS = ("channel", "account", "person")


@click.group()
def pair() -> None: ...


@pair.command("list")
@click.option("--channel")
@click.pass_obj
def list_people(context: CliContext, channel: str | None) -> None:
    result = ask(context, "pair.list", {"channel": channel})
    people = result["pairings"]
    context.print_result(result, *(_table(people) if people else ()))
    if not (people or context.json):
        click.echo("no pairing requests, no approved people", err=True)


@pair.command()
@click.argument("code")
@click.option("--owner", is_flag=True, help="Allow them to approve others with /pair in the chat.")
@click.pass_obj
def approve(context: CliContext, code: str, *, owner: bool) -> None:
    _do(context, "pair.approve", {"code": code, "owner": owner})


@pair.command()
@click.argument("code", required=False)
@click.option("--channel", help="The channel of --person.")
@click.option("--account", default="default", show_default=True)
@click.option("--person", help="The id of the person, as `pair list` shows it.")
@click.pass_obj
def deny(
    context: CliContext, code: str | None, channel: str | None, account: str, person: str | None
) -> None:
    if (code is None) == (person is None) or (person is None) != (channel is None):
        raise click.UsageError("give either CODE, or --channel and --person")
    who = {"code": code} if code else {"channel": channel, "account": account, "person": person}
    _do(context, "pair.deny", who)


def _parse_person(text: str) -> Mapping[str, str]:
    """Parses CHANNEL:ACCOUNT:PERSON. Each part is plain text, or percent-encoded as in a session key. Raises ValueError."""
    parts = text.split(":", 2)
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"write CHANNEL:ACCOUNT:PERSON, as `pair list` shows it, not {text!r}")
    return dict(zip(PARTS, map(_decoded, parts), strict=True))


def _decoded(part: str) -> str:
    try:
        return decode_part(part)
    except BadSessionKey:
        return part


PERSON = ParsedType("CHANNEL:ACCOUNT:PERSON", _parse_person)


def _add_verb(name: str) -> click.Command:
    """Adds a verb that takes only a person."""

    @click.argument("who", metavar="ID", type=PERSON)
    @click.pass_obj
    def verb(context: CliContext, who: Mapping[str, str]) -> None:
        _do(context, f"pair.{name}", who)

    return pair.command(name)(verb)


for _name in ("block", "unblock", "revoke"):
    _add_verb(_name)


def _do(context: CliContext, method: str, params: Mapping[str, object]) -> None:
    one = ask(context, method, params)
    context.print_result(one, *_table([one]))


def _table(people: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lists people by the ids that the verbs take."""
    rows = [
        {
            "id": ":".join(encode_part(one[part]) for part in PARTS),
            "name": one.get("name"),
            "state": STATES.get(one["state"], one["state"])
            + (", owner" if one.get("owner") else ""),
        }
        for one in people
    ]
    return table(rows, ("id", "name", "state"))

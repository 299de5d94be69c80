"""Who may talk, as a test says; and commands that are only counted."""

from dataclasses import dataclass, field

from anyio.lowlevel import checkpoint

from gateway.channels.access import Command, TurnForAgent, Verdict
from gateway.channels.adapters import Incoming, Sender
from gateway.domain.channels import ChannelDef, Pairing


def incoming(text: str = "hi", platform_id: str = "1", *, sender: str = "ann") -> Incoming:
    """A direct message; the peer is whoever says it."""
    return Incoming(sender, Sender(sender), text, platform_id)


@dataclass
class FakeDoor:
    """Whoever is not named may talk."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)  # by the sender's id
    judged: list[Incoming] = field(default_factory=list)
    asked_for: list[Pairing] = field(default_factory=list)

    async def judge(self, channel: ChannelDef, message: Incoming) -> Verdict:
        await checkpoint()
        self.judged.append(message)
        return self.verdicts.get(message.sender.id, TurnForAgent())

    def report_request(self, asked: Pairing) -> None:
        self.asked_for.append(asked)


@dataclass
class FakeCommands:
    run_so_far: list[tuple[str, str, str]] = field(default_factory=list)

    async def run(self, command: Command, channel: ChannelDef, message: Incoming) -> str:
        self.run_so_far.append((command.name, command.argument, message.sender.id))
        await checkpoint()
        return f"done: {command.name}"

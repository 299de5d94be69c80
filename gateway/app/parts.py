"""What is opened or made before the rooms are wired."""

from dataclasses import dataclass

from pydantic_core import from_json

from gateway.agent.aside import Aside
from gateway.agent.plans import Plans
from gateway.app.rules import Rulebook
from gateway.budgets.metering import Meter
from gateway.channels.pairing import PairingBook
from gateway.control.bus import Bus
from gateway.control.policy import DecisionTrees
from gateway.domain.ports import Clock, Ids, Model, Stores
from gateway.memory.souls import Souls
from gateway.sandbox.plugins import Plugins
from gateway.tools.gate import ToolGate


@dataclass(frozen=True, slots=True)
class Parts:
    """Of one gateway."""

    version: str
    clock: Clock
    bus: Bus
    ids: Ids
    stores: Stores
    souls: Souls
    plans: Plans
    decisions: DecisionTrees
    model: Model
    plugins: Plugins
    gate: ToolGate
    rules: Rulebook
    meter: Meter
    pairing: PairingBook

    def aside(self) -> Aside:
        """For turns beside the lanes."""
        return Aside(
            self.model,
            self.gate,
            self.plans,
            self.decisions,
            lambda: self.rules.current,
            self.clock,
            from_json,
            self.bus.publish,
            self.meter.cost_usd,
        )

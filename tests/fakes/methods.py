"""Every method of the gateway, to be looked at: nothing stands behind them, and none can be called."""

from gateway.web.methods.audit import AuditMethods
from gateway.web.methods.budget import BudgetMethods
from gateway.web.methods.channels import ChannelMethods
from gateway.web.methods.chat import ChatMethods
from gateway.web.methods.events import EventMethods
from gateway.web.methods.insight import InsightMethods
from gateway.web.methods.memory import MemoryMethods
from gateway.web.methods.pairing import PairMethods
from gateway.web.methods.providers import ProviderMethods
from gateway.web.methods.replays import ReplayMethods
from gateway.web.methods.rules import RuleMethods
from gateway.web.methods.sessions import SessionMethods
from gateway.web.methods.settings import SettingsMethods
from gateway.web.methods.upkeep import UpkeepMethods

METHODS = (
    *AuditMethods.__new__(AuditMethods).all(),
    *BudgetMethods.__new__(BudgetMethods).all(),
    *ChannelMethods.__new__(ChannelMethods).all(),
    *ChatMethods.__new__(ChatMethods).all(),
    *EventMethods.__new__(EventMethods).all(),
    *InsightMethods.__new__(InsightMethods).all(),
    *MemoryMethods.__new__(MemoryMethods).all(),
    *PairMethods.__new__(PairMethods).all(),
    *ProviderMethods.__new__(ProviderMethods).all(),
    *ReplayMethods.__new__(ReplayMethods).all(),
    *RuleMethods.__new__(RuleMethods).all(),
    *SessionMethods.__new__(SessionMethods).all(),
    *SettingsMethods.__new__(SettingsMethods).all(),
    *UpkeepMethods.__new__(UpkeepMethods).all(),
)

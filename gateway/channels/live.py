"""A channel at work: what its transports share, and the calls that its recipes describe."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.channels.adapters import CallRecipe
from gateway.channels.answers import Arrived, TryAgain, read_answer
from gateway.channels.progress import Health
from gateway.channels.recipes import Values, fill_call
from gateway.channels.translating import WayIn
from gateway.domain.channels import ChannelDef, ChannelMemo
from gateway.domain.dialling import Dialler
from gateway.domain.errors import GatewayError
from gateway.domain.ports import ChannelStore, Clock, Fetch, Fetched, FetchGrant

Jitter = Callable[[], float]  # evenly between 0 and 1


class LineLost(GatewayError):
    """A connection to a platform ended, or was refused; `is_final`: trying again cannot help."""

    code = "line_lost"
    retryable = True

    def __init__(
        self, why: str, *, retry_after_s: float | None = None, is_final: bool = False
    ) -> None:
        super().__init__(why)
        self.retry_after_s, self.is_final = retry_after_s, is_final


class LineRenewed(LineLost):
    """The platform asked for another connection: nothing is wrong."""


@dataclass(frozen=True, slots=True)
class LiveChannel:
    """`leave` holds the plugin's grants and all secrets of the channel: for recipes alone."""

    way_in: WayIn
    leave: FetchGrant
    fetch: Fetch
    dialler: Dialler
    memos: ChannelStore
    health: Health
    clock: Clock
    jitter: Jitter

    @property
    def channel(self) -> ChannelDef:
        return self.way_in.channel

    def kept(self, text: str) -> ChannelMemo:
        """What its socket keeps."""
        return ChannelMemo(self.channel.name, self.channel.account, "socket", text)

    async def read_memos(self) -> str:
        """Takes up what was committed last; gives what its socket kept. Raises StoreUnavailable."""
        memos = await self.memos.read_memos(self.channel.name, self.channel.account)
        found = {memo.slot: memo.text for memo in memos}
        self.way_in.state = found.get("adapter", "")
        return found.get("socket", "")

    def values(self) -> Values:
        config = self.channel.config
        return Values(
            api_base=self.way_in.api_base,
            webhook_url=webhook_url(config.get("public_url"), self.channel.name),
            state=self.way_in.state,
            config=config,
        )

    async def ask(self, recipe: CallRecipe, values: Values, timeout_s: float = 30.0) -> Fetched:
        """Raises LineLost if the platform says no, RecipeUnfilled, Denied, HttpFailed."""
        fetched = await self.fetch.fetch(fill_call(recipe, values, timeout_s), self.leave)
        said = read_answer(self.way_in.adapter.description.outbound, fetched)
        if not isinstance(said, Arrived):
            wait_s = said.after_s if isinstance(said, TryAgain) else None
            raise LineLost(said.why, retry_after_s=wait_s)
        return fetched


def webhook_url(public: object, name: str) -> str | None:
    return f"{public.rstrip('/')}/webhooks/{name}" if isinstance(public, str) else None

"""What every walk stands on."""

import pytest
from blockbuster import BlockBuster


@pytest.fixture(autouse=True)
def the_start_may_look_for_files(nothing_blocks_the_loop: BlockBuster) -> None:
    """Before it listens, the gateway asks once where the shipped souls are; nobody waits for it."""
    nothing_blocks_the_loop.functions["os.stat"].can_block_in("gateway/app.py", "shipped_folder")

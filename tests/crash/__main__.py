"""The long form: python -m tests.crash --kills 30 --messages 2000"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import get_args

import anyio

from gateway.domain.inbox import QueueMode
from tests.crash.harness import Plan, run
from tests.crash.stages import STAGES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--messages", type=int, default=2_000, help="accepted ones, at least")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is left to chance")
    parser.add_argument("--mode", choices=get_args(QueueMode), default="followup")
    parser.add_argument("--folder", type=Path, help="keep configuration, data and log here")
    args = parser.parse_args()
    queue = f'[queue]\nmode = "{args.mode}"'
    plan = Plan(args.kills, args.messages, args.seed, queue)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = anyio.run(partial(run, plan, folder), backend_options={"use_uvloop": True})
    for stage, what in STAGES.items():
        sys.stdout.write(f"{stage:>6} x {outcome.kills[stage]:<3} {what}\n")
    sys.stdout.write(outcome.report() + "\n")
    return 0 if outcome.is_valid else 1


if __name__ == "__main__":
    sys.exit(main())

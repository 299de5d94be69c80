"""After the start the collector looks less often, and not at what stays."""

import gc

from gateway.host.garbage import YOUNG, settle


def test_what_is_there_is_frozen_and_looks_are_rare() -> None:
    before = gc.get_threshold()
    try:
        settle()
        assert gc.get_threshold()[0] == YOUNG
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)

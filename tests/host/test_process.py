"""This process: its limit of open files, and how often it looks for garbage."""

import gc
import resource

from gateway.host.process import YOUNG, allow_open_files, settle


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


def test_the_soft_limit_becomes_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

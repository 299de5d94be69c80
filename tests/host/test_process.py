"""This process: its streams, its limit of open files, and how often it looks for garbage."""

import gc
import logging
import os
import resource
import select
import time

from gateway.host.logs import MOST_WAITING_BYTES, detach, logging_to
from gateway.host.process import YOUNG, allow_open_files, settle


def test_a_reader_that_is_stuck_costs_lines_of_the_log_and_no_time() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "w") as pipe:
        target = detach(pipe)
        began = time.monotonic()
        with logging_to(target, "info", "json"):
            for _ in range(100):
                logging.getLogger("test").info("x" * (MOST_WAITING_BYTES // 50))
        assert time.monotonic() - began < 5
        assert select.select([reading], [], [], 5)[0]
        assert os.read(reading, 10_000).startswith(b'{"at": "')


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

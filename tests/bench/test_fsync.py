from bench.fsync import account

READ = r'7 read(21<socket:[2]>, "\201\376\0\254\0\0\0\0{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"chat.send\"'
SYNC = "8 fdatasync(15</data/store.db-wal>) = 0"
ANSWER = r'7 write(21<socket:[2]>, "\201~\0\332{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"message_id\":\"m_1'


def test_an_accept_after_an_fsync_holds() -> None:
    told = account([READ, SYNC, ANSWER, SYNC, READ, SYNC, ANSWER])

    assert (told.accepts, told.unsynced, told.holds) == (2, 0, True)
    assert told.syncs == {"store.db-wal": 3}


def test_an_accept_before_its_fsync_does_not_hold() -> None:
    told = account([READ, SYNC, ANSWER, SYNC, READ, ANSWER, SYNC])

    assert (told.accepts, told.unsynced, told.holds) == (2, 1, False)


def test_an_fsync_that_was_interrupted_counts_when_it_has_come_back() -> None:
    begun = "8 fdatasync(15</data/store.db-wal> <unfinished ...>"
    back = "8 <... fdatasync resumed>) = 0"

    assert account([READ, begun, ANSWER, back]).unsynced == 1
    assert account([READ, begun, back, ANSWER]).unsynced == 0


def test_a_failed_fsync_is_none() -> None:
    failed = "8 fdatasync(15</data/store.db-wal>) = -1 EIO (Input/output error)"

    assert account([READ, failed, ANSWER]).unsynced == 1


def test_a_trace_without_accepts_shows_nothing() -> None:
    assert not account([SYNC]).holds

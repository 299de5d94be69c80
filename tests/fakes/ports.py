"""Fakes of a part of a port: the rest comes from the port that they wrap, or must not be called."""

from typing import Any


class _Part:
    def __getattr__(self, name: str) -> Any:
        inner = vars(self).get("_inner", vars(self).get("inner"))
        if name.startswith("__"):
            raise AttributeError(name)
        assert inner is not None, f"{type(self).__name__} has no {name}"
        return getattr(inner, name)


class PartOfInbox(_Part):
    accept: Any
    begin: Any
    finish: Any
    unfinished: Any
    find_run: Any
    run_history: Any


class PartOfJournal(_Part):
    append: Any
    read: Any
    forgive: Any
    claim_notices: Any
    rule_state: Any


class PartOfLedger(_Part):
    begin: Any
    reserve: Any
    settle_soon: Any
    settle: Any
    resync: Any
    unsettled: Any
    tallies: Any
    models: Any
    records: Any


class PartOfToolStore(_Part):
    get: Any
    set: Any
    delete: Any
    list: Any
    keep_original: Any
    read_original: Any
    forget_originals: Any


class PartOfSessionStore(_Part):
    find_session: Any
    list_sessions: Any
    count_sessions: Any
    close_session: Any
    path: Any
    node: Any
    tree: Any
    move_head: Any
    append_summary: Any
    start_over: Any
    label_node: Any
    checkpoint: Any
    import_nodes: Any
    erase: Any
    read_settings: Any
    write_settings: Any


class PartOfFactStore(_Part):
    add_facts: Any
    knows: Any
    select_facts: Any
    facts_matching: Any
    facts_around: Any
    origin_of: Any
    erase_facts: Any
    unscanned: Any
    next_unscanned: Any
    mark_scanned: Any
    queue_for_model: Any
    queued_for_model: Any
    next_queued: Any
    mark_extracted: Any
    may_find: Any
    find_turns: Any
    unindexed: Any
    index_turns: Any


class PartOfChannelStore(_Part):
    knows: Any
    record: Any
    unread: Any
    drop_unread: Any
    count_unread: Any
    forget_received: Any
    read_memos: Any
    write_memos: Any
    find_pairing: Any
    may_ask: Any
    decide_pairing: Any
    remove_pairing: Any
    block: Any
    list_pairings: Any


class PartOfStoreCare(_Part):
    probe: Any
    sweep: Any
    expire: Any
    close: Any


class PartOfAudit(_Part):
    append_soon: Any
    newest: Any
    after: Any

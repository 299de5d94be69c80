//! A vault of Markdown notes and threads of thought, kept in the store namespace `notes`.
const std = @import("std");
const exogate = @import("exogate");
const finding = @import("finding");

pub const describe =
    \\{"name": "notes", "version": "1.0.0", "kind": "tool",
    \\ "description": "A vault of Markdown notes, and threads of thoughts, decisions, research and insights.",
    \\ "tools": [
    \\  {"name": "vault_read", "category": "vault",
    \\   "description": "Reads a note of the vault.",
    \\   "parameters": {"type": "object",
    \\     "properties": {"path": {"type": "string", "description": "the note's path, for example projects/garden.md"}},
    \\     "required": ["path"], "additionalProperties": false},
    \\   "annotations": {"title": "Read a note", "readOnlyHint": true, "idempotentHint": true, "openWorldHint": false}},
    \\  {"name": "vault_write", "category": "vault",
    \\   "description": "Writes a Markdown note into the vault: a new one, over an old one, or at the end of it. Begin a note with a heading, which is its title.",
    \\   "parameters": {"type": "object",
    \\     "properties": {
    \\       "path": {"type": "string", "description": "the note's path, for example projects/garden.md"},
    \\       "content": {"type": "string", "description": "Markdown; a note has at most 64 KiB"},
    \\       "mode": {"type": "string", "enum": ["overwrite", "append"], "description": "overwrite if absent"}},
    \\     "required": ["path", "content"], "additionalProperties": false},
    \\   "annotations": {"title": "Write a note", "readOnlyHint": false, "destructiveHint": true, "idempotentHint": false, "openWorldHint": false}},
    \\  {"name": "vault_list", "category": "vault",
    \\   "description": "Lists the paths of the notes in the vault.",
    \\   "parameters": {"type": "object",
    \\     "properties": {
    \\       "prefix": {"type": "string", "description": "only paths that begin so, for example projects/"},
    \\       "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "how many at most; 200 if absent"}},
    \\     "additionalProperties": false},
    \\   "annotations": {"title": "List notes", "readOnlyHint": true, "idempotentHint": true, "openWorldHint": false}},
    \\  {"name": "vault_move", "category": "vault",
    \\   "description": "Moves or renames a note. It never replaces another one.",
    \\   "parameters": {"type": "object",
    \\     "properties": {
    \\       "from": {"type": "string", "description": "the path that it has"},
    \\       "to": {"type": "string", "description": "the path that it gets"}},
    \\     "required": ["from", "to"], "additionalProperties": false},
    \\   "annotations": {"title": "Move a note", "readOnlyHint": false, "destructiveHint": false, "idempotentHint": false, "openWorldHint": false}},
    \\  {"name": "vault_create_index", "category": "vault",
    \\   "description": "Writes a note index.md with links to all notes of a folder and below, by folder and title. Doing it again brings the index up to date.",
    \\   "parameters": {"type": "object",
    \\     "properties": {"prefix": {"type": "string", "description": "the folder, for example projects; the whole vault if absent"}},
    \\     "additionalProperties": false},
    \\   "annotations": {"title": "Index notes", "readOnlyHint": false, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false}},
    \\  {"name": "vault_search", "category": "vault",
    \\   "description": "Searches the notes for words, in any order and case; words in double quotes have to stand together. The best hits come first.",
    \\   "parameters": {"type": "object",
    \\     "properties": {
    \\       "query": {"type": "string", "description": "the words to look for"},
    \\       "limit": {"type": "integer", "minimum": 1, "maximum": 50, "description": "how many hits at most; 10 if absent"}},
    \\     "required": ["query"], "additionalProperties": false},
    \\   "annotations": {"title": "Search notes", "readOnlyHint": true, "idempotentHint": true, "openWorldHint": false}},
    \\  {"name": "thread_read", "category": "thread",
    \\   "description": "Reads the last entries of a thread, oldest of them first.",
    \\   "parameters": {"type": "object",
    \\     "properties": {
    \\       "thread_id": {"type": "string", "description": "the thread's name, for example garden-plan"},
    \\       "limit": {"type": "integer", "minimum": 1, "maximum": 200, "description": "how many entries at most; 20 if absent"}},
    \\     "required": ["thread_id"], "additionalProperties": false},
    \\   "annotations": {"title": "Read a thread", "readOnlyHint": true, "idempotentHint": true, "openWorldHint": false}},
    \\  {"name": "thread_write", "category": "thread",
    \\   "description": "Adds an entry to a thread; a thread begins with its first entry.",
    \\   "parameters": {"type": "object",
    \\     "properties": {
    \\       "thread_id": {"type": "string", "description": "the thread's name, for example garden-plan"},
    \\       "content": {"type": "string", "description": "the entry; at most 16 KiB"},
    \\       "author": {"type": "string", "enum": ["user", "claude", "oracle", "librarian"], "description": "whose entry it is"},
    \\       "type": {"type": "string", "enum": ["thought", "decision", "research", "insight"], "description": "what kind of entry it is"}},
    \\     "required": ["thread_id", "content", "author", "type"], "additionalProperties": false},
    \\   "annotations": {"title": "Write to a thread", "readOnlyHint": false, "destructiveHint": false, "idempotentHint": false, "openWorldHint": false}}]}
;

comptime {
    exogate.serve(@This());
}

const space = "notes";
const note_mark = "note|";
const thread_mark = "thread|";
const index_mark = "<!-- written by vault_create_index; run it again to bring it up to date -->";
const most_path = 200;
const most_note = 64 * 1024;
const most_entry = 16 * 1024;
const most_segment = 60 * 1024; // of a thread: then the next key begins
const most_read = 900; // values in one call
const allocator = exogate.allocator;
const store = exogate.store;

const Tool = enum { vault_read, vault_write, vault_list, vault_move, vault_create_index, vault_search, thread_read, thread_write };

pub fn call(given: exogate.Call) exogate.Failed![]const u8 {
    return switch (std.meta.stringToEnum(Tool, given.tool) orelse return given.unknown()) {
        .vault_read => read(given),
        .vault_write => write(given),
        .vault_list => list(given),
        .vault_move => move(given),
        .vault_create_index => createIndex(given),
        .vault_search => search(given),
        .thread_read => threadRead(given),
        .thread_write => threadWrite(given),
    };
}

const Source = struct { id: []const u8, title: []const u8, url: []const u8 };

// --------------------------------------------------------------------------------------- paths
/// A path as notes are kept by: checked, without a slash at its beginning.
fn path(given: exogate.Call, name: []const u8) exogate.Failed![]const u8 {
    const asked = std.mem.trim(u8, try given.text(name), " \t\r\n");
    const whole = std.mem.trimStart(u8, asked, "/");
    if (whole.len == 0) return exogate.refuse("{s} is empty; a path is for example projects/garden.md.", .{name});
    if (whole.len > most_path) {
        return exogate.refuse("{s} has {d} bytes; a path has {d} at most.", .{ name, whole.len, most_path });
    }
    for (whole) |byte| {
        if (byte < 0x20 or byte == 0x7F or byte == '\\') {
            return exogate.refuse("{s} may have no control characters and no backslashes.", .{name});
        }
    }
    var parts = std.mem.splitScalar(u8, whole, '/');
    while (parts.next()) |part| {
        if (part.len == 0 or std.mem.eql(u8, part, ".") or std.mem.eql(u8, part, "..")) {
            return exogate.refuse("{s} may have no empty part, no . and no .. in it: {s}", .{ name, whole });
        }
    }
    return whole;
}

fn prefix(given: exogate.Call) exogate.Failed![]const u8 {
    const asked = try given.optionalText("prefix") orelse "";
    return std.mem.trimStart(u8, std.mem.trim(u8, asked, " \t\r\n"), "/");
}

fn keyOf(note: []const u8) exogate.Failed![]const u8 {
    return exogate.print("{s}{s}", .{ note_mark, note });
}

/// The paths of notes that begin so, in order.
fn notesUnder(start: []const u8) exogate.Failed![]const []const u8 {
    const keys = try store.list(space, try keyOf(start));
    const paths = try allocator.alloc([]const u8, keys.len);
    for (keys, paths) |key, *one| one.* = key.string[note_mark.len..];
    return paths;
}

fn contentOf(note: []const u8) exogate.Failed![]const u8 {
    return try store.get(space, try keyOf(note)) orelse missing(note);
}

/// Says so, and which notes may have been meant.
fn missing(note: []const u8) exogate.Failed {
    var alike: std.ArrayList(u8) = .empty;
    const wanted = try finding.folded(stem(note));
    var found: usize = 0;
    for (try notesUnder("")) |other| {
        if (found == 5) break;
        if (std.mem.indexOf(u8, try finding.folded(other), wanted) == null) continue;
        try alike.print(allocator, "{s}{s}", .{ if (found > 0) ", " else "", other });
        found += 1;
    }
    if (found == 0) return exogate.refuse("There is no note {s}. vault_list tells which there are.", .{note});
    return exogate.refuse("There is no note {s}. There is: {s}.", .{ note, alike.items });
}

/// The last part of a path without its ending.
fn stem(note: []const u8) []const u8 {
    const name = note[if (std.mem.lastIndexOfScalar(u8, note, '/')) |slash| slash + 1 else 0..];
    const point = std.mem.lastIndexOfScalar(u8, name, '.') orelse return name;
    return if (point == 0) name else name[0..point];
}

/// Its first heading, else its name.
fn titleOf(note: []const u8, content: []const u8) []const u8 {
    var lines = std.mem.splitScalar(u8, content, '\n');
    while (lines.next()) |line| {
        if (!std.mem.startsWith(u8, line, "#")) continue;
        const title = std.mem.trim(u8, std.mem.trimStart(u8, line, "#"), " \t\r");
        if (title.len > 0) return title;
    }
    return stem(note);
}

fn sourceOf(note: []const u8, title: []const u8) exogate.Failed!Source {
    return .{ .id = note, .title = title, .url = try finding.url(note) };
}

// --------------------------------------------------------------------------------------- notes
fn read(given: exogate.Call) exogate.Failed![]const u8 {
    const note = try path(given, "path");
    const content = try contentOf(note);
    const title = titleOf(note, content);
    return exogate.stringify(.{
        .path = note,
        .title = title,
        .content = content,
        .sources = [_]Source{try sourceOf(note, title)},
    });
}

fn write(given: exogate.Call) exogate.Failed![]const u8 {
    const note = try path(given, "path");
    const content = try given.text("content");
    const mode = try given.optionalText("mode") orelse "overwrite";
    const appends = std.mem.eql(u8, mode, "append");
    if (!appends and !std.mem.eql(u8, mode, "overwrite")) {
        return exogate.refuse("mode has to be overwrite or append.", .{});
    }
    const old = try store.get(space, try keyOf(note));
    const before = if (appends) old orelse "" else "";
    const gap = if (before.len > 0 and !std.mem.endsWith(u8, before, "\n")) "\n" else "";
    const new = try std.mem.concat(allocator, u8, &.{ before, gap, content });
    try put(note, new);
    return exogate.stringify(.{ .path = note, .created = old == null, .bytes = new.len });
}

fn put(note: []const u8, content: []const u8) exogate.Failed!void {
    if (content.len > most_note) {
        return exogate.refuse("The note {s} would have {d} bytes; it may have {d} at most. Write the rest into another note.", .{ note, content.len, most_note });
    }
    try store.set(space, try keyOf(note), content);
}

fn list(given: exogate.Call) exogate.Failed![]const u8 {
    const paths = try notesUnder(try prefix(given));
    const shown = @min(paths.len, try given.count("limit", 200, 1000));
    return exogate.stringify(.{ .notes = paths[0..shown], .total = paths.len });
}

fn move(given: exogate.Call) exogate.Failed![]const u8 {
    const from, const to = .{ try path(given, "from"), try path(given, "to") };
    const content = try contentOf(from);
    if (try store.get(space, try keyOf(to)) != null) {
        return exogate.refuse("There is a note {s} already; choose another path.", .{to});
    }
    try store.set(space, try keyOf(to), content);
    try store.delete(space, try keyOf(from));
    return exogate.stringify(.{ .from = from, .to = to });
}

fn createIndex(given: exogate.Call) exogate.Failed![]const u8 {
    const folder = std.mem.trimEnd(u8, try prefix(given), "/");
    const under = if (folder.len > 0) try exogate.print("{s}/", .{folder}) else "";
    const note = try exogate.print("{s}index.md", .{under});
    const old = try store.get(space, try keyOf(note));
    if (old != null and std.mem.indexOf(u8, old.?, index_mark) == null) {
        return exogate.refuse("The note {s} was not written by vault_create_index and is left as it is; move it first.", .{note});
    }
    var text: std.ArrayList(u8) = .empty;
    try text.print(allocator, "# Index of {s}\n\n{s}\n", .{ if (folder.len > 0) folder else "the vault", index_mark });
    var section: ?[]const u8 = null;
    var count: usize = 0;
    for (try notesUnder(under)) |other| {
        if (std.mem.eql(u8, other, note)) continue;
        const slash = std.mem.lastIndexOfScalar(u8, other, '/');
        const parent = if (slash) |at| other[0..at] else "";
        if (section == null or !std.mem.eql(u8, section.?, parent)) {
            section = parent;
            try text.print(allocator, "\n## {s}/\n\n", .{parent});
        }
        const title = if (count < most_read) titleOf(other, try store.get(space, try keyOf(other)) orelse "") else stem(other);
        const start = other[under.len..];
        const is_plain = std.mem.indexOfAny(u8, start, " ()<>") == null;
        const link = if (is_plain) start else try exogate.print("<{s}>", .{start});
        try text.print(allocator, "- [{s}]({s})\n", .{ try unbracketed(title), link });
        count += 1;
    }
    if (count == 0) return exogate.refuse("There are no notes in {s} to make an index of.", .{if (folder.len > 0) folder else "the vault"});
    try put(note, text.items);
    return exogate.stringify(.{ .path = note, .notes = count });
}

/// As the text of a link may be.
fn unbracketed(title: []const u8) error{OutOfMemory}![]const u8 {
    const copy = try allocator.dupe(u8, title);
    for (copy) |*byte| {
        if (byte.* == '[') byte.* = '(';
        if (byte.* == ']') byte.* = ')';
    }
    return copy;
}

// -------------------------------------------------------------------------------------- search
const Hit = struct { path: []const u8, title: []const u8, snippet: []const u8, score: u64 };

fn search(given: exogate.Call) exogate.Failed![]const u8 {
    const query = try given.text("query");
    const terms = try finding.terms(query);
    const limit = try given.count("limit", 10, 50);
    var hits: std.ArrayList(Hit) = .empty;
    var searched: usize = 0;
    for (try notesUnder("")) |note| {
        if (searched == most_read) break;
        searched += 1;
        const content = try store.get(space, try keyOf(note)) orelse continue;
        if (try hitOf(note, content, terms)) |hit| try hits.append(allocator, hit);
    }
    std.mem.sort(Hit, hits.items, {}, isBetter);
    const best = hits.items[0..@min(limit, hits.items.len)];
    const sources = try allocator.alloc(Source, best.len);
    for (best, sources) |hit, *source| source.* = try sourceOf(hit.path, hit.title);
    return exogate.stringify(.{
        .query = query,
        .results = best,
        .total = hits.items.len,
        .searched = searched,
        .sources = sources,
    });
}

fn isBetter(_: void, a: Hit, b: Hit) bool {
    return if (a.score == b.score) std.mem.lessThan(u8, a.path, b.path) else a.score > b.score;
}

/// Null if none of the terms is in it. Notes with more of the terms come first, then those that
/// have them in the title or path, then those that have them more often.
fn hitOf(note: []const u8, content: []const u8, terms: []const []const u8) exogate.Failed!?Hit {
    const before = exogate.mark();
    const title = titleOf(note, content);
    const body, const name, const place = .{ try finding.folded(content), try finding.folded(title), try finding.folded(note) };
    var found: u64, var score: u64, var first: ?usize = .{ 0, 0, null };
    for (terms) |term| {
        const in_body = finding.count(body, term, 10);
        const in_title = finding.count(name, term, 1);
        const in_path = finding.count(place, term, 1);
        if (in_body + in_title + in_path == 0) continue;
        found += 1;
        score += 20 * in_title + 10 * in_path + in_body;
        if (std.mem.indexOf(u8, body, term)) |at| first = @min(first orelse at, at);
    }
    exogate.release(before);
    if (found == 0) return null;
    return .{
        .path = note,
        .title = title,
        .snippet = try finding.snippet(content, first orelse 0, 240),
        .score = 1000 * found + score,
    };
}

// ------------------------------------------------------------------------------------- threads
const Author = enum { user, claude, oracle, librarian };
const Kind = enum { thought, decision, research, insight };

fn threadId(given: exogate.Call) exogate.Failed![]const u8 {
    const id = std.mem.trim(u8, try given.text("thread_id"), " \t\r\n");
    if (id.len == 0 or id.len > 100) return exogate.refuse("thread_id has to have 1 to 100 bytes.", .{});
    for (id) |byte| {
        if (byte < 0x20 or byte == 0x7F or byte == '|') {
            return exogate.refuse("thread_id may have no control characters and no | in it.", .{});
        }
    }
    return id;
}

/// A thread is kept in several values, each of entries a line.
fn segments(id: []const u8) exogate.Failed![]const exogate.Value {
    return store.list(space, try exogate.print("{s}{s}|", .{ thread_mark, id }));
}

fn entriesOf(key: []const u8) exogate.Failed![]const exogate.Value {
    const text = try store.get(space, key) orelse "";
    var entries: std.ArrayList(exogate.Value) = .empty;
    var lines = std.mem.tokenizeScalar(u8, text, '\n');
    while (lines.next()) |line| try entries.append(allocator, try exogate.parse(line));
    return entries.items;
}

fn numberOf(entry: exogate.Value) i64 {
    const number = exogate.objectOf(entry).get("number") orelse return 0;
    return if (number == .integer) number.integer else 0;
}

fn threadRead(given: exogate.Call) exogate.Failed![]const u8 {
    const id = try threadId(given);
    const limit = try given.count("limit", 20, 200);
    const keys = try segments(id);
    if (keys.len == 0) return noThread(id);
    var entries: std.ArrayList(exogate.Value) = .empty;
    var at = keys.len;
    while (at > 0 and entries.items.len < limit) {
        at -= 1;
        try entries.insertSlice(allocator, 0, try entriesOf(keys[at].string));
    }
    const shown = entries.items[entries.items.len -| limit..];
    const total = if (shown.len > 0) numberOf(shown[shown.len - 1]) else 0;
    return exogate.stringify(.{ .thread_id = id, .entries = shown, .total = total });
}

fn noThread(id: []const u8) exogate.Failed {
    var names: std.ArrayList(u8) = .empty;
    var last: []const u8 = "";
    for (try store.list(space, thread_mark)) |key| {
        const rest = key.string[thread_mark.len..];
        const name = rest[0 .. std.mem.lastIndexOfScalar(u8, rest, '|') orelse rest.len];
        if (std.mem.eql(u8, name, last)) continue;
        try names.print(allocator, "{s}{s}", .{ if (last.len > 0) ", " else "", name });
        last = name;
        if (names.items.len > 1000) break;
    }
    if (last.len == 0) return exogate.refuse("There is no thread {s}; there are none yet. thread_write begins one.", .{id});
    return exogate.refuse("There is no thread {s}. There is: {s}.", .{ id, names.items });
}

fn threadWrite(given: exogate.Call) exogate.Failed![]const u8 {
    const id = try threadId(given);
    const content = try given.text("content");
    const author = std.meta.stringToEnum(Author, try given.text("author")) orelse {
        return exogate.refuse("author has to be user, claude, oracle or librarian.", .{});
    };
    const kind = std.meta.stringToEnum(Kind, try given.text("type")) orelse {
        return exogate.refuse("type has to be thought, decision, research or insight.", .{});
    };
    if (content.len == 0) return exogate.refuse("The entry is empty.", .{});
    if (content.len > most_entry) {
        return exogate.refuse("The entry has {d} bytes; it may have {d} at most. Write a note and name it here.", .{ content.len, most_entry });
    }
    const keys = try segments(id);
    const last = if (keys.len > 0) keys[keys.len - 1].string else "";
    const old = if (keys.len > 0) try store.get(space, last) orelse "" else "";
    const before = if (keys.len > 0) try entriesOf(last) else &.{};
    const number = 1 + if (before.len > 0) numberOf(before[before.len - 1]) else 0;
    const entry = try exogate.stringify(.{ .number = number, .author = author, .type = kind, .content = content });
    const fits = keys.len > 0 and old.len + entry.len < most_segment;
    const key = if (fits) last else try exogate.print("{s}{s}|{d:0>6}", .{ thread_mark, id, keys.len + 1 });
    try store.set(space, key, if (fits) try exogate.print("{s}\n{s}", .{ old, entry }) else entry);
    return exogate.stringify(.{ .thread_id = id, .number = number });
}

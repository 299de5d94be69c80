//! Searches a folder of text that the operator named; the host reads it, piece by piece.
//!
//! The host function `folder` is asked {"op": "next", "cursor": TEXT or null, "path": PREFIX or
//! null} and gives {"files": [{"path", "text"}], "cursor": TEXT or null}; null ends it.
const std = @import("std");
const exogate = @import("exogate");
const finding = @import("finding");

pub const describe =
    \\{"name": "search_code", "version": "1.0.0", "kind": "tool",
    \\ "description": "Searches a folder of code or other text that the operator named.",
    \\ "tools": [{"name": "search_code", "category": "code",
    \\   "description": "Searches the files of a folder for words or names, in any order and case; words in double quotes have to stand together. Gives the best files first, with line numbers and the lines around the best hit.",
    \\   "parameters": {"type": "object",
    \\     "properties": {
    \\       "query": {"type": "string", "description": "the words or names to look for"},
    \\       "path": {"type": "string", "description": "only files whose path begins so, for example src/"},
    \\       "limit": {"type": "integer", "minimum": 1, "maximum": 50, "description": "how many files at most; 10 if absent"}},
    \\     "required": ["query"], "additionalProperties": false},
    \\   "annotations": {"title": "Search code", "readOnlyHint": true, "idempotentHint": true, "openWorldHint": false}}]}
;

comptime {
    exogate.serve(@This());
}

const most_batches = 900;
const most_lines = 10; // line numbers of one file that are told
const most_snippet = 600;
const allocator = exogate.allocator;

/// A hit has its own memory: that of the files is given back after each batch.
const Hit = struct {
    score: u64 = 0,
    matches: u32 = 0,
    line: u32 = 0,
    lines: [most_lines]u32 = undefined,
    path: [512]u8 = undefined,
    path_len: usize = 0,
    snippet: [most_snippet]u8 = undefined,
    snippet_len: usize = 0,
};

const Best = struct {
    hits: []Hit,
    count: usize = 0,

    /// Where a hit of this score goes; null if there are enough better ones.
    fn place(self: *Best, score: u64) ?*Hit {
        var at = self.count;
        while (at > 0 and self.hits[at - 1].score < score) at -= 1;
        if (at == self.hits.len) return null;
        if (self.count < self.hits.len) self.count += 1;
        std.mem.copyBackwards(Hit, self.hits[at + 1 .. self.count], self.hits[at .. self.count - 1]);
        self.hits[at] = .{ .score = score };
        return &self.hits[at];
    }
};

pub fn call(given: exogate.Call) exogate.Failed![]const u8 {
    if (!given.is("search_code")) return given.unknown();
    const query = try given.text("query");
    const prefix = cleaned(try given.optionalText("path") orelse "");
    const terms = try finding.terms(query);
    var best = Best{ .hits = try allocator.alloc(Hit, try given.count("limit", 10, 50)) };
    var progress = Progress{};
    while (!progress.is_over and progress.batches < most_batches) {
        const before = exogate.mark();
        defer exogate.release(before);
        try batch(&progress, prefix, terms, &best);
    }
    return results(query, best, progress);
}

/// As the folder's own paths begin; null for all of it.
fn cleaned(path: []const u8) ?[]const u8 {
    const trimmed = std.mem.trim(u8, path, " \t\r\n");
    const below = if (std.mem.startsWith(u8, trimmed, "./")) trimmed[2..] else trimmed;
    const start = std.mem.trimStart(u8, below, "/");
    return if (start.len == 0 or std.mem.eql(u8, start, ".")) null else start;
}

const Progress = struct {
    batches: u32 = 0,
    files: u32 = 0,
    is_over: bool = false,
    cursor: [4096]u8 = undefined,
    cursor_len: ?usize = null,
};

fn batch(progress: *Progress, prefix: ?[]const u8, terms: []const []const u8, best: *Best) exogate.Failed!void {
    const cursor = if (progress.cursor_len) |len| progress.cursor[0..len] else null;
    const asked = try std.json.Stringify.valueAlloc(allocator, .{ .op = "next", .cursor = cursor, .path = prefix }, .{});
    const answer = exogate.objectOf(try exogate.parse(try exogate.host.ask("folder", asked)));
    const files = answer.get("files") orelse exogate.Value.null;
    if (files != .array) return exogate.refuse("The folder cannot be read: it gave no files.", .{});
    progress.batches += 1;
    for (files.array.items) |file| {
        const path = exogate.textOf(exogate.objectOf(file).get("path")) orelse continue;
        const text = exogate.textOf(exogate.objectOf(file).get("text")) orelse continue;
        progress.files += 1;
        const before = exogate.mark();
        defer exogate.release(before);
        try look(path, text, terms, best);
    }
    const next = exogate.textOf(answer.get("cursor")) orelse {
        progress.is_over = true;
        return;
    };
    if (next.len > progress.cursor.len) return exogate.refuse("The folder cannot be read: its cursor is too long.", .{});
    @memcpy(progress.cursor[0..next.len], next);
    progress.cursor_len = next.len;
}

/// Files with more of the terms come first, then those that have them close together, where
/// something is defined, in their path, and more often.
fn look(path: []const u8, text: []const u8, terms: []const []const u8, best: *Best) exogate.Failed!void {
    const body, const place = .{ try finding.folded(text), try finding.folded(path) };
    var score: u64 = 0;
    for (terms) |term| {
        const in_body, const in_path = .{ finding.count(body, term, 1), finding.count(place, term, 1) };
        if (in_body + in_path > 0) score += 1000;
        score += 50 * in_path;
    }
    if (score == 0) return;
    var found = Hit{};
    var top: u64, var top_start: usize, var start: usize, var number: u32 = .{ 0, 0, 0, 0 };
    var lines = std.mem.splitScalar(u8, body, '\n');
    while (lines.next()) |line| : (start += line.len + 1) {
        number += 1;
        const value = worth(line, terms);
        if (value == 0) continue;
        if (found.matches < most_lines) found.lines[found.matches] = number;
        found.matches += 1;
        if (value <= top) continue;
        top, top_start, found.line = .{ value, start, number };
    }
    const hit = best.place(score + top + @min(found.matches, 20)) orelse return;
    hit.matches, hit.line, hit.lines = .{ found.matches, found.line, found.lines };
    hit.path_len = copy(&hit.path, path);
    if (found.line > 0) hit.snippet_len = copy(&hit.snippet, around(text, top_start));
}

fn worth(line: []const u8, terms: []const []const u8) u64 {
    var value: u64 = 0;
    for (terms) |term| {
        if (std.mem.indexOf(u8, line, term) != null) value += 100;
    }
    if (value == 0) return 0;
    const start = std.mem.trimStart(u8, line, " \t");
    for ([_][]const u8{ "def ", "class ", "fn ", "func ", "function ", "struct ", "interface ", "type ", "pub ", "export ", "public ", "async ", "const ", "#" }) |word| {
        if (std.mem.startsWith(u8, start, word)) return value + 40;
    }
    return value;
}

/// The line that begins there, with the one before and two after it.
fn around(text: []const u8, at: usize) []const u8 {
    const line_before = if (at == 0) 0 else if (std.mem.lastIndexOfScalar(u8, text[0 .. at - 1], '\n')) |end| end + 1 else 0;
    const start = if (at - line_before > 200) at else line_before;
    var end = at;
    for (0..3) |_| end = if (std.mem.indexOfScalarPos(u8, text, @min(end, text.len), '\n')) |line| line + 1 else text.len;
    return std.mem.trimEnd(u8, text[start..end], "\r\n");
}

/// As much as fits, without half a character at its end.
fn copy(into: []u8, text: []const u8) usize {
    var len = @min(into.len, text.len);
    while (len < text.len and len > 0 and text[len] & 0xC0 == 0x80) len -= 1;
    @memcpy(into[0..len], text[0..len]);
    return len;
}

const Result = struct { path: []const u8, line: ?u32, snippet: ?[]const u8, lines: []const u32, matches: u32, score: u64 };
const Source = struct { id: []const u8, title: []const u8, url: []const u8 };

fn results(query: []const u8, best: Best, progress: Progress) exogate.Failed![]const u8 {
    const hits = best.hits[0..best.count];
    const shown = try allocator.alloc(Result, hits.len);
    const sources = try allocator.alloc(Source, hits.len);
    for (hits, shown, sources) |*hit, *result, *source| {
        const path = hit.path[0..hit.path_len];
        const is_inside = hit.line > 0; // else only its path has the words
        result.* = .{
            .path = path,
            .line = if (is_inside) hit.line else null,
            .snippet = if (is_inside) hit.snippet[0..hit.snippet_len] else null,
            .lines = hit.lines[0..@min(hit.matches, most_lines)],
            .matches = hit.matches,
            .score = hit.score,
        };
        const link = try finding.url(path);
        source.* = .{
            .id = path,
            .title = if (is_inside) try exogate.print("{s}:{d}", .{ path, hit.line }) else path,
            .url = if (is_inside) try exogate.print("{s}#L{d}", .{ link, hit.line }) else link,
        };
    }
    return exogate.stringify(.{
        .query = query,
        .results = shown,
        .files_searched = progress.files,
        .complete = progress.is_over,
        .sources = sources,
    });
}

//! Finding words in texts: what a query asks for, where it stands, and what stands around it.
const std = @import("std");
const exogate = @import("exogate");

const allocator = exogate.allocator;
pub const most_terms = 16;

/// In lower case, byte for byte as long as before, so that positions stay true.
pub fn folded(text: []const u8) error{OutOfMemory}![]u8 {
    const copy = try allocator.dupe(u8, text);
    var at: usize = 0;
    while (at < copy.len) {
        if (copy[at] < 0x80) {
            copy[at] = std.ascii.toLower(copy[at]);
            at += 1;
            continue;
        }
        const length = std.unicode.utf8ByteSequenceLength(copy[at]) catch 1;
        if (length == 2 and at + 2 <= copy.len) {
            const two = copy[at..][0..2];
            const code = std.unicode.utf8Decode2(two.*) catch 0;
            if (code != 0) _ = std.unicode.utf8Encode(lower(code), two) catch {};
        }
        at += length;
    }
    return copy;
}

/// Latin, Greek and Cyrillic letters of two bytes.
fn lower(code: u21) u21 {
    return switch (code) {
        0xC0...0xD6, 0xD8...0xDE, 0x391...0x3A1, 0x3A3...0x3AB, 0x410...0x42F => code + 32,
        0x400...0x40F => code + 80,
        0x100...0x12E, 0x132...0x136, 0x14A...0x176 => code | 1,
        0x139...0x147, 0x179...0x17D => code + code % 2,
        0x178 => 0xFF,
        else => code,
    };
}

/// The words of a query, each once; what stands in double quotes is one.
pub fn terms(query: []const u8) exogate.Failed![]const []const u8 {
    var found: std.ArrayList([]const u8) = .empty;
    var quoted = std.mem.splitScalar(u8, try folded(query), '"');
    var is_phrase = false;
    while (quoted.next()) |part| : (is_phrase = !is_phrase) {
        var words = std.mem.tokenizeAny(u8, part, if (is_phrase) "\"" else " \t\r\n,;");
        while (words.next()) |word| {
            const term = std.mem.trim(u8, word, " \t\r\n");
            if (term.len > 0 and !contains(found.items, term)) try found.append(allocator, term);
        }
    }
    if (found.items.len == 0) return exogate.refuse("The query has no word to look for.", .{});
    if (found.items.len > most_terms) {
        return exogate.refuse("The query has more than {d} words; look for fewer at once.", .{most_terms});
    }
    return found.items;
}

fn contains(list: []const []const u8, wanted: []const u8) bool {
    for (list) |one| {
        if (std.mem.eql(u8, one, wanted)) return true;
    }
    return false;
}

pub fn count(text: []const u8, term: []const u8, most: usize) usize {
    var found: usize = 0;
    var at: usize = 0;
    while (found < most) : (found += 1) {
        at = 1 + (std.mem.indexOfPos(u8, text, at, term) orelse break);
    }
    return found;
}

/// At most `most` bytes around a position, on one line, with dots where something is left out.
pub fn snippet(text: []const u8, position: usize, most: usize) error{OutOfMemory}![]const u8 {
    var start = position -| most / 3;
    while (start > 0 and start < text.len and text[start] & 0xC0 == 0x80) start -= 1;
    var end = @min(start + most, text.len);
    while (end < text.len and end > start and text[end] & 0xC0 == 0x80) end -= 1;
    const line = try allocator.dupe(u8, std.mem.trim(u8, text[start..end], " \t\r\n"));
    for (line) |*byte| {
        if (byte.* < 0x20) byte.* = ' ';
    }
    const before = if (start > 0) "…" else "";
    const after = if (end < text.len) "…" else "";
    return exogate.print("{s}{s}{s}", .{ before, line, after });
}

/// As a link may have it.
pub fn url(path: []const u8) error{OutOfMemory}![]const u8 {
    var made: std.ArrayList(u8) = .empty;
    for (path) |byte| {
        if (std.ascii.isAlphanumeric(byte) or std.mem.indexOfScalar(u8, "/-._~", byte) != null) {
            try made.append(allocator, byte);
        } else try made.print(allocator, "%{X:0>2}", .{byte});
    }
    return made.items;
}

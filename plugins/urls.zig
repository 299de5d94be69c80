//! Links as a page writes them, made whole.
const std = @import("std");
const exogate = @import("exogate");

const allocator = exogate.allocator;

/// An http or https address; null for what leads nowhere else (a place in the page, mail, scripts).
pub fn resolve(base: []const u8, given: []const u8) error{OutOfMemory}!?[]const u8 {
    const href = std.mem.trim(u8, given, " \t\r\n");
    if (href.len == 0 or href[0] == '#') return null;
    if (hasScheme(href)) return if (isWeb(href)) try encoded(href) else null;
    const scheme_end = 3 + (std.mem.indexOf(u8, base, "://") orelse return null);
    const host_end = std.mem.indexOfAnyPos(u8, base, scheme_end, "/?#") orelse base.len;
    if (std.mem.startsWith(u8, href, "//")) return try encoded(try exogate.print("{s}{s}", .{ base[0 .. scheme_end - 2], href }));
    const path_end = std.mem.indexOfAnyPos(u8, base, host_end, "?#") orelse base.len;
    const path = base[host_end..path_end];
    const joined = switch (href[0]) {
        '/' => href,
        '?' => try exogate.print("{s}{s}", .{ path, href }),
        else => try exogate.print("{s}/{s}", .{ path[0 .. std.mem.lastIndexOfScalar(u8, path, '/') orelse 0], href }),
    };
    return try encoded(try exogate.print("{s}{s}", .{ base[0..host_end], try withoutDots(joined) }));
}

pub fn isWeb(url: []const u8) bool {
    return std.ascii.startsWithIgnoreCase(url, "https://") or std.ascii.startsWithIgnoreCase(url, "http://");
}

fn hasScheme(href: []const u8) bool {
    const colon = std.mem.indexOfScalar(u8, href, ':') orelse return false;
    for (href[0..colon], 0..) |byte, at| {
        if (!std.ascii.isAlphabetic(byte) and (at == 0 or !(std.ascii.isDigit(byte) or std.mem.indexOfScalar(u8, "+-.", byte) != null))) return false;
    }
    return colon > 0;
}

/// `/a/../b/./c` as `/b/c`.
fn withoutDots(path: []const u8) error{OutOfMemory}![]const u8 {
    const end = std.mem.indexOfAny(u8, path, "?#") orelse path.len;
    var kept: std.ArrayList([]const u8) = .empty;
    var parts = std.mem.splitScalar(u8, path[0..end], '/');
    _ = parts.next();
    while (parts.next()) |part| {
        const is_last = parts.peek() == null;
        const goes_up = std.mem.eql(u8, part, "..");
        if (goes_up) _ = kept.pop();
        if (!goes_up and !std.mem.eql(u8, part, ".")) {
            try kept.append(allocator, part);
        } else if (is_last) try kept.append(allocator, "");
    }
    return exogate.print("/{s}{s}", .{ try std.mem.join(allocator, "/", kept.items), path[end..] });
}

/// Without what would end a link in a text too early.
fn encoded(url: []const u8) error{OutOfMemory}![]const u8 {
    var made: std.ArrayList(u8) = .empty;
    for (url) |byte| {
        switch (byte) {
            0...0x20, '(', ')', '<', '>', '"', '\\', 0x7F => try made.print(allocator, "%{X:0>2}", .{byte}),
            else => try made.append(allocator, byte),
        }
    }
    return made.items;
}

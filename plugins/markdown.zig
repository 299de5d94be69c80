//! Reads Markdown as CommonMark has it, for platforms that have a dialect of their own: the plain text,
//! and spans that say how its parts look. What is no proper mark is text and stays as it was written.
//! Never longer than the source, counted in UTF-16. Takes linear time.
const std = @import("std");
const exogate = @import("exogate");

const allocator = exogate.allocator;
const Failed = error{OutOfMemory};

/// Where two cover the same text, the one that comes first here is outside.
pub const Kind = enum { quote, heading, link, bold, italic, strike, code, pre };

/// A part of the text, in bytes; never empty. Two are apart or one is inside the other.
/// `value`: the address of a link (http or https), the language of a `pre`, the level of a heading.
pub const Span = struct { kind: Kind, start: usize, end: usize, value: []const u8 = "" };

/// Lists have bullets, code has no fences, tables are `pre` as they stand. Outer spans come first.
pub const Document = struct {
    text: []const u8,
    spans: []const Span,

    /// Its text in order, with the beginnings and ends of spans in between.
    pub fn walk(self: Document) Walk {
        return .{ .document = self };
    }
};

pub fn read(source: []const u8) Failed!Document {
    var reader = Reader{};
    try reader.blocks(source, false);
    std.mem.sort(Span, reader.spans.items, {}, isBefore);
    return .{ .text = reader.out.items, .spans = reader.spans.items };
}

fn isBefore(_: void, left: Span, right: Span) bool {
    if (left.start != right.start) return left.start < right.start;
    if (left.end != right.end) return left.end > right.end;
    return @backingInt(left.kind) < @backingInt(right.kind);
}

/// How long a text is in UTF-16.
pub fn units(text: []const u8) usize {
    var count: usize = 0;
    for (text) |byte| count += @as(usize, @intFromBool(byte & 0xc0 != 0x80)) + @intFromBool(byte >= 0xf0);
    return count;
}

pub const Piece = union(enum) { open: Span, close: Span, words: []const u8 };

pub const Walk = struct {
    document: Document,
    at: usize = 0,
    coming: usize = 0, // the span that begins next
    inside: std.ArrayList(Span) = .empty,

    pub fn next(self: *Walk) Failed!?Piece {
        const spans = self.document.spans;
        var stop = self.document.text.len;
        if (self.inside.getLastOrNull()) |inner| {
            if (inner.end == self.at) return .{ .close = self.inside.pop().? };
            stop = inner.end;
        }
        if (self.coming < spans.len) {
            const span = spans[self.coming];
            if (span.start == self.at) {
                try self.inside.append(allocator, span);
                self.coming += 1;
                return .{ .open = span };
            }
            stop = @min(stop, span.start);
        }
        if (self.at == stop) return null;
        defer self.at = stop;
        return .{ .words = self.document.text[self.at..stop] };
    }
};

const most_items = 4; // of a line

const Reader = struct {
    out: std.ArrayList(u8) = .empty,
    spans: std.ArrayList(Span) = .empty,

    fn add(self: *Reader, text: []const u8) Failed!void {
        try self.out.appendSlice(allocator, text);
    }

    /// From `start` to the end of what is there by now.
    fn span(self: *Reader, kind: Kind, start: usize, value: []const u8) Failed!void {
        if (start == self.out.items.len) return;
        try self.spans.append(allocator, .{ .kind = kind, .start = start, .end = self.out.items.len, .value = value });
    }

    // ----------------------------------------------------------------------------------- blocks
    fn blocks(self: *Reader, source: []const u8, is_quoted: bool) Failed!void {
        var read_to: usize = 0; // what is between here and `at` is a paragraph
        var items: usize = 0; // that began in this line
        var at: usize = 0;
        while (at < source.len) {
            const line = lineAt(source, at);
            const after = @min(at + line.len + 1, source.len);
            const start = at;
            at = after;
            if (start == 0 or source[start - 1] == '\n') items = 0;
            const block: Block = if (items < most_items) blockOf(line, source[after..]) else .words;
            switch (block) {
                .words => continue,
                .quote => if (is_quoted) continue,
                else => {},
            }
            try self.inlines(source[read_to..start]);
            const begin = self.out.items.len;
            switch (block) {
                .words => unreachable,
                .blank => try self.add(source[start..after]),
                .item => |marker| {
                    const indent = indentOf(line);
                    try self.add(line[0..indent]);
                    try self.add(if (marker - indent == 2) "• " else line[indent..marker]);
                    items += 1;
                    at = start + marker; // what it says may be a block again
                },
                .heading => |level| {
                    try self.inlines(headingText(line, level));
                    try self.span(.heading, begin, level);
                    try self.add(source[start + line.len .. after]);
                },
                .fence => |fence| {
                    at = try self.code(source, after, fence);
                    try self.span(.pre, begin, fence.language);
                    if (at > 0 and source[at - 1] == '\n') try self.add("\n");
                },
                .table => {
                    while (at < source.len and std.mem.indexOfScalar(u8, lineAt(source, at), '|') != null)
                        at = @min(at + lineAt(source, at).len + 1, source.len);
                    const text = std.mem.trimEnd(u8, source[start..at], "\n");
                    try self.add(text);
                    try self.span(.pre, begin, "");
                    try self.add(source[start + text.len .. at]);
                },
                .quote => {
                    at = try self.quote(source, start);
                    const text = std.mem.trimEnd(u8, self.out.items[begin..], "\n");
                    if (text.len > 0) try self.spans.append(allocator, .{ .kind = .quote, .start = begin, .end = begin + text.len });
                },
                .rule => try self.add(source[start..after]),
            }
            read_to = at;
        }
        try self.inlines(source[read_to..]);
    }

    /// What is between the fences; where the text goes on.
    fn code(self: *Reader, source: []const u8, start: usize, fence: Fence) Failed!usize {
        var at = start;
        while (at < source.len) {
            const line = lineAt(source, at);
            const after = @min(at + line.len + 1, source.len);
            if (fence.isClosedBy(line)) return after;
            if (at > start) try self.add("\n");
            const indent = line.len - std.mem.trimStart(u8, line, " ").len;
            try self.add(line[@min(indent, fence.indent)..]);
            at = after;
        }
        return at;
    }

    /// The lines of a quote, however deep, without their marks; where the text goes on.
    fn quote(self: *Reader, source: []const u8, start: usize) Failed!usize {
        var inner: std.ArrayList(u8) = .empty;
        var at = start;
        while (at < source.len) {
            const line = lineAt(source, at);
            if (!isQuote(line)) break;
            var rest = line;
            while (isQuote(rest)) rest = std.mem.trimStart(u8, rest, " ")[1..];
            if (std.mem.startsWith(u8, rest, " ")) rest = rest[1..];
            const after = @min(at + line.len + 1, source.len);
            try inner.appendSlice(allocator, rest);
            try inner.appendSlice(allocator, source[at + line.len .. after]);
            at = after;
        }
        try self.blocks(inner.items, true);
        return at;
    }

    fn inlines(self: *Reader, source: []const u8) Failed!void {
        if (source.len == 0) return;
        var paragraph = Paragraph{ .source = source };
        try paragraph.cut();
        try paragraph.write(self);
    }
};

fn lineAt(source: []const u8, at: usize) []const u8 {
    return source[at .. std.mem.indexOfScalarPos(u8, source, at, '\n') orelse source.len];
}

const Block = union(enum) {
    words,
    blank,
    rule,
    quote,
    table,
    item: usize, // where in the line its text begins
    heading: []const u8,
    fence: Fence,
};

fn blockOf(line: []const u8, after: []const u8) Block {
    const text = std.mem.trim(u8, line, " \t\r");
    if (text.len == 0) return .blank;
    switch (text[0]) {
        '`', '~' => if (Fence.of(line, text)) |fence| return .{ .fence = fence },
        '#' => if (headingOf(text)) |level| return .{ .heading = level },
        '>' => return .quote,
        '-', '*', '_', '+' => {
            if (isRule(text)) return .rule;
            if (text[0] != '_' and text.len > 1 and text[1] == ' ') return .{ .item = indentOf(line) + 2 };
        },
        '0'...'9' => if (numberOf(text)) |len| return .{ .item = indentOf(line) + len },
        else => {},
    }
    if (std.mem.indexOfScalar(u8, text, '|') != null and isTableRule(lineAt(after, 0))) return .table;
    return .words;
}

fn indentOf(line: []const u8) usize {
    return line.len - std.mem.trimStart(u8, line, " \t").len;
}

fn headingOf(text: []const u8) ?[]const u8 {
    const level = text.len - std.mem.trimStart(u8, text, "#").len;
    return if (level <= 6 and level < text.len and text[level] == ' ') text[0..level] else null;
}

fn headingText(line: []const u8, level: []const u8) []const u8 {
    const text = std.mem.trim(u8, std.mem.trim(u8, line, " \t\r")[level.len..], " \t");
    const open = std.mem.trimEnd(u8, text, "#");
    return if (std.mem.endsWith(u8, open, " ")) std.mem.trimEnd(u8, open, " ") else text;
}

fn isQuote(line: []const u8) bool {
    return std.mem.startsWith(u8, std.mem.trimStart(u8, line, " "), ">");
}

fn isRule(text: []const u8) bool {
    var count: usize = 0;
    for (text) |byte| {
        if (byte == text[0]) count += 1 else if (byte != ' ') return false;
    }
    return count >= 3 and text[0] != '+';
}

/// `12. ` and `12) ` with the space.
fn numberOf(text: []const u8) ?usize {
    const digits = text.len - std.mem.trimStart(u8, text, "0123456789").len;
    if (digits > 9 or digits + 1 >= text.len or text[digits + 1] != ' ') return null;
    return if (text[digits] == '.' or text[digits] == ')') digits + 2 else null;
}

fn isTableRule(line: []const u8) bool {
    return std.mem.indexOfScalar(u8, line, '-') != null and
        std.mem.indexOfScalar(u8, line, '|') != null and
        std.mem.indexOfNone(u8, line, "|-: \t\r") == null;
}

const Fence = struct {
    mark: []const u8,
    indent: usize,
    language: []const u8,

    fn of(line: []const u8, text: []const u8) ?Fence {
        const len = text.len - std.mem.trimStart(u8, text, text[0..1]).len;
        const info = std.mem.trim(u8, text[len..], " \t");
        if (len < 3 or text[0] == '`' and std.mem.indexOfScalar(u8, info, '`') != null) return null;
        const end = std.mem.indexOfAny(u8, info, " \t{") orelse info.len;
        return .{ .mark = text[0..len], .indent = indentOf(line), .language = info[0..end] };
    }

    fn isClosedBy(self: Fence, line: []const u8) bool {
        const text = std.mem.trim(u8, line, " \t\r");
        return text.len >= self.mark.len and std.mem.indexOfNone(u8, text, self.mark[0..1]) == null;
    }
};

// ---------------------------------------------------------------------------------- paragraphs
/// A stretch of text; of a mark, what of it is left as text.
const Node = struct { text: []const u8, start: usize = 0, end: usize = 0 };
/// A run of `*`, `_` or `~` that may begin or end something.
const Run = struct { node: usize, len: usize, opens: bool, closes: bool };
const Bracket = struct { node: usize, runs: usize };
const Pair = struct { kind: Kind, from: usize, to: usize, value: []const u8 = "" };

const Paragraph = struct {
    source: []const u8,
    at: usize = 0,
    nodes: std.ArrayList(Node) = .empty,
    runs: std.ArrayList(Run) = .empty,
    brackets: std.ArrayList(Bracket) = .empty,
    pairs: std.ArrayList(Pair) = .empty,
    unclosed: u64 = 0, // the lengths of backtick runs that nothing closes from here on

    fn cut(self: *Paragraph) Failed!void {
        while (self.at < self.source.len) {
            const rest = self.source[self.at..];
            switch (rest[0]) {
                '\\' => try self.escaped(rest),
                '`' => try self.code(rest),
                '<' => try self.angle(rest),
                '*', '_', '~' => try self.run(rest),
                '[' => try self.bracket(1),
                '!' => if (std.mem.startsWith(u8, rest, "![")) try self.bracket(2) else try self.words(1),
                ']' => try self.closing(rest),
                else => try self.words(plainLen(rest, self.at == 0 or !isWord(self.source[self.at - 1]))),
            }
        }
        try self.match(0);
    }

    fn node(self: *Paragraph, text: []const u8, len: usize) Failed!usize {
        try self.nodes.append(allocator, .{ .text = text });
        self.at += len;
        return self.nodes.items.len - 1;
    }

    fn words(self: *Paragraph, len: usize) Failed!void {
        _ = try self.node(self.source[self.at..][0..len], len);
    }

    fn escaped(self: *Paragraph, rest: []const u8) Failed!void {
        if (rest.len < 2 or !isPunctuation(rest[1])) return self.words(1);
        _ = try self.node(rest[1..2], 2);
    }

    fn code(self: *Paragraph, rest: []const u8) Failed!void {
        const len = rest.len - std.mem.trimStart(u8, rest, "`").len;
        if (len >= 64 or self.unclosed >> @intCast(len) & 1 == 1) return self.words(len);
        const end = closingTicks(rest, len) orelse {
            self.unclosed |= @as(u64, 1) << @intCast(len);
            return self.words(len);
        };
        var text = rest[len..end];
        const is_padded = text.len > 2 and text[0] == ' ' and text[text.len - 1] == ' ';
        if (is_padded and std.mem.indexOfNone(u8, text, " ") != null) text = text[1 .. text.len - 1];
        // A pair goes from the end of a node to the beginning of another: two empty ones around it.
        const from = try self.node("", 0);
        _ = try self.node(text, end + len);
        try self.pairs.append(allocator, .{ .kind = .code, .from = from, .to = try self.node("", 0) });
    }

    /// `<https://…>` is a link that shows its address.
    fn angle(self: *Paragraph, rest: []const u8) Failed!void {
        const end = std.mem.indexOfAnyPos(u8, rest, 1, "<> \n") orelse rest.len;
        if (end == rest.len or rest[end] != '>' or !isAddress(rest[1..end])) return self.words(1);
        const from = try self.node("", 1);
        try self.words(end - 1);
        try self.pairs.append(allocator, .{ .kind = .link, .from = from, .to = try self.node("", 1), .value = rest[1..end] });
    }

    fn run(self: *Paragraph, rest: []const u8) Failed!void {
        const mark = rest[0];
        const len = rest.len - std.mem.trimStart(u8, rest, rest[0..1]).len;
        const before = Side.before(self.source[0..self.at]);
        const after = Side.after(rest[len..]);
        const is_left = after != .space and (after != .punctuation or before != .word);
        const is_right = before != .space and (before != .punctuation or after != .word);
        const is_inside = mark == '_' and is_left and is_right;
        const at = try self.node(rest[0..len], len);
        if (mark == '~' and len != 2) return;
        try self.runs.append(allocator, .{
            .node = at,
            .len = len,
            .opens = is_left and (!is_inside or before == .punctuation),
            .closes = is_right and (!is_inside or after == .punctuation),
        });
    }

    fn bracket(self: *Paragraph, len: usize) Failed!void {
        const at = try self.node(self.source[self.at..][0..len], len);
        try self.brackets.append(allocator, .{ .node = at, .runs = self.runs.items.len });
    }

    fn closing(self: *Paragraph, rest: []const u8) Failed!void {
        const open = self.brackets.pop() orelse return self.words(1);
        const target = Target.of(rest[1..]) orelse return self.words(1);
        try self.match(open.runs);
        self.nodes.items[open.node].text = "";
        if (open.node + 1 == self.nodes.items.len) _ = try self.node(target.address, 0); // nothing else says it
        const to = try self.node("", 1 + target.len);
        try self.pairs.append(allocator, .{ .kind = .link, .from = open.node, .to = to, .value = target.address });
        self.brackets.clearRetainingCapacity(); // there are no links in links
    }

    /// Pairs the runs from there on, as CommonMark says, and forgets them.
    fn match(self: *Paragraph, from: usize) Failed!void {
        var open: std.ArrayList(Run) = .empty;
        var bottoms: [3][2][3]usize = @splat(@splat(@splat(0))); // no opener up to that node fits
        for (self.runs.items[from..]) |closer| {
            const mark = self.nodes.items[closer.node].text[0];
            const bottom = &bottoms[if (mark == '*') 0 else if (mark == '_') 1 else 2][@intFromBool(closer.opens)][closer.len % 3];
            while (closer.closes and self.left(closer) > 0) {
                const found = self.opener(open.items, closer, mark, bottom.*) orelse {
                    bottom.* = closer.node;
                    break;
                };
                const opening = open.items[found];
                const both = @min(self.left(opening), self.left(closer));
                const len: usize = if (both >= 2) 2 else 1;
                const kind: Kind = if (mark == '~') .strike else if (len == 2) .bold else .italic;
                try self.pairs.append(allocator, .{ .kind = kind, .from = opening.node, .to = closer.node });
                self.shorten(opening, len);
                self.shorten(closer, len);
                open.items.len = if (self.left(opening) == 0) found else found + 1;
            }
            if (closer.opens and self.left(closer) > 0) try open.append(allocator, closer);
        }
        self.runs.items.len = from;
    }

    fn opener(self: *const Paragraph, open: []const Run, closer: Run, mark: u8, bottom: usize) ?usize {
        var index = open.len;
        while (index > 0) {
            index -= 1;
            const one = open[index];
            if (one.node < bottom) return null;
            if (self.nodes.items[one.node].text[0] != mark) continue;
            const is_odd = (one.closes or closer.opens) and (one.len + closer.len) % 3 == 0 and
                (one.len % 3 != 0 or closer.len % 3 != 0);
            if (!is_odd) return index;
        }
        return null;
    }

    fn left(self: *const Paragraph, one: Run) usize {
        return self.nodes.items[one.node].text.len;
    }

    fn shorten(self: *Paragraph, one: Run, len: usize) void {
        const text = &self.nodes.items[one.node].text;
        text.* = text.*[len..];
    }

    fn write(self: *Paragraph, reader: *Reader) Failed!void {
        for (self.nodes.items) |*one| {
            one.start = reader.out.items.len;
            try reader.add(one.text);
            one.end = reader.out.items.len;
        }
        for (self.pairs.items) |pair| {
            const start = self.nodes.items[pair.from].end;
            const end = self.nodes.items[pair.to].start;
            if (start < end) try reader.spans.append(allocator, .{ .kind = pair.kind, .start = start, .end = end, .value = pair.value });
        }
    }
};

fn closingTicks(rest: []const u8, len: usize) ?usize {
    var at = len;
    while (std.mem.indexOfScalarPos(u8, rest, at, '`')) |start| {
        at = std.mem.indexOfNonePos(u8, rest, start, "`") orelse rest.len;
        if (at - start == len) return start;
    }
    return null;
}

/// Up to the next mark; an address that begins here is taken whole, with the marks in it.
fn plainLen(rest: []const u8, is_at_word: bool) usize {
    if (is_at_word and isAddress(rest)) {
        const whole = rest[0 .. std.mem.indexOfAny(u8, rest, " \t\r\n<>\"`*)]|") orelse rest.len];
        return std.mem.trimEnd(u8, whole, "_~").len;
    }
    for (rest[1..], 1..) |byte, at| {
        if (std.mem.indexOfScalar(u8, "\\`<*_~[]!", byte) != null) return at;
        if (byte == 'h' and !isWord(rest[at - 1]) and isAddress(rest[at..])) return at;
    }
    return rest.len;
}

fn isAddress(text: []const u8) bool {
    const scheme: usize = if (std.mem.startsWith(u8, text, "https://")) 8 else if (std.mem.startsWith(u8, text, "http://")) 7 else return false;
    return text.len > scheme and (isWord(text[scheme]) or text[scheme] == '[');
}

fn isWord(byte: u8) bool {
    return std.ascii.isAlphanumeric(byte) or byte >= 0x80;
}

fn isPunctuation(byte: u8) bool {
    return byte > ' ' and byte < 0x7f and !std.ascii.isAlphanumeric(byte);
}

/// What stands beside a run of marks.
const Side = enum {
    space,
    punctuation,
    word,

    fn before(text: []const u8) Side {
        var start = text.len;
        while (start > 0) {
            start -= 1;
            if (text[start] & 0xc0 != 0x80) break;
        }
        return after(text[start..]);
    }

    fn after(text: []const u8) Side {
        if (text.len == 0 or std.ascii.isWhitespace(text[0])) return .space;
        if (isPunctuation(text[0])) return .punctuation;
        for ([_][]const u8{ "\u{a0}", "\u{3000}" }) |space| if (std.mem.startsWith(u8, text, space)) return .space;
        // Dashes, quotation marks and dots of U+2000 to U+207F.
        return if (std.mem.startsWith(u8, text, "\xe2\x80") or std.mem.startsWith(u8, text, "\xe2\x81")) .punctuation else .word;
    }
};

/// `(address)` or `(<address> "title")` after a label.
const Target = struct {
    address: []const u8,
    len: usize,

    const longest = 2048;

    fn of(text: []const u8) ?Target {
        if (text.len == 0 or text[0] != '(') return null;
        const within = text[0..@min(text.len, longest)];
        const start = std.mem.indexOfNonePos(u8, within, 1, " \n") orelse return null;
        const is_angled = within[start] == '<';
        const from = start + @intFromBool(is_angled);
        const end = if (is_angled) std.mem.indexOfAnyPos(u8, within, from, ">\n") else addressEnd(within, from);
        const address = within[from .. end orelse return null];
        if (!isAddress(address) or std.mem.indexOfAny(u8, address, " \t\r\n") != null) return null;
        const close = pastTitle(within, end.? + @intFromBool(is_angled)) orelse return null;
        return .{ .address = address, .len = close + 1 };
    }

    fn addressEnd(text: []const u8, from: usize) ?usize {
        var depth: usize = 0;
        for (text[from..], from..) |byte, at| switch (byte) {
            0...' ' => return at,
            '(' => depth += 1,
            ')' => if (depth == 0) return at else {
                depth -= 1;
            },
            else => {},
        };
        return null;
    }

    /// Where the `)` is.
    fn pastTitle(text: []const u8, from: usize) ?usize {
        var at = std.mem.indexOfNonePos(u8, text, from, " \n") orelse return null;
        if (text[at] == '"' or text[at] == '\'') {
            const end = std.mem.indexOfScalarPos(u8, text, at + 1, text[at]) orelse return null;
            at = std.mem.indexOfNonePos(u8, text, end + 1, " \n") orelse return null;
        }
        return if (text[at] == ')') at else null;
    }
};

//! Turns an HTML page into text that a model reads well: headings, lists, links and code stay.
const std = @import("std");
const exogate = @import("exogate");
const urls = @import("urls");

const allocator = exogate.allocator;
const Text = std.ArrayList(u8);

pub const Page = struct { title: []const u8, text: []const u8 };

/// If the page marks its main part, only that.
pub fn read(source: []const u8, base: []const u8) error{OutOfMemory}!Page {
    var whole = Reader{ .source = source, .base = base };
    try whole.run();
    const inner = element(source, "main") orelse element(source, "article") orelse return whole.page();
    var part = Reader{ .source = inner, .base = whole.base };
    try part.run();
    const is_worth = part.out.items.len * 5 >= whole.out.items.len and part.out.items.len >= 200;
    return .{ .title = whole.page().title, .text = if (is_worth) part.out.items else whole.out.items };
}

/// What is inside the first element of a name, if the page has no second one.
fn element(source: []const u8, comptime name: []const u8) ?[]const u8 {
    const start = openingOf(source, 0, name) orelse return null;
    if (openingOf(source, start + 1, name) != null) return null;
    const content = 1 + (std.mem.indexOfScalarPos(u8, source, start, '>') orelse return null);
    const end = std.ascii.findIgnoreCasePos(source, content, "</" ++ name) orelse return null;
    return source[content..end];
}

fn openingOf(source: []const u8, from: usize, comptime name: []const u8) ?usize {
    var at = from;
    while (std.ascii.findIgnoreCasePos(source, at, "<" ++ name)) |start| {
        const after = start + 1 + name.len;
        if (after < source.len and !std.ascii.isAlphanumeric(source[after]) and source[after] != '-') return start;
        at = after;
    }
    return null;
}

const Tag = enum { a, abbr, address, article, aside, base, blockquote, br, button, canvas, caption, code, dd, details, dialog, div, dl, dt, fieldset, figcaption, figure, footer, form, h1, h2, h3, h4, h5, h6, head, header, hr, iframe, img, li, main, math, nav, noscript, object, ol, option, p, pre, script, section, select, style, summary, svg, table, tbody, td, template, textarea, tfoot, th, thead, title, tr, ul, video, audio, @"!", other };

const Link = struct { url: []const u8, start: ?usize = null };
const List = struct { next: ?u32 }; // null: its items have no numbers

const Reader = struct {
    source: []const u8,
    base: []const u8,
    at: usize = 0,
    out: Text = .empty,
    title: Text = .empty,
    in_title: bool = false,
    breaks: u8 = 0, // line ends that are due before the next word
    gap: bool = false, // a space is
    prefix: []const u8 = "",
    pre: bool = false,
    cell: bool = false, // a cell of this row was there already
    lists: std.ArrayList(List) = .empty,
    link: ?Link = null,

    fn page(self: *const Reader) Page {
        return .{ .title = std.mem.trim(u8, self.title.items, " "), .text = self.out.items };
    }

    fn run(self: *Reader) error{OutOfMemory}!void {
        while (self.at < self.source.len) {
            const next = std.mem.indexOfScalarPos(u8, self.source, self.at, '<') orelse self.source.len;
            try self.words(self.source[self.at..next]);
            self.at = next;
            if (next < self.source.len) try self.markup();
        }
        try self.endLink();
        self.out.items.len = std.mem.trimEnd(u8, self.out.items, " \n").len;
    }

    // ------------------------------------------------------------------------------------ words
    fn words(self: *Reader, raw: []const u8) error{OutOfMemory}!void {
        if (raw.len == 0) return;
        const text = try decoded(raw);
        if (self.in_title) return collapse(&self.title, text);
        if (self.pre) {
            if (std.mem.trim(u8, text, " \r\n\t").len == 0 and self.breaks > 0) return;
            try self.due();
            return self.out.appendSlice(allocator, text);
        }
        var at: usize = 0;
        while (at < text.len) {
            if (std.ascii.isWhitespace(text[at])) {
                self.gap = true;
                at += 1;
                continue;
            }
            const end = std.mem.indexOfAnyPos(u8, text, at, &std.ascii.whitespace) orelse text.len;
            try self.due();
            try self.out.appendSlice(allocator, text[at..end]);
            at = end;
        }
    }

    /// Writes the line ends, the bullet or the space that were put off, and opens the link.
    fn due(self: *Reader) error{OutOfMemory}!void {
        if (self.breaks > 0) {
            self.out.items.len = std.mem.trimEnd(u8, self.out.items, " ").len;
            if (self.out.items.len > 0) try self.out.appendNTimes(allocator, '\n', self.breaks);
        } else if (self.gap and self.out.items.len > 0 and !self.pre) try self.out.append(allocator, ' ');
        self.breaks, self.gap = .{ 0, false };
        if (self.prefix.len > 0) {
            const depth = if (self.prefix[0] == '#') 0 else self.lists.items.len -| 1;
            try self.out.appendNTimes(allocator, ' ', 2 * @min(depth, 10));
            try self.out.appendSlice(allocator, self.prefix);
            self.prefix = "";
        }
        if (self.link) |*link| {
            if (link.start == null) {
                link.start = self.out.items.len;
                try self.out.append(allocator, '[');
            }
        }
    }

    fn line(self: *Reader, count: u8) void {
        self.breaks = @max(self.breaks, count);
    }

    fn say(self: *Reader, text: []const u8) error{OutOfMemory}!void {
        try self.due();
        try self.out.appendSlice(allocator, text);
    }

    // ----------------------------------------------------------------------------------- markup
    /// At a `<`: passes it and what it means.
    fn markup(self: *Reader) error{OutOfMemory}!void {
        const rest = self.source[self.at..];
        if (std.mem.startsWith(u8, rest, "<!--")) {
            const end = std.mem.indexOfPos(u8, self.source, self.at + 4, "-->");
            self.at = if (end) |found| found + 3 else self.source.len;
            return;
        }
        const closes = rest.len > 1 and rest[1] == '/';
        const name_at: usize = if (closes) 2 else 1;
        if (rest.len <= name_at or !(std.ascii.isAlphabetic(rest[name_at]) or rest[name_at] == '!' or rest[name_at] == '?')) {
            try self.words("&lt;");
            self.at += 1;
            return;
        }
        var end = name_at;
        while (end < rest.len and (std.ascii.isAlphanumeric(rest[end]) or rest[end] == '-')) end += 1;
        const name = try std.ascii.allocLowerString(allocator, rest[name_at..end]);
        const attributes = inside(rest, end);
        self.at += @min(end + attributes.len + 1, rest.len);
        const tag = std.meta.stringToEnum(Tag, name) orelse .other;
        return if (closes) self.closed(tag) else self.opened(tag, name, attributes);
    }

    fn opened(self: *Reader, tag: Tag, name: []const u8, attributes: []const u8) error{OutOfMemory}!void {
        switch (tag) {
            .script, .style, .noscript, .template, .svg, .math, .iframe, .object, .select, .textarea, .canvas, .video, .audio, .dialog => {
                if (!std.mem.endsWith(u8, attributes, "/")) self.skip(name);
            },
            .title => self.in_title = self.title.items.len == 0,
            .base => if (try attribute(attributes, "href")) |href| {
                self.base = try urls.resolve(self.base, href) orelse self.base;
            },
            .h1, .h2, .h3, .h4, .h5, .h6 => {
                self.line(2);
                self.prefix = "######"[0 .. name[1] - '0'];
                self.prefix = try exogate.print("{s} ", .{self.prefix});
            },
            .ul, .ol => {
                self.line(if (self.lists.items.len == 0) 2 else 1);
                try self.lists.append(allocator, .{ .next = if (tag == .ol) 1 else null });
            },
            .li => try self.item(),
            .br => {
                if (self.pre) return self.out.append(allocator, '\n');
                self.breaks = @min(2, self.breaks + 1);
            },
            .hr => {
                self.line(2);
                try self.say("---");
                self.line(2);
            },
            .pre => {
                self.line(2);
                try self.say("```\n");
                self.pre = true;
            },
            .code => if (!self.pre) try self.say("`"),
            .tr => {
                self.line(1);
                self.cell = false;
            },
            .td, .th => {
                if (self.cell) try self.say(" | ");
                self.cell = true;
                self.gap = false;
            },
            .a => {
                try self.endLink();
                const href = try attribute(attributes, "href") orelse return;
                if (try urls.resolve(self.base, href)) |url| self.link = .{ .url = url };
            },
            .img => if (try attribute(attributes, "alt")) |alt| {
                if (std.mem.trim(u8, alt, " \n").len == 0) return;
                try self.words("[image: ");
                try self.words(try escaped(alt));
                self.gap = false;
                try self.words("]");
            },
            else => self.line(spaceAround(tag)),
        }
    }

    fn closed(self: *Reader, tag: Tag) error{OutOfMemory}!void {
        switch (tag) {
            .title => self.in_title = false,
            .a => try self.endLink(),
            .ul, .ol => {
                _ = self.lists.pop();
                self.line(if (self.lists.items.len == 0) 2 else 1);
            },
            .pre => {
                if (!self.pre) return;
                self.pre = false;
                self.out.items.len = std.mem.trimEnd(u8, self.out.items, " \n").len;
                try self.out.appendSlice(allocator, "\n```");
                self.line(2);
            },
            .code => if (!self.pre and self.out.items.len > 0) {
                if (self.out.items[self.out.items.len - 1] == '`') {
                    self.out.items.len -= 1;
                } else try self.out.append(allocator, '`');
            },
            .td, .th, .li, .br, .img, .hr => {},
            .h1, .h2, .h3, .h4, .h5, .h6 => {
                self.prefix = "";
                self.line(2);
            },
            else => self.line(spaceAround(tag)),
        }
    }

    fn item(self: *Reader) error{OutOfMemory}!void {
        self.line(1);
        self.prefix = "- ";
        if (self.lists.items.len == 0) return;
        const list = &self.lists.items[self.lists.items.len - 1];
        const number = list.next orelse return;
        self.prefix = try exogate.print("{d}. ", .{number});
        list.next = number + 1;
    }

    fn endLink(self: *Reader) error{OutOfMemory}!void {
        const link = self.link orelse return;
        self.link = null;
        const start = link.start orelse return;
        if (std.mem.eql(u8, self.out.items[start + 1 ..], link.url)) {
            _ = self.out.orderedRemove(start); // its text is its address already
        } else try self.out.print(allocator, "]({s})", .{link.url});
    }

    /// Passes everything up to the end of an element.
    fn skip(self: *Reader, name: []const u8) void {
        var at = self.at;
        while (std.mem.indexOfPos(u8, self.source, at, "</")) |end| {
            at = end + 2;
            if (!std.ascii.startsWithIgnoreCase(self.source[at..], name)) continue;
            self.at = 1 + (std.mem.indexOfScalarPos(u8, self.source, at, '>') orelse self.source.len - 1);
            return;
        }
        self.at = self.source.len;
    }
};

fn spaceAround(tag: Tag) u8 {
    return switch (tag) {
        .p, .blockquote, .table, .figure, .dl, .article, .section, .main, .details, .form => 2,
        .address, .aside, .caption, .dd, .div, .dt, .fieldset, .figcaption, .footer, .header, .nav, .summary, .thead, .tbody, .tfoot, .head, .option, .button => 1,
        else => 0,
    };
}

/// The attributes of a tag: up to the `>` that is in no quotes, if it is not too far away.
fn inside(whole: []const u8, start: usize) []const u8 {
    const text = whole[0..@min(whole.len, start + 65536)];
    var quote: u8 = 0;
    for (text[start..], start..) |byte, at| {
        if (quote != 0) {
            if (byte == quote) quote = 0;
        } else if (byte == '>') {
            return text[start..at];
        } else if ((byte == '"' or byte == '\'') and at > 0 and (text[at - 1] == '=' or std.ascii.isWhitespace(text[at - 1]))) {
            quote = byte;
        }
    }
    // A quote that is never closed: then the first > ends it.
    return text[start .. std.mem.indexOfScalarPos(u8, text, start, '>') orelse text.len];
}

fn attribute(attributes: []const u8, wanted: []const u8) error{OutOfMemory}!?[]const u8 {
    var at: usize = 0;
    const space = &std.ascii.whitespace;
    while (at < attributes.len) {
        at = std.mem.indexOfNonePos(u8, attributes, at, space ++ "/") orelse return null;
        const name_end = std.mem.indexOfAnyPos(u8, attributes, at + 1, space ++ "=/") orelse attributes.len;
        const name = attributes[at..name_end];
        at = std.mem.indexOfNonePos(u8, attributes, name_end, space) orelse attributes.len;
        var value: []const u8 = "";
        if (at < attributes.len and attributes[at] == '=') {
            at = std.mem.indexOfNonePos(u8, attributes, at + 1, space) orelse return null;
            const quote = attributes[at];
            const is_quoted = quote == '"' or quote == '\'';
            const start = if (is_quoted) at + 1 else at;
            const end = if (is_quoted)
                std.mem.indexOfScalarPos(u8, attributes, start, quote) orelse attributes.len
            else
                std.mem.indexOfAnyPos(u8, attributes, start, space) orelse attributes.len;
            value = attributes[start..end];
            at = @min(end + 1, attributes.len);
        }
        if (std.ascii.eqlIgnoreCase(name, wanted)) return try decoded(value);
    }
    return null;
}

fn collapse(into: *Text, text: []const u8) error{OutOfMemory}!void {
    var words = std.mem.tokenizeAny(u8, text, &std.ascii.whitespace);
    while (words.next()) |word| {
        if (into.items.len > 0) try into.append(allocator, ' ');
        try into.appendSlice(allocator, word);
    }
}

fn escaped(text: []const u8) error{OutOfMemory}![]const u8 {
    return std.mem.replaceOwned(u8, allocator, text, "&", "&amp;");
}

// ---------------------------------------------------------------------------------- characters
/// With its entities as the characters that they stand for.
fn decoded(text: []const u8) error{OutOfMemory}![]const u8 {
    var at = std.mem.indexOfScalar(u8, text, '&') orelse return text;
    var out: Text = .empty;
    try out.appendSlice(allocator, text[0..at]);
    while (at < text.len) {
        const found = if (text[at] == '&') entity(text[at + 1 ..]) else null;
        if (found) |one| {
            var bytes: [4]u8 = undefined;
            const length = std.unicode.utf8Encode(one.code, &bytes) catch std.unicode.utf8Encode(0xFFFD, &bytes) catch unreachable;
            try out.appendSlice(allocator, bytes[0..length]);
            at += 1 + one.length;
            continue;
        }
        const next = std.mem.indexOfScalarPos(u8, text, at + 1, '&') orelse text.len;
        try out.appendSlice(allocator, text[at..next]);
        at = next;
    }
    return out.items;
}

const Entity = struct { code: u21, length: usize };

/// What stands after an `&`; null if it means nothing.
fn entity(text: []const u8) ?Entity {
    const end = std.mem.indexOfScalar(u8, text[0..@min(text.len, 32)], ';');
    if (text.len > 1 and text[0] == '#') {
        const close = end orelse return null;
        const is_hex = text[1] == 'x' or text[1] == 'X';
        const code = std.fmt.parseInt(u32, text[if (is_hex) 2 else 1..close], if (is_hex) 16 else 10) catch return null;
        const meant = switch (code) {
            0x80...0x9F => windows1252[code - 0x80],
            0, 0xD800...0xDFFF => 0xFFFD,
            0xA0, 0xAD => ' ',
            else => if (code > 0x10FFFF) 0xFFFD else @as(u21, @intCast(code)),
        };
        return .{ .code = meant, .length = close + 1 };
    }
    if (end) |close| {
        if (named.get(text[0..close])) |code| return .{ .code = code, .length = close + 1 };
    }
    for ([_][]const u8{ "amp", "lt", "gt", "quot", "nbsp" }) |name| {
        if (std.mem.startsWith(u8, text, name)) return .{ .code = named.get(name).?, .length = name.len };
    }
    return null;
}

/// What pages that name these numbers mean by them.
pub const windows1252 = [32]u21{ 0x20AC, 0xFFFD, 0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160, 0x2039, 0x0152, 0xFFFD, 0x017D, 0xFFFD, 0xFFFD, 0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0xFFFD, 0x017E, 0x0178 };

/// A space that does not break is a space; soft hyphens and joiners are nothing to read.
const named = std.StaticStringMap(u21).initComptime(latin1 ++ .{
    .{ "amp", '&' },         .{ "lt", '<' },         .{ "gt", '>' },         .{ "quot", '"' },        .{ "apos", '\'' },
    .{ "nbsp", ' ' },        .{ "ensp", ' ' },       .{ "emsp", ' ' },       .{ "thinsp", ' ' },      .{ "shy", 0x200B },
    .{ "zwnj", 0x200C },     .{ "zwj", 0x200D },     .{ "ndash", 0x2013 },   .{ "mdash", 0x2014 },    .{ "lsquo", 0x2018 },
    .{ "rsquo", 0x2019 },    .{ "sbquo", 0x201A },   .{ "ldquo", 0x201C },   .{ "rdquo", 0x201D },    .{ "bdquo", 0x201E },
    .{ "dagger", 0x2020 },   .{ "Dagger", 0x2021 },  .{ "bull", 0x2022 },    .{ "hellip", 0x2026 },   .{ "permil", 0x2030 },
    .{ "prime", 0x2032 },    .{ "Prime", 0x2033 },   .{ "lsaquo", 0x2039 },  .{ "rsaquo", 0x203A },   .{ "euro", 0x20AC },
    .{ "trade", 0x2122 },    .{ "larr", 0x2190 },    .{ "uarr", 0x2191 },    .{ "rarr", 0x2192 },     .{ "darr", 0x2193 },
    .{ "harr", 0x2194 },     .{ "rArr", 0x21D2 },    .{ "hArr", 0x21D4 },    .{ "forall", 0x2200 },   .{ "part", 0x2202 },
    .{ "exist", 0x2203 },    .{ "empty", 0x2205 },   .{ "isin", 0x2208 },    .{ "sum", 0x2211 },      .{ "minus", 0x2212 },
    .{ "radic", 0x221A },    .{ "infin", 0x221E },   .{ "int", 0x222B },     .{ "asymp", 0x2248 },    .{ "ne", 0x2260 },
    .{ "equiv", 0x2261 },    .{ "le", 0x2264 },      .{ "ge", 0x2265 },      .{ "sub", 0x2282 },      .{ "sup", 0x2283 },
    .{ "check", 0x2713 },    .{ "hearts", 0x2665 },  .{ "OElig", 0x152 },    .{ "oelig", 0x153 },     .{ "Scaron", 0x160 },
    .{ "scaron", 0x161 },    .{ "Yuml", 0x178 },     .{ "fnof", 0x192 },     .{ "circ", 0x2C6 },      .{ "tilde", 0x2DC },
    .{ "Gamma", 0x393 },     .{ "Delta", 0x394 },    .{ "Theta", 0x398 },    .{ "Lambda", 0x39B },    .{ "Pi", 0x3A0 },
    .{ "Sigma", 0x3A3 },     .{ "Phi", 0x3A6 },      .{ "Psi", 0x3A8 },      .{ "Omega", 0x3A9 },     .{ "alpha", 0x3B1 },
    .{ "beta", 0x3B2 },      .{ "gamma", 0x3B3 },    .{ "delta", 0x3B4 },    .{ "epsilon", 0x3B5 },   .{ "zeta", 0x3B6 },
    .{ "eta", 0x3B7 },       .{ "theta", 0x3B8 },    .{ "iota", 0x3B9 },     .{ "kappa", 0x3BA },     .{ "lambda", 0x3BB },
    .{ "mu", 0x3BC },        .{ "nu", 0x3BD },       .{ "xi", 0x3BE },       .{ "pi", 0x3C0 },        .{ "rho", 0x3C1 },
    .{ "sigma", 0x3C3 },     .{ "tau", 0x3C4 },      .{ "phi", 0x3C6 },      .{ "chi", 0x3C7 },       .{ "psi", 0x3C8 },
    .{ "omega", 0x3C9 },     .{ "num", '#' },        .{ "lbrack", '[' },     .{ "rbrack", ']' },      .{ "lpar", '(' },
    .{ "rpar", ')' },        .{ "colon", ':' },      .{ "comma", ',' },      .{ "period", '.' },      .{ "excl", '!' },
    .{ "quest", '?' },       .{ "sol", '/' },        .{ "bsol", '\\' },      .{ "lowbar", '_' },      .{ "grave", '`' },
    .{ "ast", '*' },         .{ "plus", '+' },       .{ "equals", '=' },     .{ "dollar", '$' },      .{ "percnt", '%' },
    .{ "commat", '@' },      .{ "semi", ';' },       .{ "vert", '|' },       .{ "lcub", '{' },        .{ "rcub", '}' },
    .{ "hyphen", 0x2010 },   .{ "NewLine", '\n' },   .{ "Tab", '\t' },       .{ "ccaron", 0x10D },    .{ "Ccaron", 0x10C },
    .{ "cacute", 0x107 },    .{ "lstrok", 0x142 },   .{ "Lstrok", 0x141 },   .{ "zcaron", 0x17E },    .{ "eogon", 0x119 },
});

/// The characters from 161 on, in order.
const latin1 = latin: {
    const names = "iexcl cent pound curren yen brvbar sect uml copy ordf laquo not - reg macr deg plusmn sup2 sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml Yacute THORN szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc iuml eth ntilde ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml";
    @setEvalBranchQuota(20_000);
    var list: [95]struct { []const u8, u21 } = undefined;
    var words = std.mem.tokenizeScalar(u8, names, ' ');
    for (&list, 161..) |*one, code| one.* = .{ words.next().?, code };
    break :latin list;
};

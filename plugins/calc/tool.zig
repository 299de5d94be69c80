//! Works out arithmetic expressions: exactly, with fractions of any size, as long as it goes.
const std = @import("std");
const exogate = @import("exogate");
const Big = std.math.big.int.Managed;

pub const describe =
    \\{"name": "calc", "version": "1.0.0", "kind": "tool",
    \\ "description": "Works out arithmetic expressions exactly.",
    \\ "tools": [{"name": "calc", "category": "meta",
    \\   "description": "Works out an arithmetic expression. Whole numbers and fractions are exact at any size (0.1+0.2 is 0.3), the rest has 15 digits. Operators + - * / % ^ and parentheses (% is the remainder, ^ the power); functions sqrt abs min max round floor ceil ln log10 sin cos tan (angles in radians, round(x, digits)); constants pi e. Use it for any arithmetic beyond the trivial.",
    \\   "parameters": {"type": "object",
    \\     "properties": {"expression": {"type": "string", "maxLength": 2000,
    \\       "description": "for example (12.5 + 7) * 3^2 / sqrt(16)"}},
    \\     "required": ["expression"], "additionalProperties": false},
    \\   "annotations": {"title": "Calculator", "readOnlyHint": true, "idempotentHint": true, "openWorldHint": false}}]}
;

comptime {
    exogate.serve(@This());
}

pub fn call(given: exogate.Call) exogate.Failed![]const u8 {
    if (!given.is("calc")) return given.unknown();
    const expression = try given.text("expression");
    if (expression.len > max_length) {
        return exogate.refuse("The expression has more than {d} characters; work it out in parts.", .{max_length});
    }
    var reader = Reader{ .text = expression };
    const value = try reader.whole();
    const shown = try value.shown();
    return exogate.stringify(.{
        .expression = expression,
        .result = shown.text,
        .exact = shown.is_exact,
        .fraction = shown.fraction,
    });
}

const max_length = 2000;
const max_depth = 100;
const max_bits = 4096; // beyond it a number is no longer kept exactly
const max_digits = 40; // of a decimal fraction that is still shown whole
const allocator = exogate.allocator;

// ------------------------------------------------------------------------------------ numbers
/// A fraction in lowest terms; `bottom` is positive.
const Exact = struct {
    top: Big,
    bottom: Big,

    fn of(whole: i64) !Exact {
        return .{ .top = try Big.initSet(allocator, whole), .bottom = try Big.initSet(allocator, 1) };
    }

    fn isWhole(self: Exact) bool {
        return self.bottom.toConst().orderAgainstScalar(1) == .eq;
    }

    fn isNegative(self: Exact) bool {
        return !self.top.isPositive() and !self.top.eqlZero();
    }

    fn float(self: Exact) f64 {
        const top, _ = self.top.toFloat(f128, .nearest_even);
        const bottom, _ = self.bottom.toFloat(f128, .nearest_even);
        return @floatCast(top / bottom);
    }

    fn floor(self: Exact) !Big {
        var quotient, var rest = .{ try Big.init(allocator), try Big.init(allocator) };
        try quotient.divFloor(&rest, &self.top, &self.bottom);
        return quotient;
    }

    /// A whole number that fits, else null.
    fn small(self: Exact) ?i32 {
        return if (self.isWhole()) self.top.toInt(i32) catch null else null;
    }
};

const Number = union(enum) {
    exact: Exact,
    float: f64,

    fn of(whole: i64) !Number {
        return .{ .exact = try Exact.of(whole) };
    }

    fn wholeOf(big: Big) !Number {
        return .{ .exact = .{ .top = big, .bottom = try Big.initSet(allocator, 1) } };
    }

    fn asFloat(self: Number) f64 {
        return switch (self) {
            .exact => |exact| exact.float(),
            .float => |float| float,
        };
    }

    fn isZero(self: Number) bool {
        return switch (self) {
            .exact => |exact| exact.top.eqlZero(),
            .float => |float| float == 0,
        };
    }

    /// As a fraction: a float is taken by the digits that it is written with.
    fn asExact(self: Number) !Exact {
        const float = switch (self) {
            .exact => |exact| return exact,
            .float => |float| float,
        };
        var number = try decimal(try exogate.print("{e}", .{@abs(float)}));
        if (float < 0) number.exact.top.negate();
        return number.exact;
    }

    fn shown(self: Number) !Shown {
        const exact = switch (self) {
            .exact => |exact| exact,
            .float => |float| return .{ .text = try digits15(float), .is_exact = false },
        };
        if (exact.isWhole()) return .{ .text = try written(exact.top) };
        if (try asDecimal(exact)) |text| return .{ .text = text };
        const fraction = try exogate.print("{s}/{s}", .{
            try written(exact.top),
            try written(exact.bottom),
        });
        return .{
            .text = try digits15(exact.float()),
            .is_exact = false,
            .fraction = if (fraction.len <= max_digits) fraction else null,
        };
    }
};

const Shown = struct { text: []const u8, is_exact: bool = true, fraction: ?[]const u8 = null };

/// What can fail here is memory; the library's other errors were ruled out before.
fn only(failure: anyerror) error{OutOfMemory} {
    return if (failure == error.OutOfMemory) error.OutOfMemory else unreachable;
}

fn written(whole: Big) error{OutOfMemory}![]const u8 {
    return whole.toString(allocator, 10, .lower) catch |failure| only(failure);
}

fn product(a: Big, b: Big) !Big {
    var made = try Big.init(allocator);
    try made.mul(&a, &b);
    return made;
}

/// A fraction in lowest terms, or a float if it grew too large to be kept. `bottom` is not zero.
fn ratio(top: Big, bottom: Big) !Number {
    var common, var rest = .{ try Big.init(allocator), try Big.init(allocator) };
    try common.gcd(&top, &bottom);
    var exact = Exact{ .top = try Big.init(allocator), .bottom = try Big.init(allocator) };
    try exact.top.divTrunc(&rest, &top, &common);
    try exact.bottom.divTrunc(&rest, &bottom, &common);
    if (!exact.bottom.isPositive()) {
        exact.top.negate();
        exact.bottom.abs();
    }
    if (@max(exact.top.bitCountAbs(), exact.bottom.bitCountAbs()) <= max_bits) return .{ .exact = exact };
    return .{ .float = exact.float() };
}

/// `12`, `0.5`, `1.5e-3`: digits that were checked before.
fn decimal(text: []const u8) !Number {
    const split = std.mem.indexOfAny(u8, text, "eE") orelse text.len;
    const point = std.mem.indexOfScalar(u8, text[0..split], '.') orelse split;
    const after = if (point < split) text[point + 1 .. split] else "";
    const digits = try std.mem.concat(allocator, u8, &.{ "0", text[0..point], after });
    const asked = if (split < text.len) std.fmt.parseInt(i32, text[split + 1 ..], 10) catch 100_000 else 0;
    const exponent = std.math.clamp(asked, -100_000, 100_000) - @as(i32, @intCast(after.len));
    var top = try Big.init(allocator);
    top.setString(10, digits) catch |failure| return only(failure);
    if (@abs(exponent) > 1200) return .{ .float = std.fmt.parseFloat(f64, text) catch unreachable };
    var ten, var scale = .{ try Big.initSet(allocator, 10), try Big.init(allocator) };
    try scale.pow(&ten, @intCast(@abs(exponent)));
    if (exponent >= 0) return ratio(try product(top, scale), try Big.initSet(allocator, 1));
    return ratio(top, scale);
}

/// Digits with a point, if the fraction has an end that is not too far.
fn asDecimal(exact: Exact) !?[]const u8 {
    var places: u32 = 0;
    const ten = try Big.initSet(allocator, 10);
    var scale, var rest = .{ try Big.initSet(allocator, 1), try Big.init(allocator) };
    while (true) : (places += 1) {
        if (places > max_digits) return null;
        var quotient = try Big.init(allocator);
        try quotient.divTrunc(&rest, &scale, &exact.bottom);
        if (rest.eqlZero()) {
            var scaled = try product(exact.top, quotient);
            scaled.abs();
            const digits = try written(scaled);
            const padded = try allocator.alloc(u8, @max(digits.len, places + 1));
            @memset(padded, '0');
            @memcpy(padded[padded.len - digits.len ..], digits);
            const whole = padded.len - places;
            const sign = if (exact.isNegative()) "-" else "";
            return try exogate.print("{s}{s}.{s}", .{ sign, padded[0..whole], padded[whole..] });
        }
        scale = try product(scale, ten);
    }
}

/// The 15 digits that a float is good for, without noise behind them.
fn digits15(float: f64) ![]const u8 {
    if (float == 0) return "0";
    const text = try exogate.print("{e:.14}", .{@abs(float)});
    const split = std.mem.indexOfScalar(u8, text, 'e').?;
    const exponent = std.fmt.parseInt(i32, text[split + 1 ..], 10) catch unreachable;
    const digits = std.mem.trimEnd(u8, try std.mem.concat(allocator, u8, &.{ text[0..1], text[2..split] }), "0");
    const sign = if (float < 0) "-" else "";
    if (exponent < -7 or exponent >= 21) {
        const point = if (digits.len > 1) "." else "";
        return exogate.print("{s}{s}{s}{s}e{d}", .{ sign, digits[0..1], point, digits[1..], exponent });
    }
    if (exponent < 0) {
        const zeros = "0000000"[0..@intCast(-exponent - 1)];
        return exogate.print("{s}0.{s}{s}", .{ sign, zeros, digits });
    }
    const whole: usize = @intCast(exponent + 1);
    if (whole >= digits.len) {
        const zeros = "000000000000000000000"[0 .. whole - digits.len];
        return exogate.print("{s}{s}{s}", .{ sign, digits, zeros });
    }
    return exogate.print("{s}{s}.{s}", .{ sign, digits[0..whole], digits[whole..] });
}

// --------------------------------------------------------------------------------- operations
fn order(a: Number, b: Number) !std.math.Order {
    if (a == .exact and b == .exact) {
        return (try product(a.exact.top, b.exact.bottom)).order(try product(b.exact.top, a.exact.bottom));
    }
    return std.math.order(a.asFloat(), b.asFloat());
}

fn add(a: Number, b: Number) !Number {
    if (a != .exact or b != .exact) return .{ .float = a.asFloat() + b.asFloat() };
    const x, const y = .{ a.exact, b.exact };
    var sum = try Big.init(allocator);
    try sum.add(&(try product(x.top, y.bottom)), &(try product(y.top, x.bottom)));
    return ratio(sum, try product(x.bottom, y.bottom));
}

fn negated(a: Number) !Number {
    if (a == .float) return .{ .float = -a.float };
    var top = try a.exact.top.clone();
    top.negate();
    return .{ .exact = .{ .top = top, .bottom = a.exact.bottom } };
}

fn times(a: Number, b: Number) !Number {
    if (a != .exact or b != .exact) return .{ .float = a.asFloat() * b.asFloat() };
    return ratio(try product(a.exact.top, b.exact.top), try product(a.exact.bottom, b.exact.bottom));
}

fn dividedBy(a: Number, b: Number) !Number {
    if (a != .exact or b != .exact) return .{ .float = a.asFloat() / b.asFloat() };
    return ratio(try product(a.exact.top, b.exact.bottom), try product(a.exact.bottom, b.exact.top));
}

/// What is left of `a`, with the sign of `b`.
fn remainder(a: Number, b: Number) !Number {
    if (a != .exact or b != .exact) {
        const x, const y = .{ a.asFloat(), b.asFloat() };
        return .{ .float = x - y * @floor(x / y) };
    }
    const parts = try dividedBy(a, b);
    const floor = try Number.wholeOf(try (try parts.asExact()).floor());
    return add(a, try negated(try times(b, floor)));
}

fn power(a: Number, b: Number) !Number {
    const exponent = if (b == .exact) b.exact.small() else null;
    if (a == .exact and exponent != null) {
        const count: u32 = @abs(exponent.?);
        const bits = @max(a.exact.top.bitCountAbs(), a.exact.bottom.bitCountAbs());
        if (bits <= 1 or @as(u64, count) * (bits - 1) <= max_bits) {
            var top, var bottom = .{ try Big.init(allocator), try Big.init(allocator) };
            // Of 0, 1 and -1 only the parity of the exponent matters.
            const steps = if (bits <= 1 and count > 2) 2 - count % 2 else count;
            try top.pow(&a.exact.top, steps);
            try bottom.pow(&a.exact.bottom, steps);
            return if (exponent.? < 0) ratio(bottom, top) else ratio(top, bottom);
        }
    }
    if (b == .exact and b.asFloat() == 0.5) return root(a);
    return .{ .float = std.math.pow(f64, a.asFloat(), b.asFloat()) };
}

fn root(a: Number) !Number {
    if (a == .exact and !a.exact.isNegative()) {
        var top, var bottom = .{ try Big.init(allocator), try Big.init(allocator) };
        top.sqrt(&a.exact.top) catch |failure| return only(failure);
        bottom.sqrt(&a.exact.bottom) catch |failure| return only(failure);
        const is_square = (try product(top, top)).eql(a.exact.top) and
            (try product(bottom, bottom)).eql(a.exact.bottom);
        if (is_square) return .{ .exact = .{ .top = top, .bottom = bottom } };
    }
    return .{ .float = @sqrt(a.asFloat()) };
}

const Rounding = enum { floor, ceil, round };

fn rounded(a: Number, how: Rounding) !Number {
    const exact = try a.asExact();
    var up = Exact{ .top = exact.top, .bottom = exact.bottom };
    switch (how) {
        .floor => return Number.wholeOf(try exact.floor()),
        .ceil => {
            up.top = try exact.top.clone();
            up.top.negate();
            var whole = try up.floor();
            whole.negate();
            return Number.wholeOf(whole);
        },
        .round => { // halves away from zero
            up.top = try exact.top.clone();
            up.top.abs();
            const half = try add(.{ .exact = up }, try dividedBy(try Number.of(1), try Number.of(2)));
            var whole = try (try half.asExact()).floor();
            if (exact.isNegative()) whole.negate();
            return Number.wholeOf(whole);
        },
    }
}

// ------------------------------------------------------------------------------------- reading
const functions = "sqrt, abs, min, max, round, floor, ceil, ln, log10, sin, cos, tan";
const Function = enum { sqrt, abs, min, max, round, floor, ceil, ln, log10, sin, cos, tan };

const Reader = struct {
    text: []const u8,
    at: usize = 0,
    depth: u32 = 0,

    fn whole(self: *Reader) exogate.Failed!Number {
        self.skip();
        if (self.at == self.text.len) return exogate.refuse("The expression is empty.", .{});
        const value = try self.sum();
        if (self.at < self.text.len) {
            if (self.peek() == ')') return self.wrong(self.at, "there is a ) without a (");
            return self.wrong(self.at, try exogate.print("an operator is expected, not {s}", .{self.here()}));
        }
        return value;
    }

    fn sum(self: *Reader) exogate.Failed!Number {
        var value = try self.term();
        while (true) {
            const start = self.at;
            if (self.takes("+")) {
                value = try self.finite(start, try add(value, try self.term()));
            } else if (self.takes("-") or self.takes("−")) {
                value = try self.finite(start, try add(value, try negated(try self.term())));
            } else return value;
        }
    }

    fn term(self: *Reader) exogate.Failed!Number {
        var value = try self.unary();
        while (true) {
            const start = self.at;
            if (self.takes("*") or self.takes("×") or self.takes("·")) {
                value = try self.finite(start, try times(value, try self.unary()));
            } else if (self.takes("/") or self.takes("÷")) {
                value = try self.finite(start, try dividedBy(value, try self.divisor(start)));
            } else if (self.takes("%")) {
                value = try self.finite(start, try remainder(value, try self.divisor(start)));
            } else return value;
        }
    }

    fn divisor(self: *Reader, start: usize) exogate.Failed!Number {
        const value = try self.unary();
        return if (value.isZero()) self.wrong(start, "division by zero") else value;
    }

    fn unary(self: *Reader) exogate.Failed!Number {
        try self.deeper();
        defer self.depth -= 1;
        if (self.takes("+")) return self.unary();
        if (self.takes("-") or self.takes("−")) return negated(try self.unary());
        const base = try self.atom();
        const start = self.at;
        if (!(self.takes("^") or self.takes("**"))) return base;
        const exponent = try self.unary();
        if (base.isZero() and exponent.asFloat() < 0) return self.wrong(start, "division by zero");
        return self.finite(start, try power(base, exponent));
    }

    fn atom(self: *Reader) exogate.Failed!Number {
        const start = self.at;
        switch (self.peek()) {
            '0'...'9', '.' => return self.number(),
            'a'...'z', 'A'...'Z', '_' => return self.named(),
            '(' => {
                _ = self.takes("(");
                const value = try self.sum();
                if (!self.takes(")")) return self.wrong(start, "this ( is never closed");
                return value;
            },
            else => {},
        }
        if (start == self.text.len) return self.wrong(start, "the expression ends where a number is expected");
        if (std.mem.startsWith(u8, self.text[start..], "π")) {
            _ = self.takes("π");
            return .{ .float = std.math.pi };
        }
        return self.wrong(start, try exogate.print("a number is expected, not {s}", .{self.here()}));
    }

    fn number(self: *Reader) exogate.Failed!Number {
        const start = self.at;
        const digits = self.run() + fraction: {
            if (self.peek() != '.') break :fraction 0;
            self.at += 1;
            break :fraction self.run();
        };
        if (digits == 0) return self.wrong(start, "a number is expected, not a point alone");
        const before = self.at;
        if (self.peek() == 'e' or self.peek() == 'E') {
            self.at += 1;
            if (self.peek() == '+' or self.peek() == '-') self.at += 1;
            if (self.run() == 0) self.at = before;
        }
        const text = self.text[start..self.at];
        self.skip();
        return self.finite(start, try decimal(text));
    }

    fn named(self: *Reader) exogate.Failed!Number {
        const start = self.at;
        while (std.ascii.isAlphanumeric(self.peek()) or self.peek() == '_') self.at += 1;
        const name = try std.ascii.allocLowerString(allocator, self.text[start..self.at]);
        self.skip();
        if (std.mem.eql(u8, name, "pi")) return .{ .float = std.math.pi };
        if (std.mem.eql(u8, name, "e")) return .{ .float = std.math.e };
        const function = std.meta.stringToEnum(Function, name) orelse {
            return self.wrong(start, try exogate.print("{s} is not known; there are {s}, and pi and e", .{ name, functions }));
        };
        if (!self.takes("(")) return self.wrong(start, try exogate.print("{s} needs its argument in parentheses", .{name}));
        var given: std.ArrayList(Number) = .empty;
        while (true) {
            try given.append(allocator, try self.sum());
            if (!self.takes(",")) break;
        }
        if (!self.takes(")")) return self.wrong(start, try exogate.print("the ( of {s} is never closed", .{name}));
        return self.finite(start, try self.applied(start, function, given.items));
    }

    fn applied(self: *Reader, start: usize, function: Function, given: []const Number) exogate.Failed!Number {
        const most: usize = switch (function) {
            .min, .max => max_length,
            .round => 2,
            else => 1,
        };
        if (given.len > most) return self.wrong(start, try exogate.print("{t} takes at most {d} argument(s), not {d}", .{ function, most, given.len }));
        const x = given[0];
        const float = x.asFloat();
        switch (function) {
            .sqrt => return if (float < 0) self.wrong(start, "the square root of a negative number is not real") else root(x),
            .abs => return if (float < 0) negated(x) else x,
            .min, .max => {
                const wanted: std.math.Order = if (function == .min) .lt else .gt;
                var best = x;
                for (given[1..]) |other| {
                    if (try order(other, best) == wanted) best = other;
                }
                return best;
            },
            .floor => return rounded(x, .floor),
            .ceil => return rounded(x, .ceil),
            .round => {
                const places = if (given.len < 2) 0 else places: {
                    const asked = if (given[1] == .exact) given[1].exact.small() else null;
                    if (asked == null or @abs(asked.?) > 100) {
                        return self.wrong(start, "the second argument of round is a whole number of digits up to 100");
                    }
                    break :places asked.?;
                };
                const scale = try power(try Number.of(10), try Number.of(places));
                return dividedBy(try rounded(try times(.{ .exact = try x.asExact() }, scale), .round), scale);
            },
            .ln, .log10 => {
                if (float <= 0) return self.wrong(start, "a logarithm needs a number above zero");
                return .{ .float = if (function == .ln) @log(float) else @log10(float) };
            },
            .sin, .cos, .tan => {
                const value = switch (function) {
                    .sin => @sin(float),
                    .cos => @cos(float),
                    else => @tan(float),
                };
                // sin(pi) is zero: what is left is the error of pi itself.
                const is_noise = @abs(value) < 1e-15 and @abs(float) > 1e-10;
                return .{ .float = if (is_noise) 0 else value };
            },
        }
    }

    // ------------------------------------------------------------------------------- characters
    fn peek(self: *const Reader) u8 {
        return if (self.at < self.text.len) self.text[self.at] else 0;
    }

    /// How many digits were passed.
    fn run(self: *Reader) usize {
        const start = self.at;
        while (std.ascii.isDigit(self.peek())) self.at += 1;
        return self.at - start;
    }

    fn skip(self: *Reader) void {
        while (self.at < self.text.len) {
            if (std.ascii.isWhitespace(self.text[self.at])) {
                self.at += 1;
            } else if (std.mem.startsWith(u8, self.text[self.at..], "\u{a0}")) {
                self.at += 2;
            } else return;
        }
    }

    fn takes(self: *Reader, token: []const u8) bool {
        if (!std.mem.startsWith(u8, self.text[self.at..], token)) return false;
        if (std.mem.eql(u8, token, "*") and std.mem.startsWith(u8, self.text[self.at..], "**")) return false;
        self.at += token.len;
        self.skip();
        return true;
    }

    fn here(self: *const Reader) []const u8 {
        const length = std.unicode.utf8ByteSequenceLength(self.text[self.at]) catch 1;
        return self.text[self.at..@min(self.at + length, self.text.len)];
    }

    fn deeper(self: *Reader) exogate.Failed!void {
        self.depth += 1;
        if (self.depth > max_depth) return self.wrong(self.at, "it is nested too deeply; work it out in parts");
    }

    fn finite(self: *Reader, start: usize, value: Number) exogate.Failed!Number {
        if (value == .exact or std.math.isFinite(value.float)) return value;
        return self.wrong(start, if (std.math.isNan(value.float)) "this has no real value" else "the number is too large");
    }

    fn wrong(self: *const Reader, at: usize, problem: []const u8) exogate.Failed {
        const position = 1 + (std.unicode.utf8CountCodepoints(self.text[0..at]) catch at);
        return exogate.refuse("At position {d} of the expression: {s}.", .{ position, problem });
    }
};

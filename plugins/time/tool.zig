//! Tells what time it is.
const std = @import("std");
const exogate = @import("exogate");

pub const describe =
    \\{"name": "time", "version": "1.0.0", "kind": "tool",
    \\ "description": "Tells the current date, time and weekday.",
    \\ "tools": [{"name": "time", "category": "meta",
    \\   "description": "Tells the current date, time and weekday, in UTC or at a given offset from it. Use it before anything that depends on today's date.",
    \\   "parameters": {"type": "object",
    \\     "properties": {"utc_offset_hours": {"type": "number", "minimum": -14, "maximum": 14,
    \\       "description": "hours east of UTC, 5.5 for India; 0 if absent"}},
    \\     "additionalProperties": false},
    \\   "annotations": {"title": "Current time", "readOnlyHint": true, "idempotentHint": false, "openWorldHint": false}}]}
;

comptime {
    exogate.serve(@This());
}

const weekdays = [_][]const u8{ "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday" };
const months = [_][]const u8{ "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December" };

pub fn call(given: exogate.Call) exogate.Failed![]const u8 {
    if (!given.is("time")) return given.unknown();
    const hours = try given.number("utc_offset_hours", 0);
    if (!(@abs(hours) <= 14)) {
        return exogate.refuse("utc_offset_hours has to be between -14 and 14, not {d}.", .{hours});
    }
    const offset: i64 = @intFromFloat(@round(hours * 60));
    const now_ms = exogate.clock.now_ms();
    const seconds = @as(i64, @intCast(now_ms / 1000)) + offset * 60;
    const date = Date.of(@divFloor(seconds, 86400));
    const second: u32 = @intCast(@mod(seconds, 86400));
    const hour, const minute, const rest = .{ second / 3600, second / 60 % 60, second % 60 };
    const sign: u8 = if (offset < 0) '-' else '+';
    const away: u32 = @intCast(@abs(offset));
    const weekday = weekdays[@intCast(@mod(@divFloor(seconds, 86400) + 3, 7))];
    return exogate.stringify(.{
        .now = try exogate.print("{s}, {d:0>2} {s} {d}, {d:0>2}:{d:0>2}:{d:0>2} (UTC{c}{d:0>2}{d:0>2})", .{
            weekday, date.day, months[date.month - 1], date.year, hour, minute, rest, sign, away / 60, away % 60,
        }),
        .iso = try exogate.print("{d:0>4}-{d:0>2}-{d:0>2}T{d:0>2}:{d:0>2}:{d:0>2}{c}{d:0>2}:{d:0>2}", .{
            date.year, date.month, date.day, hour, minute, rest, sign, away / 60, away % 60,
        }),
        .weekday = weekday,
        .unix_ms = now_ms,
    });
}

const Date = struct {
    year: u32,
    month: u32,
    day: u32,

    /// Of a day counted from 1 January 1970. Years are counted from March, so that the leap day is
    /// a year's last, and in eras of 400 years, which all have the same number of days.
    fn of(days: i64) Date {
        const shifted: u64 = @intCast(@max(days, -719468) + 719468);
        const era, const in_era = .{ shifted / 146097, shifted % 146097 };
        const year_of_era = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
        const in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        const from_march = (5 * in_year + 2) / 153;
        const month = if (from_march < 10) from_march + 3 else from_march - 9;
        return .{
            .year = @intCast(era * 400 + year_of_era + @intFromBool(month <= 2)),
            .month = @intCast(month),
            .day = @intCast(in_year - (153 * from_march + 2) / 5 + 1),
        };
    }
};

//! Webhook: signed calls of any program become messages, GitHub's events become sentences; answers are
//! posted to the address that the operator wrote.
const std = @import("std");
const exogate = @import("exogate");
const values = @import("values");

const Object = exogate.Object;
const Value = exogate.Value;
const Failed = exogate.Failed;
const objectOf = exogate.objectOf;
const textOf = exogate.textOf;

pub const describe =
    \\{"name": "webhook", "version": "1.0.0", "kind": "channel", "channel": "webhook",
    \\ "description": "Takes signed calls of programs and of GitHub.",
    \\ "transports": [{"type": "webhook"}],
    \\ "verify": [
    \\  {"when": {"scheme": "standard"}, "type": "hmac_sha256", "secret": "secret", "secret_form": "whsec",
    \\   "header": "webhook-signature", "prefix": "v1,", "encoding": "base64", "several": true,
    \\   "id_header": "webhook-id", "timestamp_header": "webhook-timestamp", "signs": "{id}.{timestamp}.{body}"},
    \\  {"when": {"scheme": "hmac"}, "type": "hmac_sha256", "secret": "secret",
    \\   "header": "x-signature-256", "prefix": "sha256="},
    \\  {"when": {"scheme": "github"}, "type": "hmac_sha256", "secret": "secret",
    \\   "header": "x-hub-signature-256", "prefix": "sha256=", "dedupe": "body"}],
    \\ "outbound": {"secrets": ["reply_token"], "idempotency": true},
    \\ "limits": {"text": 100000},
    \\ "secrets": ["secret"], "needs": ["scheme"]}
;

comptime {
    exogate.serveChannel(@This());
}

// -------------------------------------------------------------------------------- what came in
const Message = struct {
    peer: []const u8,
    kind: enum { direct, group } = .direct,
    sender: struct { id: []const u8, name: ?[]const u8 = null, is_bot: bool = false },
    text: []const u8,
    platform_id: []const u8,
    thread: ?[]const u8 = null,
    timestamp: ?[]const u8 = null,
    mentions_me: bool = true, // whoever calls means us
};

const nothing = "{\"messages\": []}";

pub fn parse(event: Object) Failed![]const u8 {
    const headers = objectOf(event.get("headers"));
    const given = textOf(event.get("body")) orelse return exogate.refuse("The body is no text.", .{});
    if (std.mem.startsWith(u8, textOf(headers.get("content-type")) orelse "", "application/x-www-form-urlencoded"))
        return exogate.refuse("The body is a form; set the content type of the webhook to application/json.", .{});
    const body = try exogate.parse(given);
    if (body != .object) return exogate.refuse("The body is no JSON object.", .{});
    const scheme = textOf(objectOf(event.get("config")).get("scheme")) orelse "";
    if (std.mem.eql(u8, scheme, "github")) return fromGithub(headers, body.object);
    // The id of Standard Webhooks is signed with the body; without one, equal bodies are one message.
    const id = if (std.mem.eql(u8, scheme, "standard")) textOf(headers.get("webhook-id")) else null;
    return exogate.stringify(.{ .messages = .{try messageOf(body.object, id orelse try idOf(body.object.get("id")) orelse try digestOf(given))} });
}

fn messageOf(body: Object, id: []const u8) Failed!Message {
    const sender = body.get("sender");
    const who = try idOf(sender) orelse try idOf(objectOf(sender).get("id")) orelse
        return exogate.refuse("The body has to say who sends it: \"sender\", a text.", .{});
    const text = textOf(body.get("text")) orelse return exogate.refuse("The body has to have a \"text\".", .{});
    return .{
        .peer = try idOf(body.get("peer")) orelse who,
        .kind = if (values.is(body, "kind", "group")) .group else .direct,
        .sender = .{ .id = who, .name = textOf(objectOf(sender).get("name")) },
        .text = text,
        .platform_id = id,
        .thread = try idOf(body.get("thread")),
        .timestamp = try idOf(body.get("timestamp")),
    };
}

fn idOf(value: ?Value) Failed!?[]const u8 {
    const number = values.numberOf(value) orelse {
        const text = textOf(value) orelse return null;
        return if (text.len > 0) text else null;
    };
    return try exogate.print("{d}", .{number});
}

fn digestOf(body: []const u8) Failed![]const u8 {
    var digest: [std.crypto.hash.sha2.Sha256.digest_length]u8 = undefined;
    std.crypto.hash.sha2.Sha256.hash(body, &digest, .{});
    return exogate.print("sha256:{x}", .{digest});
}

// ------------------------------------------------------------------------------------- GitHub
const longest_quote = 2000; // of what somebody wrote there, in bytes
const most_commits = 10;

/// A repository is a room: those who do something in it are the people.
fn fromGithub(headers: Object, body: Object) Failed![]const u8 {
    const kind = textOf(headers.get("x-github-event")) orelse return exogate.refuse("The header X-GitHub-Event is missing.", .{});
    const id = textOf(headers.get("x-github-delivery")) orelse return exogate.refuse("The header X-GitHub-Delivery is missing.", .{});
    if (std.mem.eql(u8, kind, "ping")) return nothing;
    const sender = objectOf(body.get("sender"));
    const login = textOf(sender.get("login")) orelse return nothing;
    const room = textOf(objectOf(body.get("repository")).get("full_name")) orelse
        textOf(objectOf(body.get("organization")).get("login")) orelse login;
    return exogate.stringify(.{ .messages = .{Message{
        .peer = room,
        .kind = .group,
        .sender = .{ .id = login, .name = login, .is_bot = values.is(sender, "type", "Bot") },
        .text = try sentence(kind, login, room, body),
        .platform_id = id,
    }} });
}

fn sentence(kind: []const u8, login: []const u8, room: []const u8, body: Object) Failed![]const u8 {
    var out: std.ArrayList(u8) = .empty;
    if (std.mem.eql(u8, kind, "push")) {
        try pushed(&out, login, room, body);
        return out.items;
    }
    const what = try exogate.allocator.dupe(u8, kind);
    std.mem.replaceScalar(u8, what, '_', ' ');
    try values.write(&out, "GitHub: {s}: {s}", .{ room, what });
    if (textOf(body.get("action"))) |action| {
        const is_merged = std.mem.eql(u8, action, "closed") and values.truth(objectOf(body.get("pull_request")).get("merged"));
        try values.write(&out, " {s}", .{if (is_merged) "merged" else action});
    }
    try values.write(&out, " by {s}", .{login});
    const subject = subjectOf(body);
    if (values.numberOf(subject.get("number"))) |number| try values.write(&out, ", #{d}", .{number});
    if (titleOf(subject)) |title| try values.write(&out, " \"{s}\"", .{title});
    if (textOf(subject.get("conclusion"))) |conclusion| try values.write(&out, ": {s}", .{conclusion});
    // Of a comment on something, the comment is what is new.
    const news = newsOf(body) orelse subject;
    if (textOf(news.get("html_url")) orelse textOf(body.get("compare"))) |url| try values.write(&out, "\n{s}", .{url});
    if (textOf(news.get("body"))) |text| {
        const part = beginning(text);
        if (part.len > 0) try values.write(&out, "\n\n{s}{s}", .{ part, if (part.len < text.len) "…" else "" });
    }
    return out.items;
}

fn pushed(out: *std.ArrayList(u8), login: []const u8, room: []const u8, body: Object) Failed!void {
    const commits = values.itemsOf(body.get("commits"));
    const ref = textOf(body.get("ref")) orelse "";
    const branch = if (std.mem.startsWith(u8, ref, "refs/heads/")) ref["refs/heads/".len..] else ref;
    const did = if (values.truth(body.get("deleted"))) "deleted" else if (values.truth(body.get("forced"))) "force-pushed" else "pushed";
    try values.write(out, "GitHub: {s}: {s} {s} {s}", .{ room, login, did, branch });
    if (commits.len > 0) try values.write(out, ", {d} {s}", .{ commits.len, if (commits.len == 1) "commit" else "commits" });
    if (textOf(body.get("compare"))) |url| try values.write(out, "\n{s}", .{url});
    for (commits[0..@min(commits.len, most_commits)]) |one| {
        const message = textOf(objectOf(one).get("message")) orelse continue;
        try values.write(out, "\n- {s}", .{beginning(message[0 .. std.mem.indexOfScalar(u8, message, '\n') orelse message.len])});
    }
    if (commits.len > most_commits) try values.write(out, "\n- and {d} more", .{commits.len - most_commits});
}

fn subjectOf(body: Object) Object {
    for ([_][]const u8{ "issue", "pull_request", "discussion", "release", "workflow_run", "check_run", "check_suite", "milestone" }) |name| {
        if (body.get(name)) |value| if (value == .object) return value.object;
    }
    return .empty;
}

fn newsOf(body: Object) ?Object {
    for ([_][]const u8{ "comment", "review" }) |name| {
        if (body.get(name)) |value| if (value == .object) return value.object;
    }
    return null;
}

fn titleOf(subject: Object) ?[]const u8 {
    return textOf(subject.get("title")) orelse textOf(subject.get("name")) orelse textOf(subject.get("tag_name"));
}

/// As much as is quoted, cut between characters.
fn beginning(text: []const u8) []const u8 {
    if (text.len <= longest_quote) return text;
    var end: usize = longest_quote;
    while (text[end] & 0xc0 == 0x80) end -= 1;
    return text[0..end];
}

// ------------------------------------------------------------------------------- what goes out
pub fn format(reply: Object) Failed![]const u8 {
    const url = textOf(objectOf(reply.get("config")).get("reply_url")) orelse "";
    if (url.len == 0 or !values.is(reply, "do", "send")) return "{\"requests\": []}";
    const key = textOf(reply.get("key")) orelse "";
    return exogate.stringify(.{ .requests = .{.{
        .url = if (url[0] == '/') try exogate.print("{s}{s}", .{ textOf(reply.get("api_base")) orelse "", url }) else url,
        .headers = .{ .@"content-type" = "application/json", .authorization = "Bearer ${secret:reply_token}" },
        .body = try exogate.stringify(.{
            .id = key,
            .peer = textOf(reply.get("peer")),
            .thread = textOf(reply.get("thread")),
            .reply_to = textOf(reply.get("reply_to")),
            .text = textOf(reply.get("text")) orelse "",
        }),
        .idempotency = .{ .key = key, .header = "idempotency-key" },
    }} });
}

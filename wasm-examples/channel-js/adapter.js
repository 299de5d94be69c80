// Connects a chat service that calls a webhook for each message and takes answers over HTTPS.
// The gateway owns the connections and the secrets: this only translates.
import { write } from "exogate:plugin/log@1.0.0";

const LONGEST_TEXT = 4000;

// What the gateway is told about this adapter: how messages come, how to check that they are
// genuine (before this code sees a byte), and where answers go.
const DESCRIPTION = {
  name: "chatrelay",
  version: "0.1.0",
  kind: "channel",
  description: "A chat service with a webhook for messages and an HTTP interface for answers.",
  channel: "chatrelay",
  transports: [{ type: "webhook", methods: ["POST"] }],
  verify: {
    type: "hmac_sha256",
    secret: "webhook_secret",
    header: "x-chatrelay-signature",
    prefix: "sha256=",
  },
  outbound: {
    secrets: ["bot_token"],
    message_id: "id",
    retry_statuses: [429, 500, 502, 503, 504],
    idempotency: true,
  },
  limits: { text: LONGEST_TEXT },
};

export function describe() {
  return JSON.stringify(DESCRIPTION);
}

// A webhook call becomes messages. What is no message of a person gives none; what cannot be read
// is refused with a sentence for the operator's log.
export function parseIncoming(input) {
  const event = parsed(parsed(input, "event").body, "body");
  if (event.type !== "message" || event.sender?.is_bot) {
    write("debug", `nothing to do for ${event.type}`);
    return JSON.stringify({ messages: [], reply: { status: 200, body: "" } });
  }
  const { id, room, sender, text, sent_at: sentAt } = event;
  if (!id || !room?.id || !sender?.id || typeof text !== "string") {
    throw "the message has no id, room, sender or text";
  }
  const message = {
    account: event.workspace ?? "default",
    peer: room.is_direct ? sender.id : room.id,
    guild: room.is_direct ? undefined : event.workspace,
    thread: event.thread_id,
    sender: { id: sender.id, name: sender.name },
    text,
    platform_id: id,
    timestamp: sentAt,
    reply_to: event.reply_to,
    mentions_me: Boolean(event.mentions_me),
    attachments: (event.files ?? []).map(({ url, name, mime }) => ({ url, name, mime })),
    kind: room.is_direct ? "direct" : "group",
  };
  return JSON.stringify({ messages: [message], reply: { status: 200, body: "" } });
}

// An answer becomes HTTP requests. The host fills in ${secret:NAME}; this code never sees it.
export function formatOutgoing(input) {
  const { peer, thread, text, reply_to: replyTo, id, config } = parsed(input, "reply");
  if (!config?.api_base) throw "config.api_base has to be the address of the service";
  const url = `${config.api_base}/rooms/${encodeURIComponent(peer)}/messages`;
  const requests = pieces(text).map((piece, at) => ({
    method: "POST",
    url,
    headers: {
      "authorization": "Bearer ${secret:bot_token}",
      "content-type": "application/json",
    },
    body: JSON.stringify({ text: piece, thread_id: thread, reply_to: at === 0 ? replyTo : undefined }),
    idempotency: { header: "idempotency-key", key: `${id}-${at}` },
  }));
  return JSON.stringify({ requests });
}

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch {
    throw `the ${what} is not valid JSON`;
  }
}

// A text in pieces that the service takes, cut at a line or a space where there is one.
function pieces(text) {
  const made = [];
  let rest = [...text];
  while (rest.length > LONGEST_TEXT) {
    const part = rest.slice(0, LONGEST_TEXT);
    const at = Math.max(part.lastIndexOf("\n"), part.lastIndexOf(" "));
    const end = at > LONGEST_TEXT / 2 ? at : LONGEST_TEXT;
    made.push(rest.slice(0, end).join(""));
    rest = rest.slice(at === end ? end + 1 : end);
  }
  return [...made, rest.join("")];
}

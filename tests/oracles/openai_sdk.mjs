// What the official openai SDK for Node hears: openai_sdk.mjs URL TOKEN writes it as JSON.
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey });
const asking = (content) => ({ model: "main", messages: [{ role: "user", content }] });
const refused = async (request) => {
  try {
    await client.chat.completions.create(request);
  } catch (error) {
    return error;
  }
  throw new Error("it was not refused");
};

const models = [];
for await (const model of client.models.list()) models.push(model.id);
const whole = await client.chat.completions.create(asking("hi"));
let streamed = "";
let usage = false;
const stream = await client.chat.completions.create({
  ...asking("hi"),
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage ||= (chunk.usage?.total_tokens ?? 0) > 0;
}
const unknown = await refused({ ...asking("hi"), model: "nobody" });
const many = await refused({ ...asking("hi"), n: 2 });
const failed = await refused(asking("fail"));
const stranger = new OpenAI({ baseURL, apiKey: "wrong" });
const unauthorized = await stranger.models.list().catch((error) => error.status);

console.log(
  JSON.stringify({
    models,
    whole: whole.choices[0].message.content,
    streamed,
    usage,
    unknown: [unknown.status, unknown.code],
    refused: [many.status, many.param],
    failed: [failed.status, failed.code],
    unauthorized,
  }),
);

// Counts the words and characters of a text.
import { write } from "exogate:plugin/log@1.0.0";

// What the gateway and the model are told about this plugin.
const DESCRIPTION = {
  name: "wordcount",
  version: "0.1.0",
  kind: "tool",
  description: "Counts the words and characters of a text.",
  tools: [
    {
      name: "wordcount",
      description: "Counts the words and characters of a text.",
      parameters: {
        type: "object",
        properties: { text: { type: "string", description: "the text to count" } },
        required: ["text"],
        additionalProperties: false,
      },
      category: "meta",
      annotations: { readOnlyHint: true, idempotentHint: true },
    },
  ],
};

export function describe() {
  return JSON.stringify(DESCRIPTION);
}

// Gets {"tool", "arguments", "call_id", "session", "config"} as JSON and gives JSON back.
// A text that is thrown is shown to the model: say what is wrong and what to do.
export function handleToolCall(input) {
  const { text } = JSON.parse(input).arguments;
  if (typeof text !== "string") throw "The argument text has to be a text.";
  const words = text.split(/\s+/).filter((word) => word !== "").length;
  write("info", `counted ${words} words`);
  return JSON.stringify({ words, characters: [...text].length });
}

// What the official parser finds in the AsyncAPI document on standard input: asyncapi_parser.mjs writes it as JSON.
import { readFileSync } from "node:fs";
import { Parser } from "@asyncapi/parser";

const { document, diagnostics } = await new Parser().parse(readFileSync(0, "utf8"));
console.log(JSON.stringify({
  version: document?.version() ?? null,
  operations: document?.operations().all().map((one) => one.id()) ?? [],
  diagnostics: diagnostics.map(({ code, message, path, severity }) => ({ code, message, path, severity })),
}));

// Enough of JSON to read a tool's arguments. The host sends valid JSON; these walk over it.
function afterSpace(json: string, from: i32): i32 {
  let at = from;
  while (at < json.length && json.charCodeAt(at) <= 32) at++;
  return at;
}

function stringEnd(json: string, from: i32): i32 {
  let at = from + 1;
  while (at < json.length && json.charAt(at) != '"') at += json.charAt(at) == "\\" ? 2 : 1;
  return at + 1;
}

function valueEnd(json: string, from: i32): i32 {
  let depth = 0;
  for (let at = from; at < json.length; at++) {
    const char = json.charAt(at);
    if (char == '"') {
      at = stringEnd(json, at) - 1;
      if (depth == 0) return at + 1;
    } else if (char == "{" || char == "[") depth++;
    else if (char == "}" || char == "]") {
      if (--depth < 0) return at;
      if (depth == 0) return at + 1;
    } else if (char == "," && depth == 0) return at;
  }
  return json.length;
}

// The member of an object, as JSON; empty if there is none.
export function member(json: string, name: string): string {
  let at = afterSpace(json, 0);
  if (json.charAt(at) != "{") return "";
  at = afterSpace(json, at + 1);
  while (json.charAt(at) == '"') {
    let end = stringEnd(json, at);
    const found = json.substring(at + 1, end - 1);
    at = afterSpace(json, afterSpace(json, end) + 1);
    end = valueEnd(json, at);
    if (found == name) return json.substring(at, end);
    at = afterSpace(json, afterSpace(json, end) + 1);
  }
  return "";
}

// What a JSON string says; null if it is none.
export function textOf(json: string): string | null {
  if (json.charAt(0) != '"') return null;
  const parts = new Array<string>();
  let from = 1;
  for (let at = 1; at < json.length - 1; at++) {
    if (json.charAt(at) != "\\") continue;
    parts.push(json.substring(from, at));
    const escape = json.charAt(++at);
    if (escape == "u") {
      parts.push(String.fromCharCode(u16(parseInt(json.substring(at + 1, at + 5), 16))));
      at += 4;
    } else if (escape == "n") parts.push("\n");
    else if (escape == "t") parts.push("\t");
    else if (escape == "r") parts.push("\r");
    else if (escape == "b") parts.push("\b");
    else if (escape == "f") parts.push("\f");
    else parts.push(escape);
    from = at + 1;
  }
  parts.push(json.substring(from, json.length - 1));
  return parts.join("");
}

// What a tool needs to speak with the gateway: texts in and out by the canonical ABI, and the
// host's log.
import { DESCRIPTION, call } from "./tool";

export enum Level { Debug, Info, Warn, Error }

// @ts-ignore: decorator
@external("exogate:plugin/log@1.0.0", "write")
declare function log_write(level: i32, message: usize, length: usize): void;

export function log(level: Level, message: string): void {
  const bytes = String.UTF8.encode(message);
  log_write(level, changetype<usize>(bytes), bytes.byteLength);
}

// What a tool gives back: JSON, or a sentence that is shown to the model.
export class Answer {
  constructor(public isError: bool, public text: string) {}
  static ok(json: string): Answer { return new Answer(false, json); }
  static refused(sentence: string): Answer { return new Answer(true, sentence); }
}

// ------------------------------------------------------------------------------------- exports
const AREA: usize = memory.data(12);
let kept: ArrayBuffer = new ArrayBuffer(0);

function put(at: usize, text: string): void {
  kept = String.UTF8.encode(text);
  store<usize>(at, changetype<usize>(kept));
  store<i32>(at + 4, kept.byteLength);
}

export function cabi_realloc(old: usize, oldLength: usize, align: usize, length: usize): usize {
  const made = heap.alloc(length);
  memory.copy(made, old, min(oldLength, length));
  return made;
}

export function describe(): usize {
  put(AREA, DESCRIPTION);
  return AREA;
}

export function handle_tool_call(input: usize, length: usize): usize {
  const answer = call(String.UTF8.decodeUnsafe(input, length));
  store<i32>(AREA, answer.isError ? 1 : 0);
  put(AREA + 4, answer.text);
  return AREA;
}

;; Asks for the time for ever.
(module
  (import "exogate:plugin/clock@1.0.0" "now-ms" (func $now (result i64)))
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (loop $on (drop (call $now)) (br $on)) (unreachable)))

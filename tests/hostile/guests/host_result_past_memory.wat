;; Wants the host to answer behind its memory.
(module
  (import "exogate:plugin/host@1.0.0" "call" (func $call (param i32 i32 i32 i32 i32)))
  {{base}}
  (data (i32.const 600) "up")
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $call (i32.const 600) (i32.const 2) (local.get $input) (local.get $length) (i32.const -4))
    (unreachable)))

;; Logs a million lines.
(module
  (import "exogate:plugin/log@1.0.0" "write" (func $log (param i32 i32 i32)))
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32) (local $left i32)
    (local.set $left (i32.const 1000000))
    (loop $on
      (call $log (i32.const 1) (local.get $input) (local.get $length))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $on (local.get $left)))
    (call $ok (local.get $input) (local.get $length))))

;; Logs a hundred lines of a megabyte each.
(module
  (import "exogate:plugin/log@1.0.0" "write" (func $log (param i32 i32 i32)))
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32) (local $left i32)
    (drop (memory.grow (i32.const 20)))
    (memory.fill (i32.const 65536) (i32.const 49) (i32.const 1048576))
    (local.set $left (i32.const 100))
    (loop $on
      (call $log (i32.const 2) (i32.const 65536) (i32.const 1048576))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $on (local.get $left)))
    (call $ok (i32.const 65536) (i32.const 1))))

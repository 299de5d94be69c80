;; Asks for the time before it was called, from its start function.
(component
  (import "exogate:plugin/clock@1.0.0" (instance $clock (export "now-ms" (func (result u64)))))
  (core func $f (canon lower (func $clock "now-ms")))
  (core module $m (import "x" "f" (func $f (result i64)))
    {{base}}
    (func $start (loop $on (drop (call $f)) (br $on)))
    (start $start)
    (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
      (call $ok (local.get $input) (local.get $length))))
  (core instance $i (instantiate $m (with "x" (instance (export "f" (func $f))))))
  {{lifts}})

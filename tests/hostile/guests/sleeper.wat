;; Sleeps for a day, by the poll of WASI.
(component
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $p (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $p))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
    (alias outer 1 $pollable (type $q))
    (export "pollable" (type $p (eq $q)))
    (export "subscribe-duration" (func (param "when" u64) (result (own $p))))))
  (core func $block (canon lower (func $poll "[method]pollable.block")))
  (core func $after (canon lower (func $clock "subscribe-duration")))
  (core module $m
    (import "x" "block" (func $block (param i32)))
    (import "x" "after" (func $after (param i64) (result i32)))
    {{base}}
    (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
      (call $block (call $after (i64.const 86400000000000)))
      (call $ok (local.get $input) (local.get $length))))
  (core instance $i (instantiate $m (with "x" (instance
    (export "block" (func $block)) (export "after" (func $after))))))
  {{lifts}})

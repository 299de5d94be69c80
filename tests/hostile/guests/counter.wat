;; Counts its calls in a global.
(module
  {{base}}
  (global $calls (mut i32) (i32.const 48))
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    (i32.store8 (i32.const 600) (global.get $calls))
    (call $ok (i32.const 600) (i32.const 1))))

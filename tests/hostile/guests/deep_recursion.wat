;; Calls itself until the stack is full.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $down (i64.const 1)) (unreachable))
  (func $down (param i64) (call $down (i64.add (local.get 0) (i64.const 1))) (drop (i64.const 1))))

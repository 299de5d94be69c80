;; Says what it is in words.
(module
  {{memory}} {{realloc}} {{answer}}
  (data (i32.const 600) "a tool")
  (func (export "describe") (result i32)
    (i32.store (i32.const 16) (i32.const 600)) (i32.store (i32.const 20) (i32.const 6)) (i32.const 16))
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (local.get $input) (local.get $length))))

;; Says that its tools are a number.
(module
  {{memory}} {{realloc}} {{answer}}
  (data (i32.const 600) "{\22name\22:\22x\22,\22tools\22:1}")
  (func (export "describe") (result i32)
    (i32.store (i32.const 16) (i32.const 600)) (i32.store (i32.const 20) (i32.const 22)) (i32.const 16))
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (local.get $input) (local.get $length))))

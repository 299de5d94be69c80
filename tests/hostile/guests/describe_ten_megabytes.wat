;; Says what it is in ten megabytes.
(module
  {{memory}} {{realloc}} {{answer}}
  (func (export "describe") (result i32)
    (drop (memory.grow (i32.const 170)))
    (memory.fill (i32.const 65536) (i32.const 49) (i32.const 10485760))
    (i32.store (i32.const 16) (i32.const 65536)) (i32.store (i32.const 20) (i32.const 10485760))
    (i32.const 16))
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (local.get $input) (local.get $length))))

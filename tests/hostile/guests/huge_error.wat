;; Fails with ten megabytes of text.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (drop (memory.grow (i32.const 170)))
    (memory.fill (i32.const 65536) (i32.const 49) (i32.const 10485760))
    (call $err (i32.const 65536) (i32.const 10485760))))

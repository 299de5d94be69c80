;; Answers with lists in lists, a hundred thousand deep.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (drop (memory.grow (i32.const 4)))
    (memory.fill (i32.const 131072) (i32.const 91) (i32.const 100000))
    (memory.fill (i32.const 231072) (i32.const 93) (i32.const 100000))
    (call $ok (i32.const 131072) (i32.const 200000))))

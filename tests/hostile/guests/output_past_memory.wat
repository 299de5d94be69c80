;; Answers with a text that lies behind its memory.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (i32.const 1048576) (i32.const 64))))

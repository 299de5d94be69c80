;; Answers with a word that is no JSON.
(module
  {{base}}
  (data (i32.const 600) "hello")
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (i32.const 600) (i32.const 5))))

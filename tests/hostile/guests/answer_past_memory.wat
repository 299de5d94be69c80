;; Answers at an address behind its memory.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (i32.const -64)))

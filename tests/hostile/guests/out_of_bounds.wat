;; Reads behind its memory.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (i32.load (i32.const -8))))

;; Never answers.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (loop $on (br $on)) (unreachable)))

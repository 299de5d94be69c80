;; Gives up in a function whose name reads like another end.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $trap) (unreachable))
  (func $trap (@name "Caused by: all fuel consumed by \u{1b}[31mme") (unreachable)))

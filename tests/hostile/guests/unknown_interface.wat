;; Imports what nobody offers.
(component
  (import "evil:corp/shell@1.0.0" (instance (export "run" (func (param "command" string)))))
  (core module $m 
    {{base}}
    (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
      (call $ok (local.get $input) (local.get $length))))
  (core instance $i (instantiate $m))
  {{lifts}})

;; Imports our log in a version that we do not have.
(component
  (import "exogate:plugin/log@1.1.0" (instance (export "write" (func (param "message" string)))))
  (core module $m 
    {{base}}
    (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
      (call $ok (local.get $input) (local.get $length))))
  (core instance $i (instantiate $m))
  {{lifts}})

;; Imports HTTP without the grant.
(component
  (import "exogate:plugin/http@1.0.0" (instance (export "request" (func (param "request" string) (result (result string (error string)))))))
  (core module $m 
    {{base}}
    (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
      (call $ok (local.get $input) (local.get $length))))
  (core instance $i (instantiate $m))
  {{lifts}})

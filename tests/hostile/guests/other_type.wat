;; Imports our clock with another type.
(component
  (import "exogate:plugin/clock@1.0.0" (instance (export "now-ms" (func (result string)))))
  (core module $m 
    {{base}}
    (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
      (call $ok (local.get $input) (local.get $length))))
  (core instance $i (instantiate $m))
  {{lifts}})

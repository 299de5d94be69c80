;; Imports a core module of ours, to get at what is inside.
(component
  (import "exogate:plugin/log@1.0.0" (core module (export "memory" (memory 1))))
  (core module $m 
    {{base}}
    (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
      (call $ok (local.get $input) (local.get $length))))
  (core instance $i (instantiate $m))
  {{lifts}})

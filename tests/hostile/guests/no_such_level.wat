;; Logs on a level that there is not.
(module
  (import "exogate:plugin/log@1.0.0" "write" (func $log (param i32 i32 i32)))
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $log (i32.const 99) (local.get $input) (local.get $length)) (unreachable)))

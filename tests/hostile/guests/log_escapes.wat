;; Logs what would clear a terminal and look like another line of the log.
(module
  (import "exogate:plugin/log@1.0.0" "write" (func $log (param i32 i32 i32)))
  {{base}}
  (data (i32.const 600) "x\1b[2J\0d\0aERROR the gateway is broken\e2\80\ae\c2\9b")
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $log (i32.const 3) (i32.const 600) (i32.const 39))
    (call $ok (i32.const 603) (i32.const 1))))

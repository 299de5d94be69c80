;; Does what its input says: a letter for a host function, its texts each on a line of its own.
(module
  (import "exogate:plugin/log@1.0.0" "write" (func $log (param i32 i32 i32)))
  (import "exogate:plugin/http@1.0.0" "request" (func $http (param i32 i32 i32)))
  (import "exogate:plugin/store@1.0.0" "get" (func $get (param i32 i32 i32 i32 i32)))
  (import "exogate:plugin/store@1.0.0" "set" (func $set (param i32 i32 i32 i32 i32 i32 i32)))
  (import "exogate:plugin/store@1.0.0" "delete" (func $delete (param i32 i32 i32 i32 i32)))
  (import "exogate:plugin/store@1.0.0" "list" (func $list (param i32 i32 i32 i32 i32)))
  (import "exogate:plugin/clock@1.0.0" "now-ms" (func $now (result i64)))
  (import "exogate:plugin/random@1.0.0" "bytes-hex" (func $random (param i32 i32)))
  (import "exogate:plugin/host@1.0.0" "call" (func $call (param i32 i32 i32 i32 i32)))
  {{base}}
  (data (i32.const 200) "null")
  (global $at (mut i32) (i32.const 0))
  (global $end (mut i32) (i32.const 0))
  ;; The next line: where it begins, and how long it is.
  (func $line (result i32 i32) (local $from i32)
    (local.set $from (global.get $at))
    (block $done (loop $on
      (br_if $done (i32.ge_u (global.get $at) (global.get $end)))
      (br_if $done (i32.eq (i32.load8_u (global.get $at)) (i32.const 10)))
      (global.set $at (i32.add (global.get $at) (i32.const 1)))
      (br $on)))
    (local.get $from)
    (i32.sub (global.get $at) (local.get $from))
    (global.set $at (i32.add (global.get $at) (i32.const 1))))
  (func $null (result i32) (call $ok (i32.const 200) (i32.const 4)))
  ;; A result<string, string> that the host put at 48.
  (func $told (result i32)
    (call $say (i32.load8_u (i32.const 48)) (i32.load (i32.const 52)) (i32.load (i32.const 56))))
  ;; A result<_, string>.
  (func $done (result i32)
    (if (result i32) (i32.load8_u (i32.const 48)) (then (call $told)) (else (call $null))))
  (func $found (result i32)
    (if (i32.load8_u (i32.const 48)) (then (return (call $told))))
    (if (i32.eqz (i32.load8_u (i32.const 52))) (then (return (call $null))))
    (call $ok (i32.load (i32.const 56)) (i32.load (i32.const 60))))
  (func $number (param $left i64) (result i32) (local $to i32)
    (local.set $to (i32.const 320))
    (loop $on
      (local.set $to (i32.sub (local.get $to) (i32.const 1)))
      (i32.store8 (local.get $to)
        (i32.add (i32.const 48) (i32.wrap_i64 (i64.rem_u (local.get $left) (i64.const 10)))))
      (local.set $left (i64.div_u (local.get $left) (i64.const 10)))
      (br_if $on (i64.ne (local.get $left) (i64.const 0))))
    (call $ok (local.get $to) (i32.sub (i32.const 320) (local.get $to))))
  ;; The number in the line, which has to be digits.
  (func $read (result i32) (local $from i32) (local $length i32) (local $value i32)
    (call $line) (local.set $length) (local.set $from)
    (block $end (loop $on
      (br_if $end (i32.eqz (local.get $length)))
      (local.set $value (i32.add (i32.mul (local.get $value) (i32.const 10))
        (i32.sub (i32.load8_u (local.get $from)) (i32.const 48))))
      (local.set $from (i32.add (local.get $from) (i32.const 1)))
      (local.set $length (i32.sub (local.get $length) (i32.const 1)))
      (br $on)))
    (local.get $value))
  ;; What lies at 48 and 52, in quotes.
  (func $quoted (result i32) (local $at i32) (local $length i32)
    (local.set $length (i32.load (i32.const 52)))
    (local.set $at (call $give (i32.const 0) (i32.const 0) (i32.const 1)
      (i32.add (local.get $length) (i32.const 2))))
    (i32.store8 (local.get $at) (i32.const 34))
    (memory.copy (i32.add (local.get $at) (i32.const 1)) (i32.load (i32.const 48)) (local.get $length))
    (i32.store8 (i32.add (i32.add (local.get $at) (local.get $length)) (i32.const 1)) (i32.const 34))
    (call $ok (local.get $at) (i32.add (local.get $length) (i32.const 2))))
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (local $verb i32)
    (local.set $verb (i32.load8_u (local.get $input)))
    (global.set $at (i32.add (local.get $input) (i32.const 1)))
    (global.set $end (i32.add (local.get $input) (local.get $length)))
    (if (i32.eq (local.get $verb) (i32.const 104)) ;; h: the request
      (then (call $line) (call $http (i32.const 48)) (return (call $told))))
    (if (i32.eq (local.get $verb) (i32.const 103)) ;; g: namespace, key
      (then (call $line) (call $line) (call $get (i32.const 48)) (return (call $found))))
    (if (i32.eq (local.get $verb) (i32.const 115)) ;; s: namespace, key, value
      (then (call $line) (call $line) (call $line) (call $set (i32.const 48)) (return (call $done))))
    (if (i32.eq (local.get $verb) (i32.const 100)) ;; d: namespace, key
      (then (call $line) (call $line) (call $delete (i32.const 48)) (return (call $done))))
    (if (i32.eq (local.get $verb) (i32.const 108)) ;; l: namespace, prefix
      (then (call $line) (call $line) (call $list (i32.const 48)) (return (call $told))))
    (if (i32.eq (local.get $verb) (i32.const 120)) ;; x: name, input
      (then (call $line) (call $line) (call $call (i32.const 48)) (return (call $told))))
    (if (i32.eq (local.get $verb) (i32.const 99)) ;; c
      (then (return (call $number (call $now)))))
    (if (i32.eq (local.get $verb) (i32.const 114)) ;; r: how many bytes
      (then (call $random (call $read) (i32.const 48)) (return (call $quoted))))
    (if (i32.eq (local.get $verb) (i32.const 119)) ;; w: level from 0 to 3, message
      (then (call $log (call $read) (call $line)) (return (call $null))))
    (unreachable)))

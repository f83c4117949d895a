;; What a test wants tried, by the first argument: an operation, the digit of a descriptor, and a path.
;;   r3PATH  open for reading, and print what is in it      w3PATH  make and write `made`
;;   l3PATH  make a link to PATH named `link`               d3PATH  make a folder
;;   u3PATH  remove a file                                  e       end with the code that follows as one digit
;; Each prints the error number in two digits, and a line end.
(module
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_symlink" (func $symlink (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_create_directory" (func $mkdir (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_unlink_file" (func $unlink (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 2)
  (data (i32.const 16) "made")
  (data (i32.const 32) "link")
  ;; 64: the vector; 80: what a call gives; 96: two digits and a line end; 1024: arguments; 8192: content
  (func $put (param $at i32) (param $length i32)
    (i32.store (i32.const 64) (local.get $at))
    (i32.store (i32.const 68) (local.get $length))
    (drop (call $write (i32.const 1) (i32.const 64) (i32.const 1) (i32.const 80))))
  (func $tell (param $errno i32)
    (i32.store8 (i32.const 96) (i32.add (i32.const 48) (i32.div_u (local.get $errno) (i32.const 10))))
    (i32.store8 (i32.const 97) (i32.add (i32.const 48) (i32.rem_u (local.get $errno) (i32.const 10))))
    (i32.store8 (i32.const 98) (i32.const 10))
    (call $put (i32.const 96) (i32.const 3)))
  (func (export "_start")
    (local $word i32) (local $length i32) (local $op i32) (local $fd i32) (local $errno i32)
    (drop (call $args_sizes (i32.const 80) (i32.const 84)))
    (drop (call $args (i32.const 512) (i32.const 1024)))
    (local.set $word (i32.load (i32.const 516)))
    (local.set $op (i32.load8_u (local.get $word)))
    (local.set $fd (i32.sub (i32.load8_u offset=1 (local.get $word)) (i32.const 48)))
    (if (i32.eq (local.get $op) (i32.const 101)) (then (call $exit (local.get $fd))))
    (local.set $word (i32.add (local.get $word) (i32.const 2)))
    (local.set $length
      (i32.sub (i32.add (i32.const 1023) (i32.load (i32.const 84))) (local.get $word)))
    (if (i32.eq (local.get $op) (i32.const 114)) (then
      (local.set $errno
        (call $open (local.get $fd) (i32.const 1) (local.get $word) (local.get $length)
          (i32.const 0) (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 88)))
      (call $tell (local.get $errno))
      (if (i32.eqz (local.get $errno)) (then
        (i32.store (i32.const 64) (i32.const 8192))
        (i32.store (i32.const 68) (i32.const 65536))
        (drop (call $read (i32.load (i32.const 88)) (i32.const 64) (i32.const 1) (i32.const 80)))
        (call $put (i32.const 8192) (i32.load (i32.const 80)))))
      (return)))
    (if (i32.eq (local.get $op) (i32.const 119)) (then
      (local.set $errno
        (call $open (local.get $fd) (i32.const 1) (local.get $word) (local.get $length)
          (i32.const 9) (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 88)))
      (if (i32.eqz (local.get $errno)) (then
        (i32.store (i32.const 64) (i32.const 16))
        (i32.store (i32.const 68) (i32.const 4))
        (local.set $errno
          (call $write (i32.load (i32.const 88)) (i32.const 64) (i32.const 1) (i32.const 80)))))
      (call $tell (local.get $errno)) (return)))
    (if (i32.eq (local.get $op) (i32.const 108)) (then
      (call $tell (call $symlink (local.get $word) (local.get $length)
        (local.get $fd) (i32.const 32) (i32.const 4))) (return)))
    (if (i32.eq (local.get $op) (i32.const 100)) (then
      (call $tell (call $mkdir (local.get $fd) (local.get $word) (local.get $length))) (return)))
    (if (i32.eq (local.get $op) (i32.const 117)) (then
      (call $tell (call $unlink (local.get $fd) (local.get $word) (local.get $length))) (return)))
    unreachable))

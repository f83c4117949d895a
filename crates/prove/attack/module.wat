;; The attacker of the self-test where only modules run. It takes the same words as the program does, and says what it
;; did in the same lines; like it, it never judges.
;;
;;   do NONCE STEP [++ STEP]…     STEP is ID VERB [ARGUMENT]…
;;
;;   read PATH…         open each for reading, in every folder that was given, by four spellings
;;   descriptors        whatever is open beyond the streams and the folders
;;   spoil FOLDER       change the file `given` and its folder by every way there is
;;   links OUT TARGET   make links to a file of the host, and one plain file, in every folder
;;   leave MARK PLACE…  make a file in every folder; `find MARK` looks for it
;;   fill-memory MIB    grow and use so much;  fill-file MIB PATH  write so much;  flood MIB  print so much
;;   stay MARK          never end;  await  until standard input ends
;;
;; Memory: words of ours below 1024; 1024 a vector, 1040 what a call gave, 1048 a new descriptor, 1056 sizes; 2048 the
;; arguments' places, 8192 the arguments; 65536 what was read; 131072 a path in the making,
;; 135168 a folder's name; 139264 the variables' places,
;; 147456 the variables.
(module
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_prestat_get" (func $prestat (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_prestat_dir_name" (func $name_of (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_symlink" (func $symlink (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_link" (func $link (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_rename" (func $rename (param i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_unlink_file" (func $unlink (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_create_directory" (func $mkdir (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
  (memory (export "memory") 4)
  (data (i32.const 0) "step \00")
  (data (i32.const 16) "over \00")
  (data (i32.const 32) "end \00")
  (data (i32.const 48) "try \00")
  (data (i32.const 64) " done\n\00")
  (data (i32.const 80) " E\00")
  (data (i32.const 96) "\n\00")
  (data (i32.const 112) "holds \00")
  (data (i32.const 128) "++\00")
  (data (i32.const 160) "read\00")
  (data (i32.const 176) "descriptors\00")
  (data (i32.const 192) "spoil\00")
  (data (i32.const 208) "links\00")
  (data (i32.const 224) "leave\00")
  (data (i32.const 240) "find\00")
  (data (i32.const 256) "fill-memory\00")
  (data (i32.const 272) "flood\00")
  (data (i32.const 288) "stay\00")
  (data (i32.const 304) "left \00")
  (data (i32.const 320) "found folder \00")
  (data (i32.const 336) "left-\00")
  (data (i32.const 352) "filled \00")
  (data (i32.const 368) " all\n\00")
  (data (i32.const 384) "given\00")
  (data (i32.const 400) "new\00")
  (data (i32.const 416) "absolute\00")
  (data (i32.const 432) "upward\00")
  (data (i32.const 448) "plain\00")
  (data (i32.const 464) "../../../../../../../../../../..\00")
  (data (i32.const 512) "there is no verb \00")
  (data (i32.const 544) "descriptors \00")
  (data (i32.const 560) "descriptor \00")
  (data (i32.const 576) "staying \00")
  (data (i32.const 592) "flooded\n\00")
  (data (i32.const 608) "environ\00")
  (data (i32.const 624) " ENOMEM\n\00")
  (data (i32.const 640) "moved\00")
  (data (i32.const 656) "second\00")
  (data (i32.const 672) "folder\00")
  (data (i32.const 688) "fill-file\00")
  (data (i32.const 704) "await\00")
  (data (i32.const 720) "awaiting\n\00")

  ;; --- words ---

  (func $length (param $at i32) (result i32) (local $end i32)
    (local.set $end (local.get $at))
    (block $out (loop $more
      (br_if $out (i32.eqz (i32.load8_u (local.get $end))))
      (local.set $end (i32.add (local.get $end) (i32.const 1)))
      (br $more)))
    (i32.sub (local.get $end) (local.get $at)))

  (func $same (param $a i32) (param $b i32) (result i32)
    (loop $more
      (if (i32.ne (i32.load8_u (local.get $a)) (i32.load8_u (local.get $b))) (then (return (i32.const 0))))
      (if (i32.eqz (i32.load8_u (local.get $a))) (then (return (i32.const 1))))
      (local.set $a (i32.add (local.get $a) (i32.const 1)))
      (local.set $b (i32.add (local.get $b) (i32.const 1)))
      (br $more))
    unreachable)

  ;; Copies a word, and gives where it ends.
  (func $copy (param $to i32) (param $from i32) (result i32) (local $length i32)
    (local.set $length (call $length (local.get $from)))
    (memory.copy (local.get $to) (local.get $from) (i32.add (local.get $length) (i32.const 1)))
    (i32.add (local.get $to) (local.get $length)))

  (func $number_of (param $at i32) (result i32) (local $sum i32)
    (block $out (loop $more
      (br_if $out (i32.eqz (i32.load8_u (local.get $at))))
      (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 10))
        (i32.sub (i32.load8_u (local.get $at)) (i32.const 48))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br $more)))
    (local.get $sum))

  (func $put (param $fd i32) (param $at i32) (param $length i32)
    (block $out (loop $more
      (br_if $out (i32.le_s (local.get $length) (i32.const 0)))
      (i32.store (i32.const 1024) (local.get $at))
      (i32.store (i32.const 1028) (local.get $length))
      (i32.store (i32.const 1040) (i32.const 0))
      (br_if $out (call $fd_write (local.get $fd) (i32.const 1024) (i32.const 1) (i32.const 1040)))
      (br_if $out (i32.eqz (i32.load (i32.const 1040))))
      (local.set $at (i32.add (local.get $at) (i32.load (i32.const 1040))))
      (local.set $length (i32.sub (local.get $length) (i32.load (i32.const 1040))))
      (br $more))))

  (func $say (param $at i32)
    (call $put (i32.const 1) (local.get $at) (call $length (local.get $at))))

  (func $line (param $before i32) (param $word i32)
    (call $say (local.get $before)) (call $say (local.get $word)) (call $say (i32.const 96)))

  (func $number (param $value i32)
    (if (i32.ge_u (local.get $value) (i32.const 10)) (then
      (call $number (i32.div_u (local.get $value) (i32.const 10)))))
    (i32.store8 (i32.const 1064) (i32.add (i32.const 48) (i32.rem_u (local.get $value) (i32.const 10))))
    (call $put (i32.const 1) (i32.const 1064) (i32.const 1)))

  ;; What came of one attempt.
  (func $tried (param $name i32) (param $errno i32)
    (call $say (i32.const 48)) (call $say (local.get $name))
    (if (i32.eqz (local.get $errno)) (then (call $say (i32.const 64)) (return)))
    (call $say (i32.const 80)) (call $number (local.get $errno)) (call $say (i32.const 96)))

  ;; --- files ---

  (func $open (param $fd i32) (param $path i32) (param $how i32) (param $rights i64) (result i32)
    (call $path_open (local.get $fd) (i32.const 1) (local.get $path) (call $length (local.get $path))
      (local.get $how) (local.get $rights) (i64.const 0) (i32.const 0) (i32.const 1048)))

  ;; Prints up to 512 bytes of an open file as text.
  (func $show (param $fd i32) (local $at i32) (local $end i32) (local $byte i32)
    (i32.store (i32.const 1024) (i32.const 65536))
    (i32.store (i32.const 1028) (i32.const 512))
    (i32.store (i32.const 1040) (i32.const 0))
    (drop (call $fd_read (local.get $fd) (i32.const 1024) (i32.const 1) (i32.const 1040)))
    (local.set $at (i32.const 65536))
    (local.set $end (i32.add (i32.const 65536) (i32.load (i32.const 1040))))
    (i32.store8 (local.get $end) (i32.const 0))
    (block $out (loop $more
      (br_if $out (i32.ge_u (local.get $at) (local.get $end)))
      (local.set $byte (i32.load8_u (local.get $at)))
      (if (i32.or (i32.lt_u (local.get $byte) (i32.const 32)) (i32.gt_u (local.get $byte) (i32.const 126)))
        (then (i32.store8 (local.get $at) (i32.const 46))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br $more)))
    (call $line (i32.const 112) (i32.const 65536)))

  ;; One spelling in one folder; 0 where it opened.
  (func $try_read (param $fd i32) (param $path i32) (result i32) (local $errno i32)
    (local.set $errno (call $open (local.get $fd) (local.get $path) (i32.const 0) (i64.const 2)))
    (if (i32.eqz (local.get $errno)) (then
      (call $show (i32.load (i32.const 1048)))
      (drop (call $close (i32.load (i32.const 1048))))))
    (local.get $errno))

  ;; What is left of a path beneath the folder that it names; 0 where it names another.
  (func $beneath (param $fd i32) (param $path i32) (result i32) (local $at i32) (local $left i32)
    (if (call $prestat (local.get $fd) (i32.const 1056)) (then (return (i32.const 0))))
    (local.set $left (i32.load (i32.const 1060)))
    (if (i32.gt_u (local.get $left) (i32.const 4096)) (then (return (i32.const 0))))
    (if (call $name_of (local.get $fd) (i32.const 135168) (local.get $left)) (then (return (i32.const 0))))
    (local.set $at (i32.const 135168))
    (loop $more
      (if (local.get $left) (then
        (if (i32.ne (i32.load8_u (local.get $at)) (i32.load8_u (local.get $path))) (then (return (i32.const 0))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (local.set $path (i32.add (local.get $path) (i32.const 1)))
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (br $more))))
    (if (i32.ne (i32.load8_u (local.get $path)) (i32.const 47)) (then (return (i32.const 0))))
    (i32.add (local.get $path) (i32.const 1)))

  (func $better (param $old i32) (param $new i32) (result i32)
    ;; 8: there is no such folder.
    (if (i32.or (i32.eqz (local.get $old)) (i32.eq (local.get $new) (i32.const 8)))
      (then (return (local.get $old))))
    (local.get $new))

  (func $read (param $path i32) (local $fd i32) (local $result i32) (local $bare i32)
    (local.set $result (i32.const 76))
    (local.set $fd (i32.const 3))
    (local.set $bare (i32.add (local.get $path) (i32.eq (i32.load8_u (local.get $path)) (i32.const 47))))
    (loop $more
      (local.set $result (call $better (local.get $result) (call $try_read (local.get $fd) (local.get $path))))
      (local.set $result (call $better (local.get $result) (call $try_read (local.get $fd) (local.get $bare))))
      (drop (call $copy (call $copy (i32.const 131072) (i32.const 464)) (local.get $path)))
      (local.set $result (call $better (local.get $result) (call $try_read (local.get $fd) (i32.const 131072))))
      (local.set $bare (call $beneath (local.get $fd) (local.get $path)))
      (if (local.get $bare) (then
        (local.set $result
          (call $better (local.get $result) (call $try_read (local.get $fd) (local.get $bare))))))
      (local.set $bare (i32.add (local.get $path) (i32.eq (i32.load8_u (local.get $path)) (i32.const 47))))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $fd) (i32.const 20))))
    (if (call $ends (local.get $path) (i32.const 608)) (then (call $variables)))
    (call $tried (local.get $path) (local.get $result)))

  (func $ends (param $word i32) (param $end i32) (result i32) (local $rest i32)
    (local.set $rest (i32.sub (call $length (local.get $word)) (call $length (local.get $end))))
    (if (i32.lt_s (local.get $rest) (i32.const 0)) (then (return (i32.const 0))))
    (call $same (i32.add (local.get $word) (local.get $rest)) (local.get $end)))

  (func $variables (local $count i32) (local $place i32)
    (drop (call $environ_sizes (i32.const 1056) (i32.const 1060)))
    (if (i32.gt_u (i32.load (i32.const 1060)) (i32.const 65536)) (then (return)))
    (if (i32.gt_u (i32.load (i32.const 1056)) (i32.const 2000)) (then (return)))
    (local.set $count (i32.load (i32.const 1056)))
    (drop (call $environ (i32.const 139264) (i32.const 147456)))
    (local.set $place (i32.const 139264))
    (block $out (loop $more
      (br_if $out (i32.eqz (local.get $count)))
      (call $line (i32.const 112) (i32.load (local.get $place)))
      (local.set $place (i32.add (local.get $place) (i32.const 4)))
      (local.set $count (i32.sub (local.get $count) (i32.const 1)))
      (br $more))))

  (func $descriptors (local $fd i32) (local $count i32)
    (local.set $fd (i32.const 3))
    (loop $more
      (if (call $prestat (local.get $fd) (i32.const 1056)) (then
        (i32.store (i32.const 1024) (i32.const 65536))
        (i32.store (i32.const 1028) (i32.const 1))
        (if (i32.ne (call $fd_read (local.get $fd) (i32.const 1024) (i32.const 1) (i32.const 1040)) (i32.const 8))
          (then
            (local.set $count (i32.add (local.get $count) (i32.const 1)))
            (call $say (i32.const 560)) (call $number (local.get $fd)) (call $say (i32.const 96))
            (call $show (local.get $fd))))))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $fd) (i32.const 64))))
    (call $say (i32.const 544)) (call $number (local.get $count)) (call $say (i32.const 96)))

  (func $spoil (local $fd i32) (local $errno i32)
    (local.set $fd (i32.const 3))
    (loop $more
      ;; To be written, and emptied: O_TRUNC.
      (local.set $errno (call $open (local.get $fd) (i32.const 384) (i32.const 8) (i64.const 64)))
      (if (i32.eqz (local.get $errno)) (then
        (call $put (i32.load (i32.const 1048)) (i32.const 400) (i32.const 3))
        (drop (call $close (i32.load (i32.const 1048))))))
      (call $tried (i32.const 384) (local.get $errno))
      (call $tried (i32.const 400) (call $make (local.get $fd) (i32.const 400) (i32.const 400)))
      (call $tried (i32.const 656) (call $link (local.get $fd) (i32.const 0) (i32.const 384) (i32.const 5)
        (local.get $fd) (i32.const 656) (i32.const 6)))
      (call $tried (i32.const 416) (call $symlink (i32.const 384) (i32.const 5)
        (local.get $fd) (i32.const 416) (i32.const 8)))
      (call $tried (i32.const 672) (call $mkdir (local.get $fd) (i32.const 672) (i32.const 6)))
      (call $tried (i32.const 640) (call $rename (local.get $fd) (i32.const 384) (i32.const 5)
        (local.get $fd) (i32.const 640) (i32.const 5)))
      (call $tried (i32.const 384) (call $unlink (local.get $fd) (i32.const 384) (i32.const 5)))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $fd) (i32.const 12)))))

  ;; A new file with a word in it.
  (func $make (param $fd i32) (param $name i32) (param $word i32) (result i32) (local $errno i32)
    (local.set $errno (call $open (local.get $fd) (local.get $name) (i32.const 1) (i64.const 64)))
    (if (i32.eqz (local.get $errno)) (then
      (call $put (i32.load (i32.const 1048)) (local.get $word) (call $length (local.get $word)))
      (drop (call $close (i32.load (i32.const 1048))))))
    (local.get $errno))

  (func $links (param $target i32) (local $fd i32)
    (local.set $fd (i32.const 3))
    (loop $more
      (drop (call $symlink (local.get $target) (call $length (local.get $target))
        (local.get $fd) (i32.const 416) (i32.const 8)))
      (drop (call $copy (call $copy (i32.const 131072) (i32.const 464)) (local.get $target)))
      (drop (call $symlink (i32.const 131072) (call $length (i32.const 131072))
        (local.get $fd) (i32.const 432) (i32.const 6)))
      (drop (call $make (local.get $fd) (i32.const 448) (i32.const 448)))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $fd) (i32.const 20)))))

  (func $leave (param $mark i32) (local $fd i32) (local $count i32)
    (drop (call $copy (call $copy (i32.const 131072) (i32.const 336)) (local.get $mark)))
    (local.set $fd (i32.const 3))
    (loop $more
      (if (i32.eqz (call $make (local.get $fd) (i32.const 131072) (local.get $mark))) (then
        (local.set $count (i32.add (local.get $count) (i32.const 1)))))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $fd) (i32.const 20))))
    (call $say (i32.const 304)) (call $number (local.get $count)) (call $say (i32.const 96)))

  (func $find (param $mark i32) (local $fd i32)
    (drop (call $copy (call $copy (i32.const 131072) (i32.const 336)) (local.get $mark)))
    (local.set $fd (i32.const 3))
    (loop $more
      (if (i32.eqz (call $open (local.get $fd) (i32.const 131072) (i32.const 0) (i64.const 2))) (then
        (drop (call $close (i32.load (i32.const 1048))))
        (call $say (i32.const 320)) (call $number (local.get $fd)) (call $say (i32.const 96))))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $fd) (i32.const 20)))))

  ;; --- too much, too long ---

  (func $fill (param $mebibytes i32) (local $turn i32) (local $page i32)
    (block $out (loop $more
      (br_if $out (i32.ge_u (local.get $turn) (local.get $mebibytes)))
      (local.set $page (memory.grow (i32.const 16)))
      (if (i32.eq (local.get $page) (i32.const -1)) (then
        (call $say (i32.const 352)) (call $number (local.get $turn)) (call $say (i32.const 624))
        (return)))
      (memory.fill (i32.mul (local.get $page) (i32.const 65536)) (i32.const 7) (i32.const 1048576))
      (local.set $turn (i32.add (local.get $turn) (i32.const 1)))
      (br $more)))
    (call $say (i32.const 352)) (call $number (local.get $turn)) (call $say (i32.const 368)))

  ;; In the folder that the path names.
  (func $fill_file (param $mebibytes i32) (param $path i32)
    (local $fd i32) (local $file i32) (local $turn i32) (local $errno i32)
    (local.set $fd (i32.const 3))
    (local.set $errno (i32.const 76))
    (block $open (loop $more
      (if (call $beneath (local.get $fd) (local.get $path)) (then
        (local.set $errno (call $open (local.get $fd) (call $beneath (local.get $fd) (local.get $path))
          (i32.const 9) (i64.const 64)))
        (br_if $open (i32.eqz (local.get $errno)))))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $fd) (i32.const 20)))))
    (if (local.get $errno) (then (call $filled (i32.const 0) (local.get $errno)) (return)))
    (local.set $file (i32.load (i32.const 1048)))
    (block $full (loop $more
      (br_if $full (i32.ge_u (local.get $turn) (i32.mul (local.get $mebibytes) (i32.const 16))))
      (i32.store (i32.const 1024) (i32.const 65536))
      (i32.store (i32.const 1028) (i32.const 65536))
      (local.set $errno (call $fd_write (local.get $file) (i32.const 1024) (i32.const 1) (i32.const 1040)))
      (br_if $full (local.get $errno))
      (local.set $turn (i32.add (local.get $turn) (i32.const 1)))
      (br $more)))
    (drop (call $close (local.get $file)))
    (call $filled (i32.div_u (local.get $turn) (i32.const 16)) (local.get $errno)))

  (func $filled (param $mebibytes i32) (param $errno i32)
    (call $say (i32.const 352)) (call $number (local.get $mebibytes))
    (if (i32.eqz (local.get $errno)) (then (call $say (i32.const 368)) (return)))
    (call $say (i32.const 80)) (call $number (local.get $errno)) (call $say (i32.const 96)))

  (func $await
    (call $say (i32.const 720))
    (loop $more
      (i32.store (i32.const 1024) (i32.const 65536))
      (i32.store (i32.const 1028) (i32.const 512))
      (i32.store (i32.const 1040) (i32.const 0))
      (if (i32.eqz (call $fd_read (i32.const 0) (i32.const 1024) (i32.const 1) (i32.const 1040))) (then
        (br_if $more (i32.load (i32.const 1040)))))))

  (func $flood (param $mebibytes i32) (local $turn i32)
    (memory.fill (i32.const 65536) (i32.const 120) (i32.const 65536))
    (block $out (loop $more
      (br_if $out (i32.ge_u (local.get $turn) (i32.mul (local.get $mebibytes) (i32.const 16))))
      (call $put (i32.const 1) (i32.const 65536) (i32.const 65536))
      (call $put (i32.const 2) (i32.const 65536) (i32.const 65536))
      (local.set $turn (i32.add (local.get $turn) (i32.const 1)))
      (br $more)))
    (call $say (i32.const 96)) (call $say (i32.const 592)))

  (func $stay (param $mark i32)
    (call $line (i32.const 576) (local.get $mark))
    (loop $more (drop (call $yield)) (br $more)))

  ;; --- steps ---

  (func $word (param $index i32) (result i32)
    (i32.load (i32.add (i32.const 2048) (i32.mul (local.get $index) (i32.const 4)))))

  ;; One verb, with its arguments from `at` to before `end`.
  (func $one (param $verb i32) (param $at i32) (param $end i32)
    (if (call $same (local.get $verb) (i32.const 160)) (then
      (block $out (loop $more
        (br_if $out (i32.ge_u (local.get $at) (local.get $end)))
        (call $read (call $word (local.get $at)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $more)))
      (return)))
    (if (call $same (local.get $verb) (i32.const 176)) (then (call $descriptors) (return)))
    (if (call $same (local.get $verb) (i32.const 192)) (then (call $spoil) (return)))
    (if (call $same (local.get $verb) (i32.const 704)) (then (call $await) (return)))
    (if (i32.lt_u (local.get $at) (local.get $end)) (then
      (if (call $same (local.get $verb) (i32.const 208)) (then
        (call $links (call $word (i32.add (local.get $at) (i32.const 1)))) (return)))
      (if (call $same (local.get $verb) (i32.const 224)) (then
        (call $leave (call $word (local.get $at))) (return)))
      (if (call $same (local.get $verb) (i32.const 240)) (then
        (call $find (call $word (local.get $at))) (return)))
      (if (call $same (local.get $verb) (i32.const 256)) (then
        (call $fill (call $number_of (call $word (local.get $at)))) (return)))
      (if (call $same (local.get $verb) (i32.const 688)) (then
        (call $fill_file (call $number_of (call $word (local.get $at)))
          (call $word (i32.add (local.get $at) (i32.const 1))))
        (return)))
      (if (call $same (local.get $verb) (i32.const 272)) (then
        (call $flood (call $number_of (call $word (local.get $at)))) (return)))
      (if (call $same (local.get $verb) (i32.const 288)) (then
        (call $stay (call $word (local.get $at))) (return)))))
    (call $line (i32.const 512) (local.get $verb)))

  (func (export "_start") (local $count i32) (local $at i32) (local $end i32)
    (drop (call $args_sizes (i32.const 1056) (i32.const 1060)))
    (local.set $count (i32.load (i32.const 1056)))
    (if (i32.gt_u (local.get $count) (i32.const 1500)) (then unreachable))
    (if (i32.gt_u (i32.load (i32.const 1060)) (i32.const 57344)) (then unreachable))
    (drop (call $args (i32.const 2048) (i32.const 8192)))
    (local.set $at (i32.const 3))
    (block $out (loop $more
      (br_if $out (i32.ge_u (i32.add (local.get $at) (i32.const 1)) (local.get $count)))
      (local.set $end (local.get $at))
      (block $found (loop $look
        (br_if $found (i32.ge_u (local.get $end) (local.get $count)))
        (br_if $found (call $same (call $word (local.get $end)) (i32.const 128)))
        (local.set $end (i32.add (local.get $end) (i32.const 1)))
        (br $look)))
      (call $line (i32.const 0) (call $word (local.get $at)))
      (call $one (call $word (i32.add (local.get $at) (i32.const 1)))
        (i32.add (local.get $at) (i32.const 2)) (local.get $end))
      (call $line (i32.const 16) (call $word (local.get $at)))
      (local.set $at (i32.add (local.get $end) (i32.const 1)))
      (br $more)))
    (if (i32.gt_u (local.get $count) (i32.const 2)) (then
      (call $line (i32.const 32) (call $word (i32.const 2)))))))

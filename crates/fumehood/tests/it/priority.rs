//! Nobody inside runs before others of the host, whatever the caller was given.

use crate::lab::{self, Caller, Lab};

#[test]
fn what_runs_before_others_does_not_enter() {
    if !Caller::Root.available() {
        println!("not applicable: only root is given a priority above others");
        return;
    }
    for level in ["container", "process"] {
        for before in [&["chrt", "-f", "5"][..], &["chrt", "-r", "5"], &["nice", "-n", "-30"]] {
            let lab = Lab::new(Caller::Root);
            let mut command = lab.command(before[0]);
            command.args(&before[1..]).arg(lab.binary());
            command.args(["run", "--level", level, "--", "cat", "/proc/self/stat"]);
            let ran = lab::finish(command, b"");
            assert_eq!(ran.code(), 0, "{level} {before:?}: {}", ran.told());
            let out = ran.out();
            // What follows the name, which may hold anything: the state is the third field of `proc(5)`.
            let fields: Vec<_> = out.rsplit_once(')').unwrap().1.split_whitespace().collect();
            let [nice, realtime, policy] = [19, 40, 41].map(|number| fields[number - 3]);
            assert_eq!((realtime, policy), ("0", "0"), "{level} {before:?}: {out}");
            // A caller that lets others go first is taken at its word.
            assert!(nice.parse::<i32>().unwrap() >= 0, "{level} {before:?}: {out}");
        }
    }
}

//! Processes of a run, as the host sees them.

use std::path::PathBuf;

/// All that descend from `pid`, in no order.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let children = |pid: u32| -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        texts
            .flat_map(|text| text.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>())
            .collect()
    };
    let (mut found, mut open) = (Vec::new(), vec![pid]);
    while let Some(next) = open.pop() {
        let below = children(next);
        found.extend(&below);
        open.extend(below);
    }
    found
}

/// The gate of a run, once there is one.
pub(crate) fn gate(keeper: u32) -> Option<u32> {
    let named = |pid: &u32| {
        std::fs::read_to_string(place(*pid, "comm")).is_ok_and(|name| name.trim() == "fumehood-gate")
    };
    descendants(keeper).into_iter().find(named)
}

/// Sends a signal, by its name without `SIG`.
pub(crate) fn kill(pid: u32, signal: &str) {
    let done =
        std::process::Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status().unwrap();
    assert!(done.success(), "kill -{signal} {pid}");
}

/// A file of a process in `/proc`.
pub(crate) fn place(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

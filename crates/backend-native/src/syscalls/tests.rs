use super::*;

#[test]
fn nothing_dangerous_is_allowed_and_no_call_is_named_twice() {
    let allowed =
        [FILES, PROCESSES, MEMORY, SIGNALS, TIME, DESCRIPTORS, SOCKETS, IPC, IDENTITY, SELF_CONFINEMENT]
            .concat();
    let mut seen = std::collections::BTreeSet::new();
    let refused = REFUSED.iter().chain(TRACING).map(|(number, _)| number);
    for number in allowed.iter().chain(refused) {
        assert!(seen.insert(*number), "call {number} stands in two groups");
    }
    let io_uring = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    assert!(io_uring.iter().all(|number| !seen.contains(number)), "io_uring answers ENOSYS");
}

#[test]
fn tracing_is_for_the_debug_profile_alone() {
    let rule = |profile| table(profile, SetId::Allowed, Shared::Nothing).remove(&nr(libc::SYS_ptrace));
    assert_eq!(rule(Syscalls::Default), Some(Rule::Always(Action::Ask)));
    assert_eq!(rule(Syscalls::Debug), Some(Rule::Always(Action::Allow)));
}

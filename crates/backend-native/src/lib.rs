//! The container level: namespaces, private root, seccomp, Landlock and cgroups on this host.

pub mod control;
pub mod init_image;

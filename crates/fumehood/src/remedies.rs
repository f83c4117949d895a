//! Why a host does not let us build a wall, by its settings, and what to paste.

use serde::Serialize;
use std::fs;
use std::path::Path;

/// One setting that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Obstacle {
    /// What is set how, in plain words.
    pub(crate) what: String,
    /// What to paste. May have several lines.
    pub(crate) remedy: String,
}

/// What the host says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) uid: u32,
    /// Whether we are in a container ourselves, and in which kind.
    pub(crate) container: Option<&'static str>,
    /// `kernel.apparmor_restrict_unprivileged_userns`.
    pub(crate) apparmor_restricts: bool,
    /// `kernel.unprivileged_userns_clone`, where the kernel has it.
    pub(crate) clone_forbidden: bool,
    /// `user.max_user_namespaces`.
    pub(crate) no_namespaces: bool,
    /// Whether systemd runs the host.
    pub(crate) systemd: bool,
    /// Where our program is.
    pub(crate) program: String,
}

// === impl Settings ===

impl Settings {
    /// Reads them.
    pub(crate) fn now() -> Self {
        let number =
            |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let program = std::env::current_exe().map(|path| path.display().to_string());
        Self {
            uid: fumehood_sys::host::euid(),
            container: container(),
            apparmor_restricts: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1),
            clone_forbidden: number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0),
            no_namespaces: number("/proc/sys/user/max_user_namespaces") == Some(0),
            systemd: Path::new("/run/systemd/system").exists(),
            program: program.unwrap_or_else(|_| "/usr/local/bin/fumehood".to_owned()),
        }
    }

    /// What may be the reason that a sandbox could not be started.
    pub(crate) fn obstacles(&self) -> Vec<Obstacle> {
        let mut found = Vec::new();
        if self.no_namespaces {
            found.push(Obstacle {
                what: "user namespaces are switched off (`user.max_user_namespaces` is 0)".to_owned(),
                remedy: "sudo sysctl -w user.max_user_namespaces=15000".to_owned(),
            });
        }
        if self.uid != 0 && self.clone_forbidden {
            found.push(Obstacle {
                what:
                    "user namespaces are kept from ordinary users (`kernel.unprivileged_userns_clone` is 0)"
                        .to_owned(),
                remedy: "sudo sysctl -w kernel.unprivileged_userns_clone=1".to_owned(),
            });
        }
        if self.uid != 0 && self.apparmor_restricts {
            found.push(Obstacle {
                what: "AppArmor lets only programs with a profile use user namespaces (`kernel.apparmor_restrict_unprivileged_userns` is 1)".to_owned(),
                remedy: apparmor_profile(&self.program),
            });
        }
        if let Some(kind) = self.container {
            found.push(Obstacle {
                what: format!("this is a container ({kind}), and its own walls may forbid building more"),
                remedy: outer_flags(kind),
            });
        }
        found
    }

    /// How limits that are only watched come to be held by the kernel.
    pub(crate) fn delegation(&self) -> Obstacle {
        let remedy = match (self.systemd, self.container) {
            (true, None) => "systemd-run --user --scope --quiet -p Delegate=yes fumehood run -- COMMAND",
            (_, Some(_)) => {
                "start the outer container with `--cgroupns=private` and a writable `/sys/fs/cgroup`, or as root"
            }
            (false, None) => {
                "run as root, or have an administrator give you a cgroup (`chown -R $USER` of a folder below `/sys/fs/cgroup`)"
            }
        };
        Obstacle { what: "no cgroup is delegated to this user".to_owned(), remedy: remedy.to_owned() }
    }
}

fn container() -> Option<&'static str> {
    let marks = [
        ("/.dockerenv", "Docker"),
        ("/run/.containerenv", "Podman"),
        ("/run/secrets/kubernetes.io", "Kubernetes"),
    ];
    let marked = marks.iter().find(|(path, _)| Path::new(path).exists()).map(|(_, kind)| *kind);
    marked.or_else(|| std::env::var_os("container").map(|_| "as the variable `container` says"))
}

/// The profile lets this one program make user namespaces, and confines it in nothing else.
fn apparmor_profile(program: &str) -> String {
    format!(
        "sudo tee /etc/apparmor.d/fumehood <<'END'\n\
         abi <abi/4.0>,\n\
         include <tunables/global>\n\
         profile fumehood {program} flags=(unconfined) {{\n  userns,\n}}\n\
         END\n\
         sudo apparmor_parser -r /etc/apparmor.d/fumehood"
    )
}

fn outer_flags(kind: &str) -> String {
    match kind {
        "Kubernetes" => "in the pod's securityContext: `procMount: Unmasked`, `seccompProfile: {type: Unconfined}`, `appArmorProfile: {type: Unconfined}`, and `hostUsers: false` (or `capabilities: {add: [SYS_ADMIN]}`)".to_owned(),
        "Podman" => "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL --security-opt label=disable …".to_owned(),
        _ => "docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined --security-opt apparmor=unconfined --cap-add SYS_ADMIN …".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Settings {
        Settings {
            uid: 1000,
            container: None,
            apparmor_restricts: false,
            clone_forbidden: false,
            no_namespaces: false,
            systemd: true,
            program: "/opt/fumehood".to_owned(),
        }
    }

    #[test]
    fn each_setting_has_its_remedy() {
        assert!(plain().obstacles().is_empty());
        let remedy =
            |settings: Settings| settings.obstacles().first().map(|o| o.remedy.clone()).unwrap_or_default();
        assert!(remedy(Settings { no_namespaces: true, ..plain() }).contains("max_user_namespaces"));
        assert!(remedy(Settings { clone_forbidden: true, ..plain() }).contains("userns_clone=1"));
        assert!(
            remedy(Settings { apparmor_restricts: true, ..plain() })
                .contains("profile fumehood /opt/fumehood ")
        );
        assert!(remedy(Settings { container: Some("Docker"), ..plain() }).contains("systempaths=unconfined"));
        assert!(plain().delegation().remedy.contains("Delegate=yes"));
    }

    #[test]
    fn what_stops_only_ordinary_users_is_not_told_to_root() {
        let root = Settings { uid: 0, apparmor_restricts: true, clone_forbidden: true, ..plain() };
        assert!(root.obstacles().is_empty());
    }
}

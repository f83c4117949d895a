//! The variables, PATH and HOME of a command.
//!
//! **Invariant:** no host variable enters but the few named here and those that the envelope names.

use crate::toolchains::Toolchains;
use fumehood_model::envelope::Variable;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Host variables that enter by themselves: how to draw text, in which language, at which time.
const ENTERING: [&str; 5] = ["TERM", "COLORTERM", "NO_COLOR", "LANG", "TZ"];
/// A locale that every system has, and that is UTF-8.
const PLAIN_LOCALE: &str = "C.UTF-8";
/// HOME where the host's own path is taken inside, or where there is no host system.
const SPARE_HOME: &str = "/home/user";
/// Guest paths that HOME can not be in: they are read-only, masked, or something else.
const TAKEN: [&str; 15] = [
    "/usr",
    "/opt",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/lib32",
    "/etc",
    "/proc",
    "/sys",
    "/dev",
    "/tmp",
    "/workspace",
    "/out",
    "/run",
];

/// HOME inside: the host's path, so that what programs have noted down stays true.
pub fn home_at(host_home: Option<&Path>, image: bool) -> PathBuf {
    let fits = |home: &&Path| {
        !image
            && home.is_absolute()
            && home.components().count() > 1
            && !home.components().any(|part| part == std::path::Component::ParentDir)
            && !TAKEN.iter().any(|taken| home.starts_with(taken))
    };
    host_home.filter(fits).map_or_else(|| PathBuf::from(SPARE_HOME), Path::to_owned)
}

/// The whole environment of a command, in order. `host` is ours; `shell` exists inside.
pub fn environment(
    host: &[(OsString, OsString)],
    named: &[Variable],
    toolchains: &Toolchains,
    home_at: &Path,
    shell: &str,
) -> Vec<(OsString, OsString)> {
    let mut inside: Vec<(OsString, OsString)> = Vec::with_capacity(16);
    inside.extend(host.iter().filter(|(name, _)| enters(name)).cloned());
    if !inside.iter().any(|(name, _)| name == "LANG") {
        inside.push(("LANG".into(), PLAIN_LOCALE.into()));
    }
    inside.push(("HOME".into(), home_at.into()));
    inside.push(("PATH".into(), toolchains.path_value()));
    inside.push(("SHELL".into(), shell.into()));
    inside.push(("USER".into(), "user".into()));
    inside.push(("LOGNAME".into(), "user".into()));
    inside.extend(toolchains.variables.iter().map(|(name, folder)| ((*name).into(), folder.into())));
    for variable in named {
        let (name, value) = match variable {
            Variable::Set(name, value) => (name, Some(OsString::from(value))),
            Variable::Copy(name) => (name, lookup(host, name)),
        };
        if let Some(value) = value {
            inside.retain(|(known, _)| known != name.as_str());
            inside.push((name.into(), value));
        }
    }
    inside
}

/// The named host variables that are not set, so that a caller can be told.
pub fn missing<'a>(host: &[(OsString, OsString)], named: &'a [Variable]) -> Vec<&'a str> {
    let unset = |variable: &'a Variable| match variable {
        Variable::Copy(name) if lookup(host, name).is_none() => Some(name.as_str()),
        Variable::Copy(_) | Variable::Set(..) => None,
    };
    named.iter().filter_map(unset).collect()
}

fn enters(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| ENTERING.contains(&name) || name.starts_with("LC_"))
}

fn lookup(host: &[(OsString, OsString)], name: &str) -> Option<OsString> {
    host.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn inside(host_pairs: &[(&str, &str)], named: &[Variable]) -> Vec<(String, String)> {
        let all =
            environment(&host(host_pairs), named, &Toolchains::default(), Path::new("/home/ann"), "/bin/sh");
        all.into_iter().map(|(n, v)| (n.into_string().unwrap(), v.into_string().unwrap())).collect()
    }

    fn value(pairs: &[(String, String)], name: &str) -> Option<String> {
        let all: Vec<_> = pairs.iter().filter(|(known, _)| known == name).collect();
        assert!(all.len() < 2, "{name} is there twice");
        all.first().map(|(_, value)| value.clone())
    }

    #[test]
    fn nothing_of_the_host_enters_but_the_few() {
        let leaky = [
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("LD_PRELOAD", "x"),
            ("SSH_AUTH_SOCK", "x"),
            ("LANGUAGE", "x"),
            ("TMPDIR", "x"),
            ("TERMINFO", "x"),
            ("TERM", "xterm"),
            ("LC_ALL", "C"),
        ];
        let mut names: Vec<_> = inside(&leaky, &[]).into_iter().map(|(name, _)| name).collect();
        names.sort();
        assert_eq!(names, ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "USER"]);
    }

    #[test]
    fn named_variables_replace_ours() {
        let named = [
            Variable::Set("HOME".into(), "/x".into()),
            Variable::Copy("A".into()),
            Variable::Copy("B".into()),
        ];
        let pairs = inside(&[("A", "1"), ("LANG", "de_DE.UTF-8")], &named);
        assert_eq!(value(&pairs, "HOME").as_deref(), Some("/x"));
        assert_eq!(value(&pairs, "A").as_deref(), Some("1"));
        assert_eq!(value(&pairs, "B"), None);
        assert_eq!(value(&pairs, "LANG").as_deref(), Some("de_DE.UTF-8"));
        assert_eq!(missing(&host(&[("A", "1")]), &named), ["B"]);
    }

    #[test]
    fn home_stays_where_it_is_unless_the_place_is_taken() {
        let at = |home: &str| home_at(Some(Path::new(home)), false);
        assert_eq!(at("/home/ann"), Path::new("/home/ann"));
        assert_eq!(at("/root"), Path::new("/root"));
        for home in ["/", "/workspace", "/tmp/x", "/usr/home/x", "relative", "/home/../etc"] {
            assert_eq!(at(home), Path::new(SPARE_HOME), "{home}");
        }
        assert_eq!(home_at(None, false), Path::new(SPARE_HOME));
        assert_eq!(home_at(Some(Path::new("/home/ann")), true), Path::new(SPARE_HOME));
    }
}

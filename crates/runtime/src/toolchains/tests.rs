use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

/// A home folder with programs in it.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn program(&self, path: &str, text: &str) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn host<'a>(&'a self, path: &[&str], variable: &'a dyn Fn(&str) -> Option<OsString>) -> Host<'a> {
        let entry = |entry: &&str| if entry.starts_with('/') { PathBuf::from(entry) } else { self.at(entry) };
        Host { home: self.0.path(), path: path.iter().map(entry).collect(), variable }
    }
}

fn none(_: &str) -> Option<OsString> {
    None
}

fn guests(found: &Toolchains) -> Vec<&Path> {
    found.path.iter().map(|(_, guest)| guest.as_path()).collect()
}

fn look(host: &Host<'_>, views: &Views, command: &str) -> (Toolchains, Resolution) {
    let found = Toolchains::find(host, views, Path::new(command));
    let resolution =
        resolve(host, &found, views, Path::new(command), (Path::new("/workspace"), Path::new("/")));
    (found, resolution)
}

#[test]
fn a_root_comes_in_with_its_path_entry_and_keeps_its_place() {
    let home = Home::new();
    let python = home.program(".pyenv/shims/python", "");
    let host = home.host(&[".pyenv/shims", "bin", "/usr/bin"], &none);
    let (found, resolution) = look(&host, &Views::default(), "python");
    assert_eq!(found.roots, [home.at(".pyenv")]);
    assert_eq!(guests(&found)[..2], [home.at(".pyenv/shims").as_path(), Path::new("/usr/bin")]);
    assert_eq!(resolution.inside, Some(python));
    assert!(!resolution.differs(&found, &Views::default()));
}

#[test]
fn credentials_beside_the_programs_stay_out() {
    let home = Home::new();
    home.program(".cargo/bin/cargo", "");
    home.program(".cargo/credentials.toml", "");
    home.program(".rustup/toolchains/x/bin/cargo", "");
    let (found, _) = look(&home.host(&[".cargo/bin"], &none), &Views::default(), "cargo");
    assert_eq!(found.roots, [home.at(".cargo/bin"), home.at(".rustup")]);
    assert_eq!(found.guest_path(&Views::default(), &home.at(".cargo/credentials.toml")), None);
}

#[test]
fn a_path_entry_that_is_a_link_is_replaced_by_what_it_leads_to() {
    let home = Home::new();
    home.program(".local/share/fnm/node-versions/v1/installation/bin/node", "");
    fs::create_dir_all(home.at("run")).unwrap();
    symlink(home.at(".local/share/fnm/node-versions/v1/installation"), home.at("run/12")).unwrap();
    let (found, resolution) = look(&home.host(&["run/12/bin"], &none), &Views::default(), "node");
    assert_eq!(found.names, ["fnm"]);
    let node = home.at(".local/share/fnm/node-versions/v1/installation/bin/node");
    assert_eq!(resolution.inside, Some(node));
}

#[test]
fn local_bin_comes_in_only_for_a_command_that_is_there_with_what_it_needs() {
    let home = Home::new();
    let python = home.program(".local/share/uv/tools/ruff/bin/python", "");
    let text = format!("#!{}\n", python.display());
    home.program(".local/share/uv/tools/ruff/bin/ruff", &text);
    fs::create_dir_all(home.at(".local/bin")).unwrap();
    symlink(home.at(".local/share/uv/tools/ruff/bin/ruff"), home.at(".local/bin/ruff")).unwrap();
    let host = home.host(&[".local/bin", "/usr/bin"], &none);
    let (other, _) = look(&host, &Views::default(), "true");
    assert!(other.roots.is_empty(), "{other:?}");
    let (found, resolution) = look(&host, &Views::default(), "ruff");
    assert_eq!(found.roots, [home.at(".local/bin"), home.at(".local/share/uv/tools")]);
    assert_eq!(resolution.inside, Some(home.at(".local/bin/ruff")));
}

#[test]
fn a_virtual_environment_in_the_workspace_is_found_at_its_guest_path() {
    let home = Home::new();
    home.program(".local/share/uv/python/3/bin/python3", "");
    fs::create_dir_all(home.at("p/.venv/bin")).unwrap();
    symlink(home.at(".local/share/uv/python/3/bin/python3"), home.at("p/.venv/bin/python")).unwrap();
    let views = Views { shown: vec![(home.at("p"), "/workspace".into())], image: false };
    let (found, resolution) = look(&home.host(&["p/.venv/bin"], &none), &views, "python");
    assert_eq!(found.roots, [home.at(".local/share/uv/python")]);
    assert_eq!(resolution.inside, Some("/workspace/.venv/bin/python".into()));
    assert!(!resolution.differs(&found, &views));
}

#[test]
fn a_command_that_is_not_inside_names_the_flag_that_brings_it_in() {
    let home = Home::new();
    home.program("opt/tool/bin/frobnicate", "");
    let host = home.host(&["opt/tool/bin", "/usr/bin"], &none);
    let (_, resolution) = look(&host, &Views::default(), "frobnicate");
    assert_eq!(resolution.inside, None);
    assert_eq!(resolution.flag, Some(format!("--ro {}", home.at("opt/tool").display())));
    let views = Views { shown: vec![(home.at("opt/tool"), "/tool".into())], image: false };
    let (_, shown) = look(&host, &views, "frobnicate");
    assert_eq!(shown.inside, Some("/tool/bin/frobnicate".into()));
}

#[test]
fn the_home_folder_is_never_proposed() {
    let home = Home::new();
    home.program("bin/mine", "");
    let (_, resolution) = look(&home.host(&["bin"], &none), &Views::default(), "mine");
    assert_eq!(resolution.flag, Some(format!("--ro {}", home.at("bin").display())));
}

#[test]
fn another_program_of_the_same_name_is_noticed() {
    let home = Home::new();
    home.program("bin/true", "");
    let host = home.host(&["bin", "/usr/bin"], &none);
    let (found, resolution) = look(&host, &Views::default(), "true");
    assert_eq!(resolution.inside, Some("/usr/bin/true".into()));
    assert!(resolution.differs(&found, &Views::default()));
}

#[test]
fn a_moved_root_is_told_to_its_manager() {
    let home = Home::new();
    home.program("opt/volta/bin/node", "");
    let volta = home.at("opt/volta");
    let variable = |name: &str| (name == "VOLTA_HOME").then(|| volta.clone().into_os_string());
    let (found, _) = look(&home.host(&["opt/volta/bin"], &variable), &Views::default(), "node");
    assert_eq!(found.roots, [home.at("opt/volta/bin")]);
    assert_eq!(found.variables, [("VOLTA_HOME", home.at("opt/volta"))]);
}

#[test]
fn a_variable_can_not_widen_what_is_shown() {
    for odd in ["/", "relative", "/home/../etc", "/etc"] {
        let home = Home::new();
        let variable = |name: &str| (name == "PYENV_ROOT").then(|| OsString::from(odd));
        let host = home.host(&["/etc/ssl"], &variable);
        let found = Toolchains::find(&host, &Views::default(), Path::new("x"));
        assert!(found.roots.is_empty(), "{odd}: {found:?}");
    }
}

#[test]
fn a_variable_that_names_the_home_folder_is_not_believed() {
    let home = Home::new();
    home.program("bin/x", "");
    home.program(".ssh/id_ed25519", "");
    let whole = home.0.path().to_owned();
    let variable = |name: &str| (name == "PNPM_HOME").then(|| whole.clone().into_os_string());
    let (found, _) = look(&home.host(&["bin"], &variable), &Views::default(), "x");
    assert!(found.roots.is_empty(), "{found:?}");
}

#[test]
fn an_image_has_the_standard_path_alone() {
    let home = Home::new();
    home.program(".pyenv/shims/python", "");
    let views = Views { shown: vec![], image: true };
    let found = Toolchains::find(&home.host(&[".pyenv/shims"], &none), &views, Path::new("python"));
    assert_eq!(found.path_value(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    assert!(found.roots.is_empty());
}

#[test]
fn empty_and_relative_path_entries_are_dropped() {
    let variable = |name: &str| (name == "PATH").then(|| OsString::from(":.:bin:/usr/bin"));
    assert_eq!(Host::new(Path::new("/h"), &variable).path, [PathBuf::from("/usr/bin")]);
}

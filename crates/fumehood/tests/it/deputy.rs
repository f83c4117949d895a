//! What a workspace, an image or an earlier command prepares must not make the launcher or the collector
//! act on the host for it.

use crate::lab::{self, Lab};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Each of these runs as both callers.
macro_rules! both_callers {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn by_root() {
                if crate::lab::Caller::Root.available() {
                    super::$name(&crate::lab::Lab::new(crate::lab::Caller::Root));
                }
            }

            #[test]
            fn by_a_user() {
                super::$name(&crate::lab::Lab::new(crate::lab::Caller::User));
            }
        }
    )*};
}

both_callers! {
    links_of_an_image_stay_in_it
    links_of_a_workspace_make_nothing_on_the_host
    links_of_a_session_make_nothing_on_the_host
    a_cache_in_the_workspace_is_seen
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

fn links_of_an_image_stay_in_it(lab: &Lab) {
    let canary = lab::canary();
    let secret = lab.folder("secret");
    lab.file("secret/key", &canary);
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o755)).unwrap();
    let image = lab.folder("image");
    for (name, to) in [("etc", text(&secret)), ("opt", text(&secret)), ("usr", "/")] {
        symlink(to, image.join(name)).unwrap();
    }
    for (name, to) in [("bin", "usr/usr/bin"), ("lib", "usr/usr/lib"), ("lib64", "usr/usr/lib64")] {
        symlink(to, image.join(name)).unwrap();
    }
    let script = format!("cat /etc/key /opt/key /usr{}/key", text(&secret));
    let ran = lab.run(&["--image", text(&image)], &["/bin/sh", "-c", &script]);
    assert!(!lab::contains(&ran.stdout, &canary), "{}", ran.told());
}

fn links_of_a_workspace_make_nothing_on_the_host(lab: &Lab) {
    let (outside, workspace, data) = (lab.folder("outside"), lab.folder("workspace"), lab.folder("data"));
    symlink(&outside, workspace.join("sub")).unwrap();
    let file = lab.file("data/file", "x");
    for flags in [
        ["--ro", &format!("{}:/workspace/sub/a/b", text(&data))],
        ["--cache", "/workspace/sub/a/b"],
        ["--in", &format!("{}:sub/a/b", text(&file))],
    ] {
        let ran = lab.run(&["--workspace", text(&workspace), flags[0], flags[1]], &["true"]);
        assert!(is_empty(&outside), "{flags:?}: {}", ran.told());
        assert!(ran.err().contains("a link stands on the way"), "{flags:?}: {}", ran.told());
    }
}

fn links_of_a_session_make_nothing_on_the_host(lab: &Lab) {
    let outside = lab.folder("outside");
    let plant = format!("ln -s {0} ~/.cache && ln -s {0} ~/a && printf %s ~", text(&outside));
    let ran = lab.run(&["--session", "s"], &["sh", "-c", &plant]);
    assert_eq!(ran.code(), 0, "{}", ran.told());
    for cache in ["pip", &format!("{}/a/b/c", ran.out())] {
        let ran = lab.run(&["--session", "s", "--cache", cache], &["true"]);
        assert!(is_empty(&outside), "{cache}: {}", ran.told());
        assert_ne!(ran.code(), 0, "{cache}: {}", ran.told());
    }
}

fn a_cache_in_the_workspace_is_seen(lab: &Lab) {
    let workspace = lab.folder("workspace");
    let flags = ["--workspace", text(&workspace), "--cache", "/workspace/deps/kept"];
    let ran = lab.run(&flags, &["sh", "-c", "echo x > deps/kept/file && echo y > deps/other"]);
    assert_eq!(ran.code(), 0, "{}", ran.told());
    let ran = lab.run(&flags, &["cat", "deps/kept/file"]);
    assert_eq!(ran.out(), "x\n", "{}", ran.told());
}

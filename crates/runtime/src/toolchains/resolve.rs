//! Where a command resolves, inside and on the host, and what to do when the two differ.

use super::{Host, Toolchains, Views, is_program, real_path, steps};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where a command is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolution {
    /// The guest path, where the command is inside.
    pub inside: Option<PathBuf>,
    /// The host path that the user's shell would run.
    pub host: Option<PathBuf>,
    /// The flag that would bring the host's program in, where it is not the one inside.
    pub flag: Option<String>,
}

// === impl Resolution ===

impl Resolution {
    /// Whether the sandbox would run another program than the host.
    pub fn differs(&self, toolchains: &Toolchains, views: &Views) -> bool {
        match (&self.inside, &self.host) {
            (Some(inside), Some(host)) => toolchains.guest_path(views, host).as_ref() != Some(inside),
            (Some(_) | None, None) | (None, Some(_)) => false,
        }
    }
}

/// Looks a command up as the guest's `execvp` would, and as the host's shell would. `cwd` is the
/// working directory inside, `host_cwd` the one outside.
pub fn resolve(
    host: &Host<'_>,
    toolchains: &Toolchains,
    views: &Views,
    command: &Path,
    (cwd, host_cwd): (&Path, &Path),
) -> Resolution {
    if command.as_os_str().as_bytes().contains(&b'/') {
        return by_path(host, toolchains, views, command, (cwd, host_cwd));
    }
    let on_host = host.path.iter().map(|entry| entry.join(command)).find(|candidate| is_program(candidate));
    let candidates =
        toolchains.path.iter().map(|(source, guest)| (source.join(command), guest.join(command)));
    let inside = candidates
        .into_iter()
        .find(|(source, _)| runs_inside(toolchains, views, source))
        .map(|(_, guest)| guest);
    let flag = on_host.as_deref().and_then(|program| flag_for(host, toolchains, views, program));
    Resolution { inside, host: on_host, flag }
}

fn by_path(
    host: &Host<'_>,
    toolchains: &Toolchains,
    views: &Views,
    command: &Path,
    (cwd, host_cwd): (&Path, &Path),
) -> Resolution {
    let guest = cwd.join(command);
    let source = views.host_path(&guest).or_else(|| {
        let shown = toolchains.guest_path(views, &guest).is_some();
        shown.then(|| guest.clone())
    });
    let inside = source.is_some_and(|source| runs_inside(toolchains, views, &source)).then(|| guest.clone());
    let on_host = Some(host_cwd.join(command)).filter(|program| is_program(program));
    let flag = match (&inside, &on_host) {
        (None, Some(program)) if command.is_absolute() => Some(show_folder_of(host, program)),
        (None, Some(program)) => Some(format!("--in {}", program.display())),
        (Some(_), _) | (None, None) => None,
    };
    Resolution { inside, host: on_host, flag }
}

/// Whether the host file `source` would run inside. A link does only where that which it leads to is
/// inside as well; links of an image lead within the image, where we do not follow them.
fn runs_inside(toolchains: &Toolchains, views: &Views, source: &Path) -> bool {
    let link = std::fs::symlink_metadata(source).is_ok_and(|facts| facts.file_type().is_symlink());
    match (link, views.image) {
        (true, true) => true,
        (true, false) => {
            is_program(source)
                && real_path(source).is_some_and(|real| toolchains.guest_path(views, &real).is_some())
        }
        (false, _) => is_program(source),
    }
}

/// The flags that would show all that running `program` goes through.
fn flag_for(host: &Host<'_>, toolchains: &Toolchains, views: &Views, program: &Path) -> Option<String> {
    let hidden = |step: &PathBuf| toolchains.guest_path(views, step).is_none();
    let mut flags: Vec<String> = Vec::new();
    for step in steps(program).iter().filter(|step| hidden(step)) {
        let flag = show_folder_of(host, step);
        if !flags.contains(&flag) {
            flags.push(flag);
        }
    }
    (!flags.is_empty()).then(|| flags.join(" "))
}

/// `--ro` for the installation that a program belongs to: the folder above its `bin`, where that is
/// not a place that holds more than one installation, or the home folder.
fn show_folder_of(host: &Host<'_>, program: &Path) -> String {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let above = folder.parent().filter(|above| {
        folder.ends_with("bin") && above.components().count() > 2 && !host.home.starts_with(above)
    });
    format!("--ro {}", above.unwrap_or(folder).display())
}

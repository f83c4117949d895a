//! Finding a guest kernel: one that was built for this level, or else a packaged one with its modules.

use crate::missing::Missing;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What a packaged kernel has as modules: the machine's devices and the file systems of the root.
const WANTED: [&str; 7] =
    ["virtio_mmio", "virtio_blk", "virtio_console", "virtio_net", "virtio_rng", "erofs", "overlay"];
/// Without it randomness comes from the processor and from us alone.
const OPTIONAL: [&str; 1] = ["virtio_rng"];
/// More modules than that need each other nowhere.
const MOST_MODULES: usize = 64;
const MODULE_LIMIT_BYTES: u64 = 32 << 20;

/// A kernel that a machine can boot.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) image: PathBuf,
    /// Where its modules are; a kernel of ours has none.
    pub(crate) modules: Option<PathBuf>,
    /// What tells it from another one at the same place.
    pub(crate) identity: String,
}

/// One module, to be loaded after those before it.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
}

// === impl Kernel ===

impl Kernel {
    /// Looks in `kernels` of the state folder, then in `/boot`.
    pub(crate) fn find(kernels: &Path) -> Result<Self, Missing> {
        let built = newest(kernels, |entry| entry.join("vmlinux"));
        if let Some(kernel) = built.and_then(|image| Self::at(image, None)) {
            return Ok(kernel);
        }
        packaged().and_then(|(image, modules)| Self::at(image, Some(modules))).ok_or_else(|| Missing {
            what: "a guest kernel",
            why: format!(
                "there is none in {}, and no packaged one with modules in /boot",
                kernels.display()
            ),
            remedy: "`apt-get install linux-image-cloud-amd64`, or build a smaller one that boots three times as fast: `scripts/guest-kernel`".to_owned(),
        })
    }

    fn at(image: PathBuf, modules: Option<PathBuf>) -> Option<Self> {
        let meta = fs::metadata(&image).ok().filter(fs::Metadata::is_file)?;
        fs::File::open(&image).ok()?;
        let identity = format!(
            "{}:{}:{}:{}:{}",
            image.display(),
            meta.ino(),
            meta.len(),
            meta.mtime(),
            meta.mtime_nsec()
        );
        Some(Self { image, modules, identity })
    }

    /// Whether its devices are told by ACPI: a packaged kernel does not read them from its command line.
    pub(crate) const fn needs_acpi(&self) -> bool {
        self.modules.is_some()
    }

    /// In one word or two.
    pub(crate) fn describe(&self) -> String {
        let kind = if self.modules.is_some() { "packaged" } else { "built for this level" };
        format!("{} ({kind})", self.image.display())
    }

    /// Its modules that a machine needs, in an order in which they can be loaded.
    pub(crate) fn load(&self) -> Result<Vec<Module>, Missing> {
        let Some(folder) = &self.modules else { return Ok(Vec::new()) };
        let missing = |why: String| Missing {
            what: "a module of the guest kernel",
            why,
            remedy: "install the whole package of that kernel, or build one: `scripts/guest-kernel`"
                .to_owned(),
        };
        let files = module_files(&folder.join("kernel"));
        let builtin = builtin(folder);
        let mut loaded = Vec::new();
        let mut seen = BTreeSet::new();
        for name in WANTED {
            if builtin.contains(name) || (OPTIONAL.contains(&name) && !files.contains_key(name)) {
                continue;
            }
            add(name, &files, &builtin, (&mut seen, &mut loaded)).map_err(missing)?;
        }
        Ok(loaded)
    }
}

/// Adds a module after those that it depends on.
fn add(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    builtin: &BTreeSet<String>,
    (seen, loaded): (&mut BTreeSet<String>, &mut Vec<Module>),
) -> Result<(), String> {
    if builtin.contains(name) || !seen.insert(name.to_owned()) {
        return Ok(());
    }
    if seen.len() > MOST_MODULES {
        return Err("they depend on too many others".to_owned());
    }
    let path = files.get(name).ok_or_else(|| format!("`{name}` is not there, or it is compressed"))?;
    let length = fs::metadata(path).map_or(u64::MAX, |meta| meta.len());
    if length > MODULE_LIMIT_BYTES {
        return Err(format!("`{}` has {length} bytes", path.display()));
    }
    let content = fs::read(path).map_err(|error| format!("`{}`: {error}", path.display()))?;
    for needed in dependencies(&content) {
        add(&needed, files, builtin, (seen, loaded))?;
    }
    loaded.push(Module { name: name.to_owned(), content });
    Ok(())
}

/// What a module says that it needs: `depends=a,b` among the zero-terminated strings of its `.modinfo`.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|part| part == KEY) else { return Vec::new() };
    let rest = module.get(start + KEY.len()..).unwrap_or_default();
    let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    let names = text.split(|byte| *byte == b',').filter(|name| !name.is_empty());
    names.map(|name| plain(&String::from_utf8_lossy(name))).collect()
}

/// Modules are named with either of two characters.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// Every uncompressed module, by name.
fn module_files(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                Ok(kind) if kind.is_file() && path.extension().is_some_and(|end| end == "ko") => {
                    let name = path.file_stem().map(|stem| plain(&stem.to_string_lossy()));
                    files.extend(name.map(|name| (name, path)));
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
    files
}

/// What a kernel has without a module.
fn builtin(folder: &Path) -> BTreeSet<String> {
    let list = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
    let stems = list.lines().filter_map(|line| Path::new(line).file_stem());
    stems.map(|stem| plain(&stem.to_string_lossy())).collect()
}

/// The packaged kernel to use: one for clouds before others, a newer one before older ones.
fn packaged() -> Option<(PathBuf, PathBuf)> {
    let mut found: Vec<_> = fs::read_dir("/boot")
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let release = name.strip_prefix("vmlinuz-")?.to_owned();
            let modules = Path::new("/lib/modules").join(&release);
            let cloud = release.contains("cloud");
            modules.join("kernel").is_dir().then_some((cloud, version(&release), entry.path(), modules))
        })
        .collect();
    found.sort();
    found.pop().map(|(_, _, image, modules)| (image, modules))
}

/// The numbers of a release, which compare as versions do.
fn version(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// Of the folders in `folder`, the file that `of` names and that was made last.
fn newest(folder: &Path, of: impl Fn(PathBuf) -> PathBuf) -> Option<PathBuf> {
    let made = |path: &PathBuf| fs::metadata(path).and_then(|meta| meta.modified());
    let entries = fs::read_dir(folder).ok()?.flatten();
    let visible = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let files = visible.map(|entry| of(entry.path()));
    files.filter_map(|path| io::Result::ok(made(&path)).map(|made| (made, path))).max().map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_the_module_itself() {
        let module = b"\x7fELF..\0license=GPL\0depends=virtio-ring,virtio\0name=x\0";
        assert_eq!(dependencies(module), ["virtio_ring", "virtio"]);
        assert!(dependencies(b"\0depends=\0name=x\0").is_empty());
        assert!(dependencies(b"").is_empty());
    }

    #[test]
    fn a_module_comes_after_what_it_needs_and_a_circle_ends() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, needs: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("\0depends={needs}\0")).unwrap();
            (name.to_owned(), path)
        };
        let files = BTreeMap::from([write("a", "b,c"), write("b", "c"), write("c", "a")]);
        let (mut seen, mut loaded) = (BTreeSet::new(), Vec::new());
        add("a", &files, &BTreeSet::new(), (&mut seen, &mut loaded)).unwrap();
        let order: Vec<_> = loaded.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(order, ["c", "b", "a"]);
        let absent = add("d", &files, &BTreeSet::new(), (&mut seen, &mut loaded)).unwrap_err();
        assert!(absent.contains("`d`"), "{absent}");
    }

    #[test]
    fn newer_releases_are_greater() {
        assert!(version("6.1.0-57-cloud-amd64") > version("6.1.0-9-cloud-amd64"));
        assert!(version("6.12.0-1") > version("6.1.0-57"));
    }
}

//! From what was written to what can be trusted.

use super::{
    Cleanup, Envelope, EnvelopeSpec, Privilege, Resources, Syscalls, Variable, check_files, check_network,
};
use crate::egress::RuleFlaw;
use crate::image::ImageRoot;
use crate::quantity::{self, QuantityError, show_bytes, show_cpus, show_duration};
use crate::text::shown;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The uid seen inside where none is written.
const USER: u32 = 1_000;
/// `(uid_t) -1`, which the kernel takes to mean "no change".
const NO_USER: u32 = u32::MAX;
/// Less does not hold a process and what the kernel keeps for it.
const MIN_MEMORY_BYTES: u64 = 8 << 20;
/// What a run gets where none is written, if that is not more than half of the host.
const MEMORY_BYTES: u64 = 4 << 30;
/// The kernel grants processor time in steps of a millisecond in a hundred.
const MIN_CPU_MILLIS: u32 = 10;
const PROCESSES: u32 = 512;
const MAX_PROCESSES: u32 = 65_536;
const DISK_BYTES: u64 = 10 << 30;
const MIN_DISK_BYTES: u64 = 1 << 20;
/// An exbibyte: far above any disk, and inside every signed counter of the kernel.
const MAX_BYTES: u64 = 1 << 60;
const OPEN_FILES: u32 = 4_096;
const MAX_OPEN_FILES: u32 = 65_536;
/// The ceiling of a wall clock.
const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 86_400);

/// More entries than any work needs; what is compared with each other stays cheap below it.
const MAX_ENTRIES: usize = 1_000;
/// Rules are indexed, so there may be many.
const MAX_RULES: usize = 100_000;

/// What the host and the caller contribute where the spec is silent. Comes in as an argument, so
/// that the check stays pure.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// Relative host paths of the spec start here (the folder of the file, or the current one).
    pub base: PathBuf,
    /// The caller's home folder: never shown whole, and HOME inside.
    pub home: Option<PathBuf>,
    /// Our own state folder: never shown.
    pub state: Option<PathBuf>,
    /// Bytes of memory of the host.
    pub host_memory_bytes: u64,
    /// Processors of the host.
    pub host_cpus: u32,
    /// Wall clock where none is written; `None` for an interactive terminal.
    pub timeout: Option<Duration>,
    /// Output bytes where none is written.
    pub output_bytes: u64,
    /// What each preset of rules means here.
    pub presets: BTreeMap<String, Preset>,
    /// The images of the store, by their whole names, and each also by `@` and its digest.
    pub images: BTreeMap<String, ImageRoot>,
}

/// Rules by name, as a tool's configuration on this host makes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preset {
    /// As `--allow` takes them.
    pub rules: Vec<String>,
    /// As `--resolve` takes them: a company's mirror often has a private address.
    pub resolutions: Vec<String>,
}

/// One thing that is wrong with a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The field, as written in a file: `resources.memory`.
    pub field: &'static str,
    /// Which entry of a list (or, in name order, of a table) it is about.
    pub entry: Option<usize>,
    /// What is wrong, with the value in backticks.
    pub what: String,
    /// What to write instead.
    pub remedy: String,
}

// === impl Envelope ===

impl Envelope {
    /// Reports every flaw at once, so that a caller mends a file in one round.
    pub fn check(spec: &EnvelopeSpec, defaults: &Defaults) -> Result<Self, Vec<Flaw>> {
        let mut flaws = too_many(spec);
        if !flaws.is_empty() {
            return Err(flaws);
        }
        let filesystem = check_files::filesystem(&spec.filesystem, defaults, &mut flaws);
        let privilege = privilege(spec, &mut flaws);
        let environment = environment(spec, &mut flaws);
        let network = check_network::network(spec, defaults, &mut flaws);
        let secrets = check_network::secrets(spec, &network, &mut flaws);
        let resources = resources(spec, defaults, &mut flaws);
        let cleanup = match spec.cleanup.keep_layer {
            Some(false) => Cleanup::RemoveAll,
            Some(true) | None => Cleanup::Remove,
        };
        match (flaws.is_empty(), filesystem, resources) {
            (true, Some(filesystem), Some(resources)) => {
                Ok(Self { filesystem, network, privilege, environment, secrets, resources, cleanup })
            }
            (true | false, _, _) => Err(flaws),
        }
    }
}

// === impl Defaults ===

impl Defaults {
    /// A host of 8 GiB and four processors, where Ann is at home.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self {
            base: PathBuf::from("/home/ann/work"),
            home: Some(PathBuf::from("/home/ann")),
            state: Some(PathBuf::from("/home/ann/.local/state/fumehood")),
            host_memory_bytes: 8 << 30,
            host_cpus: 4,
            timeout: Some(Duration::from_secs(60)),
            output_bytes: 10 << 20,
            presets: BTreeMap::from([(
                "npm".to_owned(),
                Preset { rules: vec!["registry.example.com".to_owned()], resolutions: Vec::new() },
            )]),
            images: BTreeMap::from([(
                "docker.io/library/tool:1".to_owned(),
                ImageRoot {
                    name: "docker.io/library/tool:1".to_owned(),
                    digest: format!("sha256:{}", "a".repeat(64)),
                    folder: PathBuf::from("/store/roots/a"),
                },
            )]),
        }
    }
}

// === impl Flaw ===

impl Flaw {
    pub(super) fn new(field: &'static str, what: String, remedy: impl Into<String>) -> Self {
        Self { field, entry: None, what, remedy: remedy.into() }
    }

    pub(super) fn at(self, entry: usize) -> Self {
        Self { entry: Some(entry), ..self }
    }

    pub(super) fn of_rule(field: &'static str, flaw: RuleFlaw) -> Self {
        Self::new(field, flaw.what, flaw.remedy)
    }

    fn quantity(field: &'static str, wrong: &QuantityError) -> Self {
        Self::new(field, wrong.to_string(), wrong.remedy())
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.field, self.what, self.remedy)
    }
}

/// Lists too long to be looked at. They are refused alone, before anything is compared.
fn too_many(spec: &EnvelopeSpec) -> Vec<Flaw> {
    let lists = [
        ("filesystem.read-only", spec.filesystem.read_only.len()),
        ("filesystem.inputs", spec.filesystem.inputs.len()),
        ("filesystem.caches", spec.filesystem.caches.len()),
        ("credentials.env", spec.credentials.env.len()),
        ("credentials.set", spec.credentials.set.len()),
        ("credentials.secrets", spec.credentials.secrets.len()),
        ("network.resolve", spec.network.resolve.len()),
        ("network.presets", spec.network.presets.len()),
        ("network.publish", spec.network.publish.len()),
        ("network.limits", spec.network.limits.len()),
        ("network.authorities", spec.network.authorities.len()),
    ];
    // Rules are looked up, not compared with each other.
    let rules =
        [("network.allow", spec.network.allow.len()), ("network.allow-cidr", spec.network.allow_cidr.len())];
    let lists = lists.into_iter().map(|(field, entries)| (field, entries, MAX_ENTRIES));
    let rules = rules.into_iter().map(|(field, entries)| (field, entries, MAX_RULES));
    let long = lists.chain(rules).filter(|(_, entries, most)| entries > most);
    let flaw = |(field, entries, most)| {
        let what = format!("there are {entries} entries, and {most} is the most");
        Flaw::new(field, what, "name a folder in place of its files")
    };
    long.map(flaw).collect()
}

fn privilege(spec: &EnvelopeSpec, flaws: &mut Vec<Flaw>) -> Privilege {
    let uid = spec.privilege.user.unwrap_or(USER);
    if uid == 0 || uid == NO_USER {
        let what = match uid {
            0 => "`0` is root, and there is none inside".to_owned(),
            uid => format!("`{uid}` is no user"),
        };
        flaws.push(Flaw::new("privilege.user", what, "write another uid, such as `1000`"));
    }
    Privilege { uid, syscalls: spec.privilege.syscalls.unwrap_or(Syscalls::Default) }
}

fn environment(spec: &EnvelopeSpec, flaws: &mut Vec<Flaw>) -> Vec<Variable> {
    let mut seen = BTreeSet::new();
    let mut variables = Vec::new();
    for (entry, name) in spec.credentials.env.iter().enumerate() {
        variable_name("credentials.env", name, flaws, entry);
        if !seen.insert(name.as_str()) {
            let what = format!("`{}` is named twice", shown(name));
            flaws.push(Flaw::new("credentials.env", what, "name it once").at(entry));
        }
        variables.push(Variable::Copy(name.clone()));
    }
    for (entry, (name, value)) in spec.credentials.set.iter().enumerate() {
        variable_name("credentials.set", name, flaws, entry);
        if seen.contains(name.as_str()) {
            let what = format!("`{}` is both copied from the host and set", shown(name));
            flaws.push(Flaw::new("credentials.set", what, "keep one of the two").at(entry));
        }
        if value.contains('\0') {
            let what = format!("the value of `{}` holds a NUL", shown(name));
            flaws.push(Flaw::new("credentials.set", what, "take the NUL out").at(entry));
        }
        variables.push(Variable::Set(name.clone(), value.clone()));
    }
    variables
}

fn variable_name(field: &'static str, name: &str, flaws: &mut Vec<Flaw>, entry: usize) {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if !first || !bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        let what = format!("`{}` is not the name of a variable", shown(name));
        let remedy = "a name is letters, digits and `_`, and does not begin with a digit";
        flaws.push(Flaw::new(field, what, remedy).at(entry));
    }
}

/// `None` only together with a flaw.
fn resources(spec: &EnvelopeSpec, defaults: &Defaults, flaws: &mut Vec<Flaw>) -> Option<Resources> {
    let spec = &spec.resources;
    let host_memory = defaults.host_memory_bytes.clamp(MIN_MEMORY_BYTES, MAX_BYTES);
    let silent_memory = MEMORY_BYTES.min(host_memory / 2).max(MIN_MEMORY_BYTES);
    let memory = size("resources.memory", spec.memory.as_deref(), (MIN_MEMORY_BYTES, host_memory), flaws);
    let cpus = processors(spec.cpus.as_deref(), defaults.host_cpus.max(1), flaws);
    let processes = count("resources.processes", spec.processes, MAX_PROCESSES, flaws);
    let disk = size("resources.disk", spec.disk.as_deref(), (MIN_DISK_BYTES, MAX_BYTES), flaws);
    let file_size = size("resources.file-size", spec.file_size.as_deref(), (1, MAX_BYTES), flaws);
    let open_files = count("resources.open-files", spec.open_files, MAX_OPEN_FILES, flaws);
    let timeout = wall_clock(spec.timeout.as_deref(), flaws);
    let output = size("resources.output", spec.output.as_deref(), (1, MAX_BYTES), flaws);
    let disk_bytes = disk?.unwrap_or(DISK_BYTES);
    Some(Resources {
        memory_bytes: memory?.unwrap_or(silent_memory),
        cpu_millis: cpus?.unwrap_or_else(|| defaults.host_cpus.max(1).saturating_mul(1_000)),
        processes: processes?.unwrap_or(PROCESSES),
        disk_bytes,
        file_size_bytes: file_size?.unwrap_or(disk_bytes),
        open_files: open_files?.unwrap_or(OPEN_FILES),
        timeout: timeout?.or(defaults.timeout.map(|silent| silent.min(MAX_TIMEOUT))),
        output_bytes: output?.unwrap_or(defaults.output_bytes),
    })
}

/// `None` where there was a flaw, `Some(None)` where nothing was written.
type Written<T> = Option<Option<T>>;

fn size(field: &'static str, text: Option<&str>, range: (u64, u64), flaws: &mut Vec<Flaw>) -> Written<u64> {
    let Some(text) = text else { return Some(None) };
    let (least, most) = range;
    let flaw = match quantity::bytes(text) {
        Ok(bytes) if bytes < least => Flaw::new(
            field,
            format!("`{}` is too little to run anything", shown(text)),
            format!("write at least `{}`", pasted(least)),
        ),
        Ok(bytes) if bytes > most => Flaw::new(
            field,
            format!("`{}` is more than this host has", shown(text)),
            format!("write at most `{}` ({most} bytes)", pasted(most)),
        ),
        Ok(bytes) => return Some(Some(bytes)),
        Err(wrong) => Flaw::quantity(field, &wrong),
    };
    flaws.push(flaw);
    None
}

/// A size as one word, as a flag takes it.
fn pasted(bytes: u64) -> String {
    show_bytes(bytes).replace(' ', "")
}

fn processors(text: Option<&str>, host_cpus: u32, flaws: &mut Vec<Flaw>) -> Written<u32> {
    let field = "resources.cpus";
    let Some(text) = text else { return Some(None) };
    let most = host_cpus.saturating_mul(1_000);
    let flaw = match quantity::cpu_millis(text) {
        Ok(millis) if millis < MIN_CPU_MILLIS => Flaw::new(
            field,
            format!("`{}` is less than the kernel can grant", shown(text)),
            format!("write at least `{}`", show_cpus(MIN_CPU_MILLIS)),
        ),
        Ok(millis) if millis > most => Flaw::new(
            field,
            format!("`{}` is more processors than this host has", shown(text)),
            format!("write at most `{}`", show_cpus(most)),
        ),
        Ok(millis) => return Some(Some(millis)),
        Err(wrong) => Flaw::quantity(field, &wrong),
    };
    flaws.push(flaw);
    None
}

fn count(field: &'static str, written: Option<u32>, most: u32, flaws: &mut Vec<Flaw>) -> Written<u32> {
    match written {
        None => Some(None),
        Some(count) if (1..=most).contains(&count) => Some(Some(count)),
        Some(count) => {
            let what = format!("`{count}` is out of range");
            flaws.push(Flaw::new(field, what, format!("write a number from `1` to `{most}`")));
            None
        }
    }
}

fn wall_clock(text: Option<&str>, flaws: &mut Vec<Flaw>) -> Written<Duration> {
    let field = "resources.timeout";
    let Some(text) = text else { return Some(None) };
    let flaw = match quantity::duration(text) {
        Ok(time) if time > MAX_TIMEOUT => Flaw::new(
            field,
            format!("`{}` is longer than a run may take", shown(text)),
            format!("write at most `{}`", show_duration(MAX_TIMEOUT)),
        ),
        Ok(time) => return Some(Some(time)),
        Err(wrong) => Flaw::quantity(field, &wrong),
    };
    flaws.push(flaw);
    None
}

#[cfg(test)]
mod tests {
    use super::super::{CredentialsSpec, NetworkSpec, PrivilegeSpec, ResourcesSpec};
    use super::*;

    #[test]
    fn silence_has_finite_ceilings() {
        let envelope =
            Envelope::check(&EnvelopeSpec::default(), &Defaults::for_tests()).expect("silence is good");
        let held = envelope.resources();
        assert_eq!((held.memory_bytes, held.cpu_millis, held.processes), (4 << 30, 4_000, 512));
        assert_eq!((held.disk_bytes, held.file_size_bytes, held.open_files), (10 << 30, 10 << 30, 4_096));
        assert_eq!(held.timeout, Some(Duration::from_secs(60)));
        assert_eq!(envelope.privilege().uid, 1_000);
        let small = Defaults { host_memory_bytes: 2 << 30, ..Defaults::for_tests() };
        let envelope = Envelope::check(&EnvelopeSpec::default(), &small).expect("silence is good");
        assert_eq!(envelope.resources().memory_bytes, 1 << 30);
    }

    #[test]
    fn every_flaw_is_found_at_once() {
        let text = |text: &str| Some(text.to_owned());
        let spec = EnvelopeSpec {
            privilege: PrivilegeSpec { user: Some(0), ..PrivilegeSpec::default() },
            credentials: CredentialsSpec {
                env: vec!["A".to_owned(), "A=B".to_owned(), "A".to_owned()],
                set: [("A".to_owned(), "x\0".to_owned())].into(),
                secrets: vec!["B=nowhere".to_owned(), "A=env:A".to_owned()],
            },
            network: NetworkSpec {
                net: text("none"),
                allow: vec!["*".to_owned(), "api.example.com".to_owned(), "a.example.com:0".to_owned()],
                presets: vec!["nothing".to_owned()],
                publish: vec!["80".to_owned(), "80:81".to_owned()],
                ..NetworkSpec::default()
            },
            resources: ResourcesSpec {
                memory: text("9G"),
                cpus: text("4.5"),
                processes: Some(0),
                disk: text("1K"),
                file_size: text("-1"),
                open_files: Some(65_537),
                timeout: text("31d"),
                output: text("0"),
            },
            ..EnvelopeSpec::default()
        };
        let flaws = Envelope::check(&spec, &Defaults::for_tests()).expect_err("all of it is wrong");
        let fields: Vec<_> = flaws.iter().map(|flaw| flaw.field).collect();
        assert_eq!(
            fields,
            [
                "privilege.user",
                "credentials.env",
                "credentials.env",
                "credentials.set",
                "credentials.set",
                "network.allow",
                "network.allow",
                "network.presets",
                "network.publish",
                "network.net",
                "credentials.secrets",
                "credentials.secrets",
                "resources.memory",
                "resources.cpus",
                "resources.processes",
                "resources.disk",
                "resources.file-size",
                "resources.open-files",
                "resources.timeout",
                "resources.output",
            ]
        );
    }
}

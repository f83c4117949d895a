//! The store of images, for commands: where it is, how a pull is told, what a run needs of it.

use crate::refusal::Refusal;
use crate::{screen, tasks};
use fumehood_image::source::{self, Registry, Source};
use fumehood_image::{Code, Fault, Limits, Pulled, Step, Store, pull as bring};
use fumehood_model::image::{ImageRoot, Reference, is_folder};
use fumehood_model::quantity::show_bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two lines about one layer.
const PAUSE: Duration = Duration::from_secs(3);

/// The store of this user.
pub(crate) fn store() -> Result<Store, Refusal> {
    Ok(at(tasks::state()?.root()))
}

/// The store of a state folder.
pub(crate) fn at(state: &Path) -> Store {
    Store::at(state.join("images"))
}

/// Every image that a run may name.
pub(crate) fn all(state: Option<&Path>) -> Result<BTreeMap<String, ImageRoot>, Refusal> {
    state.map_or_else(|| Ok(BTreeMap::new()), |state| at(state).all().map_err(|fault| refusal(&fault)))
}

/// Reads a name.
pub(crate) fn reference(text: &str) -> Result<Reference, Refusal> {
    Reference::parse(text).map_err(|flaw| {
        let why = format!("`{}` names no image: {flaw}", fumehood_model::text::shown(text));
        Refusal::new(
            "read the arguments",
            why,
            "write `NAME:TAG`, as in `python:3.12`; a path begins with `./`",
        )
    })
}

/// The fault as a refusal of a command.
pub(crate) fn refusal(fault: &Fault) -> Refusal {
    Refusal::new("get the image", fault.why.clone(), fault.remedy.clone())
}

/// Brings an image to the store, and says on the way how far it is.
pub(crate) fn pull(
    from: &str,
    name: Option<&Reference>,
    tag: Option<&str>,
    told: bool,
) -> Result<Pulled, crate::command::Failure> {
    let store = store()?;
    let mut source = open(from, tag)?;
    let mut progress = Progress::new(told);
    Ok(bring(&store, source.as_mut(), name, &Limits::default(), &mut |step| progress.see(step))?)
}

fn open(from: &str, tag: Option<&str>) -> Result<Box<dyn Source>, crate::command::Failure> {
    if is_folder(from) {
        let path = Path::new(from);
        return Ok(if path.is_dir() { source::folder(path, tag)? } else { source::archive(path, tag)? });
    }
    if tag.is_some() {
        let why = "`--ref` chooses among the images of a layout or an archive";
        return Err(Refusal::new("read the arguments", why, "write the tag in the name: `NAME:TAG`").into());
    }
    let docker = docker_folder();
    let registry = Registry::new(&reference(from)?, docker.as_deref());
    let local = Path::new(from).exists();
    match registry {
        Err(fault) if local && fault.code == Code::Unreachable => {
            Err(fault.with_remedy(format!("a path is written `./{from}`")).into())
        }
        other => Ok(Box::new(other?)),
    }
}

/// Where `docker login` writes.
fn docker_folder() -> Option<PathBuf> {
    let named = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| crate::host::home().map(|home| home.join(".docker")))
}

/// Lines on standard error: one a layer, and one from time to time for a long one.
#[derive(Debug)]
struct Progress {
    told: bool,
    layer: String,
    bytes: u64,
    came: u64,
    last: Instant,
}

// === impl Progress ===

impl Progress {
    fn new(told: bool) -> Self {
        Self { told, layer: String::new(), bytes: 0, came: 0, last: Instant::now() }
    }

    fn see(&mut self, step: Step) {
        match step {
            Step::Waiting => self.say("waiting for another pull"),
            Step::Resolved { layers, bytes } => self.say(&format!(
                "{layers} layer{}, {}",
                if layers == 1 { "" } else { "s" },
                show_bytes(bytes)
            )),
            Step::Layer { number, of, bytes, known } => {
                (self.bytes, self.came, self.last) = (bytes, 0, Instant::now());
                self.layer = format!("layer {number} of {of}");
                let what = if known { "there already".to_owned() } else { show_bytes(bytes) };
                self.say(&format!("{}: {what}", self.layer));
            }
            Step::Came { bytes } => {
                self.came = self.came.saturating_add(bytes);
                if self.last.elapsed() > PAUSE {
                    self.last = Instant::now();
                    let percent = self.came.saturating_mul(100) / self.bytes.max(1);
                    self.say(&format!("{}: {percent} %", self.layer));
                }
            }
            Step::Joining => {}
        }
    }

    fn say(&self, line: &str) {
        if self.told {
            screen::note(line);
        }
    }
}

//! `fumehood template`: small roots for one purpose, described by a file and built into the store of images.

use super::Failure;
use crate::refusal::Refusal;
use crate::template::{From, SHIPPED, Step, Template, image_name, is_name};
use crate::{images, screen, spec, tasks, usage};
use clap::{Parser, Subcommand};
use fumehood_image::build::{self, Layer, Tree};
use fumehood_image::{Image, Pulled, Store};
use fumehood_model::image::Reference;
use fumehood_model::level::Level;
use fumehood_model::quantity::show_bytes;
use fumehood_model::text::lines;
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const BUILD: &str = "build the template";
/// A step, and the check.
const MOST_TIME: &str = "30m";
/// Between a template's name and the process that builds it.
const MAKING: &str = ":in-the-making-";
/// The first line of a file that the daemon reads, and that we may change.
const OURS: &str = "# Written by `fumehood template build`.";

/// Build small roots for one purpose.
///
/// A template is a file that says which programs of this host, or which image or folder, a root is made of. Built, it is an
/// image of the store, `localhost/NAME`: `run`, `create` and the daemon begin with it by `--template NAME`.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Build one: by name, or from a file that ends with `.toml`
    Build {
        #[arg(value_name = "NAME|FILE")]
        template: String,
        /// Call it so
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
        /// The level of its steps and its check. Left out, `container`
        #[arg(long, value_name = "LEVEL", value_parser = spec::level_parser(), hide_possible_values = true)]
        level: Option<Level>,
        /// Say nothing on the way
        #[arg(long, short)]
        quiet: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// List those that come with Fumehood, and those that are built
    Ls {
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Print the file of one that comes with Fumehood
    Show {
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Remove what was built
    Rm {
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
}

const EXAMPLES: &str = "Examples:
  fumehood template build python
  fumehood run --template python -- python3 -c 'print(1)'
  fumehood template show python > report.toml; fumehood template build report.toml

Exit codes: 0 done, 1 it could not be done, 2 the arguments could not be read.";

/// What was built.
#[derive(Serialize)]
struct Built<'a> {
    template: &'a str,
    image: String,
    digest: &'a str,
    layers: usize,
    bytes: u64,
    /// Optional things that this host does not have.
    left_out: &'a [String],
}

/// One line of the list.
#[derive(Serialize)]
struct Row<'a> {
    template: &'a str,
    about: &'a str,
    image: Option<String>,
    digest: Option<String>,
}

/// An image below, layers of our own, and what of the host is left out.
type Begun = (Option<Image>, Vec<Layer>, Vec<String>);

/// A template being built.
struct Work<'a> {
    template: &'a Template,
    store: Store,
    state: PathBuf,
    level: Level,
    told: bool,
}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("template", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let (json, done) = match args.what {
        What::Build { template, name, level, quiet, json } => {
            (json, build(&template, name, level.unwrap_or(Level::Container), (quiet, json)))
        }
        What::Ls { json } => (json, list(json)),
        What::Show { name } => (false, show(&name)),
        What::Rm { names } => (false, names.iter().try_for_each(|name| remove(name))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell(json);
            ExitCode::FAILURE
        }
    }
}

fn build(
    written: &str,
    name: Option<String>,
    level: Level,
    (quiet, json): (bool, bool),
) -> Result<(), Failure> {
    let mut template = Template::find(written)?;
    if let Some(name) = name {
        is_name(&name)?;
        template.name = name;
    }
    let state = tasks::state()?.root().to_owned();
    forget_ended(&images::at(&state))?;
    let work = Work { template: &template, store: images::at(&state), state, level, told: !quiet && !json };
    let (image, left_out) = work.all()?;
    work.tell_daemon()?;
    let name = image_name(&template.name);
    if json {
        let bytes = image.sent_bytes();
        let (digest, layers) = (image.digest.as_str(), image.manifest.layers.len());
        let template = template.name.as_str();
        screen::say_json(&Built { template, image: name, digest, layers, bytes, left_out: &left_out });
        return Ok(());
    }
    if !left_out.is_empty() && !quiet {
        screen::note(&format!("not on this host, and left out: {}", left_out.join(", ")));
    }
    screen::say(&format!("{}  {}  {}", template.name, show_bytes(image.sent_bytes()), image.digest));
    Ok(())
}

// === impl Work ===

impl Work<'_> {
    /// The first layer, a layer for each step, the check; and only then the name.
    fn all(&self) -> Result<(Image, Vec<String>), Failure> {
        let (base, mut layers, left_out) = self.begin()?;
        for (number, step) in (1..).zip(&self.template.steps) {
            self.say(&format!("step {number} of {}: {}", self.template.steps.len(), step.run));
            let below = self.keep(base.as_ref(), &layers, &self.draft()?)?.name;
            if let Some(layer) = self.step(step, &below)? {
                layers.push(layer);
            }
        }
        if let Some(check) = &self.template.check {
            let whole = self.keep(base.as_ref(), &layers, &self.draft()?)?.name;
            self.say("check");
            self.run(&whole, check, &[]).inspect_err(|_| self.forget())?;
        }
        let name = images::reference(&image_name(&self.template.name))?;
        let image = self.keep(base.as_ref(), &layers, &name)?.image;
        self.forget();
        Ok((image, left_out))
    }

    /// What the template begins with.
    fn begin(&self) -> Result<Begun, Failure> {
        let tree = match &self.template.from {
            From::Image(written) => {
                let reference = images::reference(written)?;
                let image = self.store.find(&reference)?.ok_or_else(|| {
                    let why = format!("there is no image `{}` in the store", reference.short());
                    Refusal::new(BUILD, why, format!("`fumehood image pull {}` brings it", reference.short()))
                })?;
                return Ok((Some(image), Vec::new(), Vec::new()));
            }
            From::Host(selection) => Tree::of_host(selection)?,
            From::Folder(folder) => Tree::of_folder(folder)?,
        };
        let left_out = tree.left_out.clone();
        Ok((None, vec![Layer::write(&tree, &self.state)?], left_out))
    }

    /// Makes an image of what there is.
    fn keep(&self, base: Option<&Image>, layers: &[Layer], name: &Reference) -> Result<Pulled, Failure> {
        let settings = &self.template.settings;
        Ok(build::image(&self.store, (base, layers), settings, name, &mut |_| {})?)
    }

    /// The name of one that is not whole yet.
    fn draft(&self) -> Result<Reference, Refusal> {
        images::reference(&format!("localhost/{}{MAKING}{}", self.template.name, std::process::id()))
    }

    /// Takes the name away again; a step may have failed before there was one.
    fn forget(&self) {
        if let Ok(draft) = self.draft() {
            drop(self.store.lock(&mut || {}).and_then(|mut making| making.remove(&draft)));
        }
    }

    /// Runs one step, and makes a layer of what it leaves in `/out`.
    fn step(&self, step: &Step, below: &Reference) -> Result<Option<Layer>, Failure> {
        let random = fumehood_sys::host::random().unwrap_or_else(|_| u64::from(std::process::id()));
        let out = std::env::temp_dir().join(format!("fumehood-template-{random:016x}"));
        let made = DirBuilder::new().mode(0o700).create(&out);
        made.map_err(|error| {
            Refusal::new(BUILD, format!("no folder for a step: {error}"), "set `TMPDIR` to a folder of yours")
        })?;
        let mut flags = vec!["--out".to_owned(), out.display().to_string()];
        flags.extend(step.allow.iter().flat_map(|rule| ["--allow".to_owned(), rule.clone()]));
        flags.extend(step.preset.iter().flat_map(|name| ["--preset".to_owned(), name.clone()]));
        let layer = self.run(below, &step.run, &flags).and_then(|()| {
            let tree = Tree::of_folder(&out)?;
            Ok(if tree.is_empty() { None } else { Some(Layer::write(&tree, &self.state)?) })
        });
        let removed = std::fs::remove_dir_all(&out);
        let layer = layer.inspect_err(|_| self.forget())?;
        removed.map_err(|error| {
            let why = format!("`{}` can not be removed: {error}", out.display());
            Refusal::new(BUILD, why, "remove it by hand")
        })?;
        Ok(layer)
    }

    /// Runs a line of a shell in a sandbox on an image; another process of ours does so.
    fn run(&self, image: &Reference, line: &str, flags: &[String]) -> Result<(), Failure> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["run", "--json", "--level", self.level.name(), "--timeout", MOST_TIME]);
        if self.level == Level::Microvm {
            command.arg("--accept-tcg");
        }
        command.args(["--image", &image.to_string()]).args(flags).args(["--", "sh", "-c", line]);
        let output = command.current_dir("/").stdin(Stdio::null()).stderr(Stdio::null()).output();
        let output =
            output.map_err(|error| Refusal::new(BUILD, format!("no process can be started: {error}"), ""))?;
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if report.pointer("/ending/cause").and_then(Value::as_str) == Some("exited")
            && output.status.success()
        {
            return Ok(());
        }
        Err(failed(line, &report).into())
    }

    /// The daemon offers it by its name, from its next start on; a file of the operator's own stays as it is.
    fn tell_daemon(&self) -> Result<(), Failure> {
        let file = daemon_file(&self.state, &self.template.name);
        if file.exists() && !is_ours(&file) {
            return Ok(());
        }
        let folder = file.parent().unwrap_or(&self.state);
        let text =
            format!("{OURS}\n[envelope.filesystem]\nimage = \"{}\"\n", image_name(&self.template.name));
        let draft = file.with_extension(format!("{}.new", std::process::id()));
        let written = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .and_then(|()| std::fs::write(&draft, text))
            .and_then(|()| std::fs::rename(&draft, &file));
        written.map_err(|error| {
            let why = format!("`{}` can not be written: {error}", file.display());
            Failure::from(Refusal::new(BUILD, why, "see whose the folder is"))
        })
    }

    fn say(&self, line: &str) {
        if self.told {
            screen::note(line);
        }
    }
}

/// Takes away the names that builders left who were killed.
fn forget_ended(store: &Store) -> Result<(), Failure> {
    let left = |name: &str| {
        let pid = name.strip_prefix("localhost/")?.split_once(MAKING)?.1;
        (!Path::new("/proc").join(pid).exists()).then(|| name.to_owned())
    };
    for name in store.list()?.iter().filter_map(|listed| left(listed.name.as_deref()?)) {
        let reference = images::reference(&name)?;
        // Another builder may take the same one away.
        drop(store.lock(&mut || {}).and_then(|mut making| making.remove(&reference)));
    }
    Ok(())
}

/// Why a step or the check did not end well, with the last of what it said.
fn failed(line: &str, report: &Value) -> Refusal {
    let word = |path: &str| report.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let ending = match word("/ending/cause") {
        "" => "nothing ran".to_owned(),
        "exited" => format!("ended with code {}", report.pointer("/ending/code").unwrap_or(&Value::Null)),
        "not_started" => return Refusal::new(BUILD, word("/ending/why"), word("/ending/remedy")),
        other => format!("ended as `{other}`"),
    };
    let said = format!("{}{}", word("/stdout/text"), word("/stderr/text"));
    let last: Vec<&str> = said.lines().rev().take(8).collect();
    let last: String = last.iter().rev().map(|line| format!("\n  {}", lines(line))).collect();
    Refusal::new(
        BUILD,
        format!("`{line}` {ending}{last}"),
        "correct the template, or what it is made of, and build again",
    )
}

fn daemon_file(state: &Path, name: &str) -> PathBuf {
    state.join("serve/templates").join(format!("{name}.toml"))
}

fn is_ours(file: &Path) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.starts_with(OURS))
}

fn list(json: bool) -> Result<(), Failure> {
    let built = images::store()?.list()?;
    let digest = |name: &str| {
        let image = image_name(name);
        let found = built.iter().find(|listed| listed.name.as_deref() == Some(image.as_str()))?;
        Some(found.image.digest.to_string())
    };
    let mut rows: Vec<(String, String)> = Vec::new();
    for (name, _) in SHIPPED {
        rows.push((name.to_owned(), Template::find(name)?.about));
    }
    for listed in &built {
        let own =
            listed.name.as_deref().and_then(|name| name.strip_prefix("localhost/")?.strip_suffix(":latest"));
        if let Some(name) =
            own.filter(|name| is_name(name).is_ok() && rows.iter().all(|(known, _)| known != name))
        {
            rows.push((name.to_owned(), String::new()));
        }
    }
    for (name, about) in &rows {
        let digest = digest(name);
        if json {
            let image = digest.is_some().then(|| image_name(name));
            screen::say_json(&Row { template: name, about, image, digest });
        } else {
            let state = if digest.is_some() { "built" } else { "-" };
            screen::say(format!("{name:<12}{state:<8}{about}").trim_end());
        }
    }
    Ok(())
}

fn show(name: &str) -> Result<(), Failure> {
    let Some((_, text)) = SHIPPED.iter().find(|(known, _)| *known == name) else {
        let why = format!("no template `{}` comes with Fumehood", fumehood_model::text::shown(name));
        return Err(Refusal::new("show the template", why, "`fumehood template ls` lists them").into());
    };
    screen::say_raw(text);
    Ok(())
}

fn remove(name: &str) -> Result<(), Failure> {
    is_name(name)?;
    let reference = images::reference(&image_name(name))?;
    let state = tasks::state()?;
    images::at(state.root()).lock(&mut || screen::note("waiting for another pull"))?.remove(&reference)?;
    let file = daemon_file(state.root(), name);
    if is_ours(&file) {
        std::fs::remove_file(&file).map_err(|error| {
            let why = format!("`{}` can not be removed: {error}", file.display());
            Refusal::new("remove the template", why, "remove it by hand")
        })?;
    }
    screen::say(&format!("`{name}` is gone"));
    Ok(())
}

/// The image of a template that was built, as `--image` would name it.
pub(crate) fn built(name: &str) -> Result<OsString, Refusal> {
    is_name(name)?;
    let image = image_name(name);
    let found =
        images::store()?.find(&images::reference(&image)?).map_err(|fault| images::refusal(&fault))?;
    if found.is_some() {
        return Ok(image.into());
    }
    let remedy = if SHIPPED.iter().any(|(known, _)| *known == name) {
        format!("`fumehood template build {name}` builds it")
    } else {
        "`fumehood template ls` lists templates; one of your own is built from its file".to_owned()
    };
    Err(Refusal::new("find the template", format!("the template `{name}` is not built"), remedy))
}

//! What an image's own configuration says of a run: variables, folder, user, command. Whatever was typed wins.

use crate::command::RunArguments;
use crate::refusal::Refusal;
use crate::{images, tasks};
use fumehood_image::{Config, Digest, Held};
use fumehood_model::envelope::{Envelope, EnvelopeSpec, Root, Variable};
use fumehood_model::image::is_folder;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Variables that we set for every sandbox, and that an image does not know better.
const OURS: [&str; 5] = ["HOME", "USER", "LOGNAME", "SHELL", "PWD"];
/// No user: what the kernel shows for those that it does not know.
const NO_USER: u32 = 65_534;

/// The image that a run stands on.
#[derive(Debug)]
pub(crate) struct Standing {
    config: Config,
    folder: PathBuf,
    /// It is not removed while this is there.
    _held: Held,
}

// === impl Standing ===

impl Standing {
    /// The image of the envelope; `None` where it stands on something else.
    pub(crate) fn of(envelope: &Envelope) -> Result<Option<Self>, Refusal> {
        let Root::Image(root) = &envelope.filesystem().root else { return Ok(None) };
        let store = images::store()?;
        let told = |fault: fumehood_image::Fault| images::refusal(&fault);
        let held = store.hold(root).map_err(told)?;
        let image = Digest::parse(&root.digest).and_then(|digest| store.image(&digest)).map_err(told)?;
        Ok(Some(Self { config: image.config, folder: root.folder.clone(), _held: held }))
    }

    /// The uid that the image names by its number. Root, and a user by name, are ours: 1000.
    pub(crate) fn user(&self) -> Option<u32> {
        let user = self.config.user.split(':').next()?;
        user.parse().ok().filter(|uid| (1..NO_USER).contains(uid))
    }

    /// Entrypoint and command.
    pub(crate) fn command(&self) -> Vec<OsString> {
        self.config.entrypoint.iter().chain(&self.config.cmd).map(OsString::from).collect()
    }

    /// The folder to start in, where nothing typed says that the work is in `/workspace`.
    pub(crate) fn folder(&self, args: &RunArguments, envelope: &Envelope) -> Option<&Path> {
        let files = envelope.filesystem();
        let elsewhere = args.cwd.is_some() || files.workspace.is_some() || !files.inputs.is_empty();
        let folder = Path::new(&self.config.working_dir);
        let beneath = folder.strip_prefix("/").ok().filter(|beneath| !beneath.as_os_str().is_empty())?;
        let plain = beneath.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        (!elsewhere && plain && self.folder.join(beneath).is_dir()).then_some(folder)
    }

    /// The entries of the image's PATH.
    pub(crate) fn path(&self) -> Option<Vec<PathBuf>> {
        let path = self.variables().find(|(name, _)| *name == "PATH").map(|(_, value)| value)?;
        let entries: Vec<PathBuf> = std::env::split_paths(path).filter(|entry| entry.is_absolute()).collect();
        (!entries.is_empty()).then_some(entries)
    }

    /// Puts the image's variables beneath those that were asked for by name.
    pub(crate) fn lay_under(&self, env: &mut Vec<(OsString, OsString)>, envelope: &Envelope) {
        let named = |name: &str| {
            let mut variables = envelope.environment().iter();
            variables.any(|(Variable::Copy(known) | Variable::Set(known, _))| known == name)
        };
        for (name, value) in self.variables() {
            // PATH has been taken apart.
            if name == "PATH" || OURS.contains(&name) || named(name) {
                continue;
            }
            env.retain(|(known, _)| known != name);
            env.push((name.into(), value.into()));
        }
    }

    fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let plain = |(name, value): &(&str, &str)| {
            let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            !name.is_empty() && name.bytes().all(letters) && !value.contains('\0')
        };
        self.config.env.iter().filter_map(|text| text.split_once('=')).filter(plain)
    }
}

/// Brings the image that the flags name, where it is not in the store. Another process of ours does so: this one must
/// stay as it is until the launch.
pub(crate) fn pull_missing(args: &RunArguments, spec: &EnvelopeSpec) -> Result<(), Refusal> {
    const STEP: &str = "pull the image";
    let Some(written) = spec.filesystem.image.as_deref().filter(|text| !is_folder(text)) else {
        return Err(Refusal::new(STEP, "`--pull` has no image to pull", "name one: `--image NAME --pull`"));
    };
    let reference = images::reference(written)?;
    if images::at(tasks::state()?.root()).find(&reference).map_err(|fault| images::refusal(&fault))?.is_some()
    {
        return Ok(());
    }
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["image", "pull", "--json"])
        .args((args.quiet || args.json).then_some("--quiet"))
        .arg(written);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output =
        output.map_err(|error| Refusal::new(STEP, format!("no process can be started: {error}"), ""))?;
    if output.status.success() {
        return Ok(());
    }
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let text = |key: &str| told.pointer(&format!("/error/{key}")).and_then(|text| text.as_str());
    let why = text("message").unwrap_or("the pull ended without a word");
    Err(Refusal::new(STEP, why, text("remedy").unwrap_or("try `fumehood image pull` by itself")))
}

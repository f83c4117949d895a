//! `fumehood image`: what sandboxes can stand on, pulled, listed and removed.

use crate::refusal::Refusal;
use crate::{images, screen, usage};
use clap::{Parser, Subcommand};
use fumehood_image::{Fault, Image, Pulled};
use fumehood_model::image::Reference;
use fumehood_model::quantity::show_bytes;
use serde::Serialize;
use std::ffi::OsString;
use std::process::ExitCode;

/// Pull, list and remove images.
///
/// A run stands on one with `fumehood run --image NAME`. Images are unpacked once, and shown read-only.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Bring an image to the store
    Pull {
        /// A name, `[HOST/]PATH[:TAG][@DIGEST]`, or the path of an image layout or of a `docker save` archive, beginning
        /// with `./` or `/`
        #[arg(value_name = "SOURCE")]
        source: String,
        /// Call it so
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
        /// Which image of a layout or an archive, where there are more than one
        #[arg(long = "ref", value_name = "TAG")]
        tag: Option<String>,
        /// Say nothing on the way
        #[arg(long, short)]
        quiet: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// One line for each image
    Ls {
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Take a name away, and with its last name the image
    Rm {
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Remove images without a name, and what pulls that were cut short left
    Prune {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

const EXAMPLES: &str = "Examples:
  fumehood image pull python:3.12-slim
  fumehood image pull ./layout --as tools:1
  fumehood run --image python:3.12-slim -- python3 -c 'print(1)'
  fumehood image rm python:3.12-slim

Exit codes: 0 done, 1 it could not be done, 2 the arguments could not be read.";

/// An image, as `--json` tells it.
#[derive(Serialize)]
struct Told<'a> {
    name: Option<&'a str>,
    digest: &'a str,
    layers: usize,
    /// As the layers were sent.
    sent_bytes: u64,
    pulled_ms: u64,
}

#[derive(Serialize)]
struct Failed<'a> {
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    code: &'a str,
    message: &'a str,
    remedy: &'a str,
}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("image", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let (json, done) = match args.what {
        What::Pull { source, name, tag, quiet, json } => {
            (json, pull(&source, name.as_deref(), tag.as_deref(), (quiet, json)))
        }
        What::Ls { json } => (json, list(json)),
        What::Rm { names, json } => (json, names.iter().try_for_each(|name| remove(name, json))),
        What::Prune { json } => (json, prune(json)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell(json);
            ExitCode::FAILURE
        }
    }
}

/// A fault of the store, or a refusal of ours.
pub(crate) enum Failure {
    Fault(Fault),
    Refusal(Refusal),
}

// === impl Failure ===

impl Failure {
    pub(super) fn tell(&self, json: bool) {
        let (code, why, remedy) = match self {
            Self::Fault(fault) => (fault.code.name(), &fault.why, &fault.remedy),
            Self::Refusal(refusal) => ("refused", &refusal.why, &refusal.remedy),
        };
        if json {
            screen::say_json(&Failed { error: Error { code, message: why, remedy } });
        } else {
            Refusal::new("", why.clone(), remedy.clone()).tell();
        }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}

fn pull(
    source: &str,
    name: Option<&str>,
    tag: Option<&str>,
    (quiet, json): (bool, bool),
) -> Result<(), Failure> {
    let name = name.map(images::reference).transpose()?;
    let Pulled { image, name, special } = images::pull(source, name.as_ref(), tag, !quiet && !json)?;
    if json {
        screen::say_json(&Told::of(Some(&name.to_string()), &image));
        return Ok(());
    }
    if special > 0 && !quiet {
        screen::note(&format!("{special} devices and named pipes of the image are left out"));
    }
    screen::say(&format!("{}  {}", name.short(), image.digest));
    Ok(())
}

fn list(json: bool) -> Result<(), Failure> {
    let listed = images::store()?.list()?;
    if json {
        listed.iter().for_each(|listed| screen::say_json(&Told::of(listed.name.as_deref(), &listed.image)));
        return Ok(());
    }
    for listed in listed {
        let name =
            listed.name.as_deref().map(|name| Reference::parse(name).map_or(name.to_owned(), |r| r.short()));
        let hex: String = listed.image.digest.hex().chars().take(12).collect();
        let size = show_bytes(listed.image.sent_bytes());
        screen::say(&format!("{:<40} {hex}  {size}", name.as_deref().unwrap_or("-")));
    }
    Ok(())
}

fn remove(name: &str, json: bool) -> Result<(), Failure> {
    let reference = images::reference(name)?;
    let store = images::store()?;
    let removed = store.lock(&mut || screen::note("waiting for another pull"))?.remove(&reference)?;
    if json {
        screen::say_json(&removed);
    } else {
        let what = if removed.image { "is gone" } else { "is a name no more; the image has others" };
        screen::say(&format!("`{}` {what}", reference.short()));
    }
    Ok(())
}

fn prune(json: bool) -> Result<(), Failure> {
    let pruned = images::store()?.lock(&mut || screen::note("waiting for another pull"))?.prune()?;
    if json {
        screen::say_json(&pruned);
    } else {
        screen::say(&format!(
            "removed {} images, {} roots, {} layers; {} are in use",
            pruned.images, pruned.roots, pruned.layers, pruned.in_use
        ));
    }
    Ok(())
}

// === impl Told ===

impl<'a> Told<'a> {
    fn of(name: Option<&'a str>, image: &'a Image) -> Self {
        Self {
            name,
            digest: image.digest.as_str(),
            layers: image.manifest.layers.len(),
            sent_bytes: image.sent_bytes(),
            pulled_ms: image.pulled_ms,
        }
    }
}

//! The network clause by itself, for commands that start no sandbox.

use crate::command::{NetworkArguments, RunArguments};
use crate::host::{self, Places, Terminals};
use crate::refusal::Refusal;
use crate::{config, spec};
use fumehood_model::envelope::{Envelope, EnvelopeSpec, Flaw};
use std::path::Path;

/// The envelope of the file and the flags. The file was named, so it may say anything. `usual` is how far it
/// reaches where neither says anything of the network.
pub(crate) fn envelope(
    file: Option<&Path>,
    flags: &NetworkArguments,
    usual: Option<&str>,
) -> Result<Envelope, Refusal> {
    let places = Places::now()?;
    let mut defaults = host::defaults(&RunArguments::default(), Terminals::now(), &places);
    if file.is_some() || !flags.presets.is_empty() {
        defaults.presets = host::presets(places.home.as_deref())?;
    }
    let file = match file {
        None => EnvelopeSpec::default(),
        Some(path) => {
            let path = places.cwd.join(path);
            let name = path.display().to_string();
            let text = std::fs::read_to_string(&path).map_err(|error| {
                Refusal::new(
                    "read the envelope",
                    format!("`{name}`: {error}"),
                    "name a file that you can read",
                )
            })?;
            let folder = path.parent().unwrap_or(&places.cwd);
            config::parse_alone(&text, &name)?.rebased(folder).spec().clone()
        }
    };
    let told = |flaws: Vec<Flaw>| {
        Refusal::flaws(&flaws, |flaw| spec::flag_of(flaw.field).unwrap_or(flaw.field).to_owned())
    };
    // Only the network is judged: a workspace that is not here says nothing about it.
    let spec =
        EnvelopeSpec { network: file.network, credentials: file.credentials, ..EnvelopeSpec::default() };
    let mut spec = spec.overlay(spec::of_network(flags, &places.cwd));
    let network = &mut spec.network;
    let silent = network.net.is_none()
        && network.allow.is_empty()
        && network.allow_cidr.is_empty()
        && network.presets.is_empty();
    if silent {
        network.net = usual.map(str::to_owned);
    }
    Envelope::check(&spec, &defaults).map_err(told)
}

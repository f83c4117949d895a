//! A root as one read-only file, for levels that take a disk.

use super::Store;
use super::images::Image;
use crate::fault::{Code, Fault};
use fumehood_model::text::shown;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const TOOL: &str = "mkfs.erofs";

// === impl Store ===

impl Store {
    /// The image's root as an erofs file, made by `mkfs.erofs` where it was not made before. The same root gives the same
    /// bytes: owner 0, time 0, a fixed id.
    pub fn erofs(&self, image: &Image) -> Result<PathBuf, Fault> {
        let chain = image.config.chain();
        let place = self.folder("erofs").join(format!("{}.erofs", chain.hex()));
        if place.is_file() {
            return Ok(place);
        }
        let mut making = self.lock(&mut || {})?;
        if place.is_file() {
            return Ok(place);
        }
        let draft = making.draft()?;
        let made = draft.path().join("root.erofs");
        let output = Command::new(TOOL)
            .args(["--quiet", "--all-root", "-T0", "-U00000000-0000-0000-0000-000000000000"])
            .arg(&made)
            .arg(self.roots(&chain))
            .stdin(Stdio::null())
            .output();
        let output = output.map_err(|error| {
            if error.kind() == ErrorKind::NotFound {
                let why = format!("there is no `{TOOL}` on this host");
                return Fault::new(Code::Tool, why).with_remedy("install it: `apt-get install erofs-utils`");
            }
            Fault::new(Code::Tool, format!("`{TOOL}` can not be started: {error}"))
        })?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr);
            let last = told.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it did not say why");
            return Err(Fault::new(Code::Tool, format!("`{TOOL}` failed: {}", shown(last))));
        }
        let kept =
            fs::File::open(&made).and_then(|file| file.sync_all()).and_then(|()| fs::rename(&made, &place));
        kept.map_err(|error| Fault::store("keep a disk of the image", &error))?;
        Ok(place)
    }
}

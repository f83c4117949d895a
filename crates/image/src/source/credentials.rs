//! What `docker login` left in `config.json`. Read, never written; helpers are programs and are not run.

use crate::fault::{Code, Fault};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use zeroize::Zeroizing;

const FILE_BYTES: u64 = 1 << 20;
/// What Docker calls its own registry there.
const HUB_KEY: &str = "https://index.docker.io/v1/";

/// For one registry.
#[derive(Clone, Default)]
pub(super) struct Credentials {
    /// `Basic …`, as the header has it.
    pub(super) basic: Option<Zeroizing<String>>,
    /// A program holds them, which is not run.
    pub(super) helper: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    auths: HashMap<String, RawEntry>,
    cred_helpers: HashMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawEntry {
    auth: Option<Zeroizing<String>>,
    username: Option<String>,
    password: Option<Zeroizing<String>>,
}

// === impl Credentials ===

impl Credentials {
    /// Those of the file for `host`; none where there is no file.
    pub(super) fn read(file: &Path, host: &str) -> Result<Self, Fault> {
        let bad = |what: String| {
            let why = format!("`{}` can not be read: {what}", file.display());
            Fault::new(Code::Unauthorised, why)
                .with_remedy("mend it, or name another folder with `DOCKER_CONFIG`")
        };
        let mut text = Zeroizing::new(Vec::new());
        match File::open(file) {
            Ok(opened) => {
                opened.take(FILE_BYTES).read_to_end(&mut text).map_err(|error| bad(error.to_string()))?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(bad(error.to_string())),
        }
        // What stands in it is not repeated.
        let raw: Raw =
            serde_json::from_slice(&text).map_err(|error| bad(format!("line {}", error.line())))?;
        Ok(raw.of(host))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("basic", &self.basic.is_some())
            .field("helper", &self.helper)
            .finish()
    }
}

// === impl Raw ===

impl Raw {
    fn of(&self, host: &str) -> Credentials {
        let hub = host == "docker.io";
        let keys = [
            host.to_owned(),
            format!("https://{host}"),
            format!("https://{host}/v1/"),
            format!("https://{host}/v2/"),
        ];
        let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        if hub {
            keys.insert(0, HUB_KEY);
        }
        let entry = keys.iter().find_map(|key| self.auths.get(*key));
        let basic = entry.and_then(RawEntry::basic);
        let helper = keys.iter().find_map(|key| self.cred_helpers.get(*key)).or(self.creds_store.as_ref());
        Credentials { helper: helper.filter(|_| basic.is_none()).cloned(), basic }
    }
}

impl RawEntry {
    fn basic(&self) -> Option<Zeroizing<String>> {
        let named = self.username.as_ref().zip(self.password.as_ref()).map(|(user, password)| {
            let pair = Zeroizing::new(format!("{user}:{}", **password));
            Zeroizing::new(STANDARD.encode(pair.as_bytes()))
        });
        let text = self.auth.clone().filter(|auth| !auth.is_empty()).or(named)?;
        let fits = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
        fits.then(|| Zeroizing::new(format!("Basic {}", *text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_by_each_spelling() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        let text = r#"{"auths":{"https://index.docker.io/v1/":{"auth":"YTpi"},
            "registry.example.com":{"username":"u","password":"p"},"empty.example.com":{}},
            "credHelpers":{"helped.example.com":"pass"}}"#;
        std::fs::write(&file, text).unwrap();
        let basic = |host: &str| Credentials::read(&file, host).unwrap().basic.map(|text| text.to_string());
        assert_eq!(basic("docker.io").as_deref(), Some("Basic YTpi"));
        assert_eq!(basic("registry.example.com").as_deref(), Some("Basic dTpw"));
        assert_eq!(basic("other.example.com"), None);
        assert_eq!(basic("empty.example.com"), None);
        let helped = Credentials::read(&file, "helped.example.com").unwrap();
        assert_eq!(helped.helper.as_deref(), Some("pass"));
        std::fs::write(&file, "{\"auths\": secret").unwrap();
        let fault = Credentials::read(&file, "docker.io").unwrap_err();
        assert!(!fault.why.contains("secret"), "{}", fault.why);
    }
}

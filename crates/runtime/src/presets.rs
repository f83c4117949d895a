//! Rules for the registries of a tool, as its own configuration on this host names them.
//!
//! What is read are the configuration files of the user and of the system, and the variables that stand
//! for them; never a project's, and no tool is run. A registry that nobody wrote down is not guessed:
//! `--learn` finds it.
//!
//! **Invariant:** nothing that a sandbox could have written is read here.

mod registries;

use fumehood_model::envelope::Preset;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A configuration is text for people; a longer file is none.
const LONGEST_BYTES: u64 = 1 << 20;

/// What private networks a registry that the operator wrote down may be in.
const PRIVATE: [&str; 5] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];

/// Where a user's and the system's configuration is.
pub struct Places<'a> {
    pub home: &'a Path,
    /// The root of the system's files; `/` but in tests.
    pub system: &'a Path,
    /// Looks a variable of the caller's up.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
}

/// Why a preset of the user's own could not be read.
#[derive(Debug, thiserror::Error)]
#[error("`{path}`: {why}")]
pub struct PresetError {
    pub path: PathBuf,
    pub why: String,
}

// === impl Places ===

impl std::fmt::Debug for Places<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Places").field("home", &self.home).finish_non_exhaustive()
    }
}

impl Places<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name)?.into_string().ok().filter(|text| !text.is_empty())
    }

    fn folder(&self, name: &str, usual: &str) -> PathBuf {
        let named = self.text(name).map(PathBuf::from).filter(|path| path.is_absolute());
        named.unwrap_or_else(|| self.home.join(usual))
    }

    fn system(&self, path: &str) -> PathBuf {
        self.system.join(path.trim_start_matches('/'))
    }
}

/// Every preset that there is here. A file that can not be read says nothing.
pub fn presets(places: &Places<'_>) -> Result<BTreeMap<String, Preset>, PresetError> {
    let mut all = BTreeMap::new();
    for (name, urls) in [
        ("npm", registries::npm(places)),
        ("pip", registries::pip(places)),
        ("cargo", registries::cargo(places)),
        ("git", registries::git(places)),
    ] {
        all.insert(name.to_owned(), preset(&urls));
    }
    for (name, rules) in own(places)? {
        all.entry(name).or_insert_with(Preset::default).rules.extend(rules);
    }
    Ok(all)
}

/// The user's own, by name: `[presets]` of `presets.toml` in the configuration folder.
fn own(places: &Places<'_>) -> Result<BTreeMap<String, Vec<String>>, PresetError> {
    #[derive(Default, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Own {
        #[serde(default)]
        presets: BTreeMap<String, Vec<String>>,
    }
    let path = places.folder("XDG_CONFIG_HOME", ".config").join("fumehood/presets.toml");
    let Some(text) = read(&path) else { return Ok(BTreeMap::new()) };
    let own: Own =
        toml::from_str(&text).map_err(|error| PresetError { path, why: error.message().to_owned() })?;
    Ok(own.presets)
}

/// The rules for some URLs: their hosts, at their ports.
fn preset(urls: &[String]) -> Preset {
    let mut preset = Preset::default();
    for url in urls {
        let Some((rule, host)) = rule(url) else { continue };
        if preset.rules.contains(&rule) {
            continue;
        }
        preset.rules.push(rule);
        // An address is named as such already.
        if host.parse::<std::net::IpAddr>().is_err() && !host.starts_with('[') {
            preset.resolutions.extend(PRIVATE.iter().map(|range| format!("{host}={range}")));
        }
    }
    preset
}

/// The rule for the host of a URL, and the host. User, password, path and query are left out.
fn rule(url: &str) -> Option<(String, String)> {
    let url =
        url.trim().trim_start_matches("sparse+").trim_start_matches("registry+").trim_start_matches("git+");
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let place = authority.rsplit('@').next()?;
    let host = match place.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !host.ends_with(':') => host,
        _ => place,
    };
    if host.is_empty() {
        return None;
    }
    let rule = match scheme {
        "https" if host == place => place.to_owned(),
        "https" | "http" => format!("{scheme}://{place}"),
        "ssh" if host == place => format!("{host}:22"),
        "ssh" => place.to_owned(),
        _ => return None,
    };
    Some((rule, host.to_owned()))
}

/// A configuration file as text; `None` where there is none that can be read.
fn read(path: &Path) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() > LONGEST_BYTES {
        return None;
    }
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_the_host_and_port_of_a_url() {
        let text = |url: &str| rule(url).map(|(rule, _)| rule);
        assert_eq!(text("https://mirror.example.com/simple/").as_deref(), Some("mirror.example.com"));
        assert_eq!(
            text("https://ann:pw@mirror.example.com:8443/x").as_deref(),
            Some("https://mirror.example.com:8443")
        );
        assert_eq!(text("http://mirror.example.com/x").as_deref(), Some("http://mirror.example.com"));
        assert_eq!(text("sparse+https://index.example.com/").as_deref(), Some("index.example.com"));
        assert_eq!(text("ssh://git@git.example.com/o/r").as_deref(), Some("git.example.com:22"));
        assert_eq!(text("https://[2001:db8::1]:8080/").as_deref(), Some("https://[2001:db8::1]:8080"));
        assert_eq!(text("file:///srv/mirror"), None);
        assert_eq!(text("nonsense"), None);
    }

    #[test]
    fn each_tool_says_where_its_registries_are() {
        let folder = tempfile::tempdir().unwrap();
        let (home, system) = (folder.path().join("home"), folder.path().join("root"));
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            home.join(".npmrc"),
            "; mine\nregistry = https://npm.example.com/r/\n@corp:registry=https://corp.example.com/\n//npm.example.com/:_authToken=secret\n",
        );
        write(
            system.join("etc/pip.conf"),
            "[global]\nindex-url = https://u:p@pypi.example.com/simple\nextra-index-url =\n    https://one.example.com/simple\n    http://two.example.com:8080/simple\n",
        );
        write(
            home.join(".config/uv/uv.toml"),
            "[[index]]\nname = \"a\"\nurl = \"https://uv.example.com/simple\"\n",
        );
        write(
            home.join(".cargo/config.toml"),
            "[source.mine]\nregistry = \"sparse+https://crates.example.com/index/\"\n[registries.corp]\nindex = \"https://git.example.com/index\"\n",
        );
        write(
            home.join(".gitconfig"),
            "[user]\n name = Ann\n[url \"https://git.example.com/\"]\n insteadOf = gh:\n[credential \"https://other.example.com\"]\n helper = x\n",
        );
        write(
            home.join(".config/fumehood/presets.toml"),
            "[presets]\nmodels = [\"models.example.com\"]\nnpm = [\"more.example.com\"]\n",
        );
        let none = |_: &str| None;
        let places = Places { home: &home, system: &system, variable: &none };
        let all = presets(&places).unwrap();
        assert_eq!(all["npm"].rules, ["npm.example.com", "corp.example.com", "more.example.com"]);
        assert_eq!(
            all["pip"].rules,
            ["pypi.example.com", "one.example.com", "http://two.example.com:8080", "uv.example.com"]
        );
        assert_eq!(all["cargo"].rules, ["crates.example.com", "git.example.com"]);
        assert_eq!(all["git"].rules, ["git.example.com", "other.example.com"]);
        assert_eq!(all["models"].rules, ["models.example.com"]);
        assert!(all["npm"].resolutions.contains(&"npm.example.com=10.0.0.0/8".to_owned()));
        for preset in all.values() {
            for rule in &preset.rules {
                fumehood_model::egress::Rule::parse(rule).unwrap();
            }
            for resolution in &preset.resolutions {
                fumehood_model::egress::Resolution::parse(resolution).unwrap();
            }
        }
        let variable =
            |name: &str| (name == "PIP_INDEX_URL").then(|| "https://env.example.com/simple".into());
        let places = Places {
            home: Path::new("/nonexistent"),
            system: Path::new("/nonexistent"),
            variable: &variable,
        };
        assert_eq!(presets(&places).unwrap()["pip"].rules, ["env.example.com"]);
        write(home.join(".config/fumehood/presets.toml"), "[preset]\n");
        let places = Places { home: &home, system: &system, variable: &none };
        assert!(presets(&places).is_err());
    }
}

//! Where each tool writes its registries down. Only URLs are taken from a file.

use super::{Places, read};
use std::path::PathBuf;
use toml::{Table, Value};

/// npm (and pnpm, yarn of old): `registry` and `@scope:registry` of its `ini` files.
pub(super) fn npm(places: &Places<'_>) -> Vec<String> {
    let user = places.text("NPM_CONFIG_USERCONFIG").or_else(|| places.text("npm_config_userconfig"));
    let files = [
        user.map_or_else(|| places.home.join(".npmrc"), PathBuf::from),
        places.system("/etc/npmrc"),
        places.system("/usr/etc/npmrc"),
        places.system("/usr/local/etc/npmrc"),
    ];
    let mut urls: Vec<String> =
        ["npm_config_registry", "NPM_CONFIG_REGISTRY"].iter().filter_map(|name| places.text(name)).collect();
    for text in files.iter().filter_map(|file| read(file)) {
        let named = text.lines().filter_map(assignment);
        let registry = named.filter(|(key, _)| *key == "registry" || key.ends_with(":registry"));
        urls.extend(registry.map(|(_, value)| value.trim_matches('"').to_owned()));
    }
    urls
}

/// pip and uv: index URLs, of which a value may hold several.
pub(super) fn pip(places: &Places<'_>) -> Vec<String> {
    const VARIABLES: [&str; 6] = [
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "UV_INDEX_URL",
        "UV_DEFAULT_INDEX",
        "UV_EXTRA_INDEX_URL",
        "UV_INDEX",
    ];
    let mut urls: Vec<String> = VARIABLES
        .iter()
        .filter_map(|name| places.text(name))
        .flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .map(|url| url.split_once("=https").map_or(url.clone(), |(_, rest)| format!("https{rest}")))
        .collect();
    let config = places.folder("XDG_CONFIG_HOME", ".config");
    let mut files =
        vec![config.join("pip/pip.conf"), places.home.join(".pip/pip.conf"), places.system("/etc/pip.conf")];
    files.extend(places.text("PIP_CONFIG_FILE").map(PathBuf::from));
    for text in files.iter().filter_map(|file| read(file)) {
        urls.extend(ini_values(
            &text,
            &["index-url", "extra-index-url", "index_url", "extra_index_url", "find-links"],
        ));
    }
    for text in
        [config.join("uv/uv.toml"), places.system("/etc/uv/uv.toml")].iter().filter_map(|file| read(file))
    {
        let Ok(table) = text.parse::<Table>() else { continue };
        urls.extend(
            ["index-url", "extra-index-url", "find-links"].iter().flat_map(|key| texts(table.get(*key))),
        );
        let indexes = table.get("index").and_then(Value::as_array).into_iter().flatten();
        urls.extend(indexes.flat_map(|index| texts(index.get("url"))));
    }
    urls
}

/// cargo: sources and registries of its home's configuration.
pub(super) fn cargo(places: &Places<'_>) -> Vec<String> {
    let home = places.folder("CARGO_HOME", ".cargo");
    let mut urls = Vec::new();
    for text in [home.join("config.toml"), home.join("config")].iter().filter_map(|file| read(file)) {
        let Ok(table) = text.parse::<Table>() else { continue };
        for (section, key) in [("source", "registry"), ("registries", "index")] {
            let named = table.get(section).and_then(Value::as_table);
            urls.extend(named.into_iter().flat_map(Table::values).flat_map(|source| texts(source.get(key))));
        }
    }
    urls
}

/// git: the hosts that its sections are about.
pub(super) fn git(places: &Places<'_>) -> Vec<String> {
    let files = [
        places.home.join(".gitconfig"),
        places.folder("XDG_CONFIG_HOME", ".config").join("git/config"),
        places.system("/etc/gitconfig"),
    ];
    let mut urls = Vec::new();
    for text in files.iter().filter_map(|file| read(file)) {
        for line in text.lines().map(str::trim) {
            let section =
                ["[url \"", "[credential \"", "[http \""].iter().find_map(|start| line.strip_prefix(start));
            urls.extend(section.and_then(|rest| rest.split_once('"')).map(|(url, _)| url.to_owned()));
        }
    }
    urls
}

/// `key = value`, without comments.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    if line.starts_with([';', '#']) {
        return None;
    }
    line.split_once('=').map(|(key, value)| (key.trim(), value.trim()))
}

/// The words of these keys' values; lines that are indented go on with the value before them.
fn ini_values(text: &str, keys: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut wanted = false;
    for line in text.lines() {
        let goes_on = line.starts_with([' ', '\t']) && !line.trim().is_empty();
        let value = match (goes_on, assignment(line)) {
            (true, _) => line.trim(),
            (false, Some((key, value))) => {
                wanted = keys.contains(&key);
                value
            }
            (false, None) => {
                wanted = false;
                continue;
            }
        };
        if wanted {
            found.extend(value.split_whitespace().map(str::to_owned));
        }
    }
    found
}

/// A text, or a list of them.
fn texts(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(_) | None => Vec::new(),
    }
}

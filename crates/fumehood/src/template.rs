//! A template, as it is written: what is taken of where, what is done with it, and how one sees that it works.
//!
//! ```toml
//! about = "what a report needs"
//! from = "host"                       # or the name of an image of the store, or a folder `./root`
//! include = ["python"]                # what templates of ours take of the host
//! programs = ["pandoc"]
//! paths = ["/usr/share/pandoc"]
//! env = { LANG = "C.UTF-8" }
//! command = ["python3"]
//! check = "pandoc --version"
//! [optional]
//! programs = ["pdflatex"]
//! [[step]]
//! run = "pip install --target /out/opt/site reportlab"
//! preset = ["pip"]
//! ```

use crate::refusal::Refusal;
use fumehood_image::build::{Selection, Settings};
use fumehood_model::text::shown;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Those that come with this program.
pub(crate) const SHIPPED: [(&str, &str); 5] = [
    ("shell", include_str!("../../../templates/shell.toml")),
    ("python", include_str!("../../../templates/python.toml")),
    ("node", include_str!("../../../templates/node.toml")),
    ("git", include_str!("../../../templates/git.toml")),
    ("build", include_str!("../../../templates/build.toml")),
];
const STEP: &str = "read the template";
const HOST: &str = "host";
/// A template is a page of text.
const MOST_BYTES: u64 = 1 << 20;

/// One that was read, with what it includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) from: From,
    pub(crate) settings: Settings,
    pub(crate) steps: Vec<Step>,
    pub(crate) check: Option<String>,
}

/// What a template begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Host(Selection),
    Image(String),
    Folder(PathBuf),
}

/// What is done in a sandbox; what it leaves in `/out` becomes part of the root.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) run: String,
    /// Rules for the network, as `--allow` takes them.
    #[serde(default)]
    pub(crate) allow: Vec<String>,
    #[serde(default)]
    pub(crate) preset: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    about: String,
    #[serde(default = "host")]
    from: String,
    #[serde(default)]
    include: Vec<String>,
    #[serde(default)]
    programs: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    optional: Optional,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    step: Vec<Step>,
    check: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Optional {
    programs: Vec<String>,
    paths: Vec<String>,
}

fn host() -> String {
    HOST.to_owned()
}

// === impl Template ===

impl Template {
    /// The one of this name, or the one in this file.
    pub(crate) fn find(written: &str) -> Result<Self, Refusal> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == written) {
            return Self::read(name, text, Path::new("/"));
        }
        let path = Path::new(written);
        let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        let known = format!("name one of {}, or a file that ends with `.toml`", names.join(", "));
        let stem = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".toml"));
        let Some(name) = stem else {
            return Err(Refusal::new(STEP, format!("there is no template `{}`", shown(written)), known));
        };
        let found = std::fs::metadata(path).map_err(|error| unread(path, &error))?;
        if found.len() > MOST_BYTES {
            return Err(Refusal::new(STEP, format!("`{}` is larger than 1 MiB", path.display()), known));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unread(path, &error))?;
        let folder = std::path::absolute(path).map_err(|error| unread(path, &error))?;
        Self::read(name, &text, folder.parent().unwrap_or(Path::new("/")))
    }

    fn read(name: &str, text: &str, folder: &Path) -> Result<Self, Refusal> {
        is_name(name)?;
        let written: Written = toml::from_str(text).map_err(|error| {
            let remedy =
                "docs/images.md says what a template holds; `fumehood template show shell` shows one";
            Refusal::new(STEP, format!("`{name}`: {}", error.to_string().trim_end()), remedy)
        })?;
        let takes_of_host = !(written.include.is_empty()
            && written.programs.is_empty()
            && written.paths.is_empty()
            && written.optional.programs.is_empty()
            && written.optional.paths.is_empty());
        if written.from != HOST && takes_of_host {
            let why = "`include`, `programs` and `paths` are taken of the host, and this template begins with something else";
            return Err(Refusal::new(STEP, why, "leave them out, or leave out `from`"));
        }
        let mut template = Self {
            name: name.to_owned(),
            about: written.about,
            from: From::Host(Selection::default()),
            settings: Settings { env: BTreeMap::new(), cwd: written.cwd, command: written.command },
            steps: written.step,
            check: written.check,
        };
        let mut selection = Selection::default();
        for other in &written.include {
            template.include(other, &mut selection)?;
        }
        template.settings.env.extend(written.env);
        selection.programs.extend(written.programs);
        selection.paths.extend(written.paths);
        selection.optional_programs.extend(written.optional.programs);
        selection.optional_paths.extend(written.optional.paths);
        template.from = match written.from.as_str() {
            HOST => From::Host(selection),
            path if fumehood_model::image::is_folder(path) => From::Folder(folder.join(path)),
            image => From::Image(image.to_owned()),
        };
        template.check_words()?;
        Ok(template)
    }

    /// Adds what one of ours takes of the host.
    fn include(&mut self, name: &str, selection: &mut Selection) -> Result<(), Refusal> {
        let Some((_, text)) = SHIPPED.iter().find(|(known, _)| *known == name) else {
            let why = format!("`include` names `{}`, and there is no such template", shown(name));
            return Err(Refusal::new(
                STEP,
                why,
                "include one that comes with Fumehood: `fumehood template ls`",
            ));
        };
        let other = Self::read(name, text, Path::new("/"))?;
        if let From::Host(theirs) = other.from {
            selection.programs.extend(theirs.programs);
            selection.paths.extend(theirs.paths);
            selection.optional_programs.extend(theirs.optional_programs);
            selection.optional_paths.extend(theirs.optional_paths);
        }
        self.settings.env.extend(other.settings.env);
        Ok(())
    }

    fn check_words(&self) -> Result<(), Refusal> {
        let odd = |name: &String| name.is_empty() || name.contains(['=', '\0']);
        if self.settings.env.iter().any(|(name, value)| odd(name) || value.contains('\0')) {
            return Err(Refusal::new(
                STEP,
                "a variable of `env` has no name, or a `=` or NUL in it",
                "write NAME = \"VALUE\"",
            ));
        }
        if self.settings.cwd.as_ref().is_some_and(|cwd| !cwd.starts_with('/')) {
            return Err(Refusal::new(
                STEP,
                "`cwd` is no absolute path",
                "write a path inside, as in `/opt/work`",
            ));
        }
        Ok(())
    }
}

/// What an image of this name is called in the store.
pub(crate) fn image_name(name: &str) -> String {
    format!("localhost/{name}:latest")
}

/// A name of a template is one of an image, too.
pub(crate) fn is_name(name: &str) -> Result<(), Refusal> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let good =
        name.len() <= 64 && name.bytes().all(plain) && ends(name.bytes().next()) && ends(name.bytes().last());
    if good && fumehood_model::image::Reference::parse(&image_name(name)).is_ok() {
        return Ok(());
    }
    let why = format!("`{}` is no name for a template", shown(name));
    Err(Refusal::new(STEP, why, "use lower-case letters, digits, and `.`, `_`, `-` between them"))
}

fn unread(path: &Path, error: &std::io::Error) -> Refusal {
    let why = format!("`{}` can not be read: {error}", shown(&path.display().to_string()));
    Refusal::new(STEP, why, "`fumehood template ls` lists those that come with Fumehood")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_shipped_are_read_and_have_a_check() {
        for (name, _) in SHIPPED {
            let template = Template::find(name).unwrap();
            assert!(!template.about.is_empty() && template.check.is_some(), "{name}");
            let From::Host(selection) = template.from else { panic!("{name}") };
            assert!(selection.programs.contains(&"sh".to_owned()), "{name}");
        }
    }

    #[test]
    fn what_can_not_be_meant_is_refused() {
        let read = |text: &str| Template::read("x", text, Path::new("/"));
        for bad in [
            "form = 'host'",
            "from = 'debian'\nprograms = ['sh']",
            "include = ['nothing']",
            "env = { '' = 'x' }",
            "cwd = 'relative'",
            "[[step]]\nallow = []",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert_eq!(read("from = './root'").unwrap().from, From::Folder("/./root".into()));
        for bad in ["", ".", "a/b", "Upper", "-a", "a-", "é", "a b"] {
            assert!(is_name(bad).is_err(), "{bad:?}");
        }
    }
}

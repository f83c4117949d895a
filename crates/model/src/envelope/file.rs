//! A `fumehood.toml` as text: read field by field, so that every flaw is found in one reading, and
//! each with its line.

use super::{Defaults, Envelope, EnvelopeSpec, Flaw, paths};
use crate::text::{cut, shown};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

/// A larger file is not an envelope.
const MAX_BYTES: usize = 1 << 20;
/// The parser's own sentences are cut here.
const SENTENCE_CHARS: usize = 300;
/// Past this many a file is not read by a person any more.
const MAX_FLAWS: usize = 50;
/// How different a name may be to be taken for a slip.
const SLIP: usize = 2;

const SCHEMA: &str = "`fumehood schema` prints what each field takes";

/// Every field, by the place it stands at. A test holds this list to the schema.
const FIELDS: [(&str, &[&str]); 7] = [
    (
        "",
        &[
            "level",
            "trust",
            "blast",
            "filesystem",
            "network",
            "privilege",
            "credentials",
            "resources",
            "cleanup",
        ],
    ),
    (
        "filesystem",
        &["image", "workspace", "workspace-mode", "read-only", "inputs", "output", "caches", "session"],
    ),
    ("network", &[]),
    ("privilege", &["user", "syscalls"]),
    ("credentials", &["env", "set"]),
    ("resources", &["memory", "cpus", "processes", "disk", "file-size", "open-files", "timeout", "output"]),
    ("cleanup", &["keep-layer"]),
];

/// A spec that came from a file, and where in it each field stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Located {
    spec: EnvelopeSpec,
    /// `resources.memory`, `filesystem.inputs[2]`, `credentials.set.NAME` → line, from 1.
    lines: BTreeMap<String, usize>,
}

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFlaw {
    /// The line, from 1; `None` where it is about the file as a whole.
    pub line: Option<usize>,
    /// The field, where it is about one: `resources.memory`.
    pub field: Option<String>,
    /// What is wrong, with the value in backticks.
    pub what: String,
    /// What to write instead.
    pub remedy: String,
}

/// Reads a file. Reports every syntax error; or else every unknown field and every wrong type. What
/// the values mean is judged by [`Located::check`].
pub fn parse(text: &str) -> Result<Located, Vec<FileFlaw>> {
    if text.len() > MAX_BYTES {
        let what = format!("the file has {} bytes, and {MAX_BYTES} is the most", text.len());
        return Err(vec![FileFlaw::whole(what, "an envelope fits on a page")]);
    }
    let lines = Lines::of(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(syntax_flaws(&errors, &lines));
    }
    let mut reading = Reading { lines, places: BTreeMap::new(), flaws: Vec::new(), unknown: BTreeSet::new() };
    reading.table(&mut Vec::new(), document.get_ref());
    let Reading { lines: _, places, mut flaws, unknown: _ } = reading;
    if flaws.is_empty() {
        return EnvelopeSpec::deserialize(Deserializer::from(document))
            .map(|spec| Located { spec, lines: places })
            .map_err(|error| vec![FileFlaw::whole(cut(error.message(), SENTENCE_CHARS), SCHEMA)]);
    }
    flaws.sort_by_key(|flaw| flaw.line);
    flaws.truncate(MAX_FLAWS);
    Err(flaws)
}

// === impl Located ===

impl Located {
    /// What the file says.
    pub fn spec(&self) -> &EnvelopeSpec {
        &self.spec
    }

    /// The same with every relative host path joined to `folder`, where the file stands, so that it
    /// can be laid under flags whose paths start elsewhere.
    #[must_use]
    pub fn rebased(mut self, folder: &Path) -> Self {
        let files = &mut self.spec.filesystem;
        for path in [&mut files.image, &mut files.workspace, &mut files.output].into_iter().flatten() {
            *path = paths::rebase(path, folder);
        }
        for entry in &mut files.read_only {
            *entry = paths::rebase_view(entry, folder);
        }
        for entry in &mut files.inputs {
            *entry = paths::rebase_input(entry, folder);
        }
        self
    }

    /// Checks the file by itself, with the line of every flaw.
    pub fn check(&self, defaults: &Defaults) -> Result<Envelope, Vec<FileFlaw>> {
        Envelope::check(&self.spec, defaults).map_err(|flaws| self.locate(&flaws))
    }

    /// The flaws with their lines in this file.
    pub fn locate(&self, flaws: &[Flaw]) -> Vec<FileFlaw> {
        let mut located: Vec<FileFlaw> = flaws
            .iter()
            .map(|flaw| FileFlaw {
                line: self.line(flaw.field, flaw.entry),
                field: Some(flaw.field.to_owned()),
                what: flaw.what.clone(),
                remedy: flaw.remedy.clone(),
            })
            .collect();
        located.sort_by_key(|flaw| flaw.line);
        located
    }

    /// The line of a field, or of one entry of it.
    pub fn line(&self, field: &str, entry: Option<usize>) -> Option<usize> {
        let by_entry = entry.and_then(|entry| {
            let name = self.spec.credentials.set.keys().nth(entry).filter(|_| field == "credentials.set");
            let key = name.map_or_else(|| format!("{field}[{entry}]"), |name| format!("{field}.{name}"));
            self.lines.get(&key)
        });
        by_entry.or_else(|| self.lines.get(field)).copied()
    }
}

// === impl FileFlaw ===

impl FileFlaw {
    fn whole(what: String, remedy: &str) -> Self {
        Self { line: None, field: None, what, remedy: remedy.to_owned() }
    }

    /// One line for people: `fumehood.toml:7: resources.memory: …`.
    pub fn in_file(&self, name: &str) -> String {
        match self.line {
            Some(line) => format!("{}:{line}: {self}", shown(name)),
            None => format!("{}: {self}", shown(name)),
        }
    }
}

impl fmt::Display for FileFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

/// Where each line begins.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self(std::iter::once(0).chain(ends).collect())
    }

    fn at(&self, span: &Range<usize>) -> usize {
        self.0.partition_point(|start| *start <= span.start)
    }
}

fn syntax_flaws(errors: &[toml::de::Error], lines: &Lines) -> Vec<FileFlaw> {
    let mut flaws: Vec<FileFlaw> = Vec::new();
    for error in errors.iter().take(MAX_FLAWS) {
        let line = error.span().map(|span| lines.at(&span));
        // The first error of a line is the cause; the rest follow from it.
        if !flaws.iter().any(|flaw| flaw.line == line) {
            let what = format!("this is not TOML: {}", cut(error.message(), SENTENCE_CHARS));
            let remedy = "write `name = value` lines beneath a `[section]`, texts in quotes".to_owned();
            flaws.push(FileFlaw { line, field: None, what, remedy });
        }
    }
    flaws
}

/// A walk over the document.
struct Reading {
    lines: Lines,
    places: BTreeMap<String, usize>,
    flaws: Vec<FileFlaw>,
    /// Unknown names that were reported already.
    unknown: BTreeSet<String>,
}

/// The keys that lead to a value, outermost first.
type Trail<'a> = Vec<(&'a str, Range<usize>)>;

impl Reading {
    fn table<'a>(&mut self, trail: &mut Trail<'a>, table: &'a DeTable<'_>) {
        for (key, value) in table {
            trail.push((key.get_ref().as_ref(), key.span()));
            let name = dotted(trail);
            self.places.insert(name.clone(), self.lines.at(&key.span()));
            match value.get_ref() {
                DeValue::Table(inner) if !inner.is_empty() => self.table(trail, inner),
                DeValue::Array(entries) => {
                    for (index, entry) in entries.iter().enumerate() {
                        self.places.insert(format!("{name}[{index}]"), self.lines.at(&entry.span()));
                    }
                    self.leaf(trail, value);
                }
                DeValue::Table(_)
                | DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_) => self.leaf(trail, value),
            }
            trail.pop();
        }
    }

    /// Reads one value as if it stood alone in the file, so that one flaw does not hide another.
    fn leaf(&mut self, trail: &Trail<'_>, value: &Spanned<DeValue<'_>>) {
        let alone = trail.iter().rev().fold(value.clone(), |inner, (name, span)| {
            let mut table = DeTable::new();
            table.insert(Spanned::new(span.clone(), (*name).into()), inner);
            Spanned::new(value.span(), DeValue::Table(table))
        });
        let DeValue::Table(document) = alone.into_inner() else { return };
        let read = EnvelopeSpec::deserialize(Deserializer::from(Spanned::new(value.span(), document)));
        let Err(error) = read else { return };
        match unknown(trail) {
            Some(depth) => self.unknown_field(trail, depth),
            None => self.flaws.push(FileFlaw {
                line: Some(self.lines.at(&error.span().unwrap_or_else(|| value.span()))),
                field: Some(shown(&dotted(trail))),
                what: cut(error.message(), SENTENCE_CHARS),
                remedy: SCHEMA.to_owned(),
            }),
        }
    }

    fn unknown_field(&mut self, trail: &Trail<'_>, depth: usize) {
        let (known, rest) = trail.split_at(depth.min(trail.len()));
        let Some((name, span)) = rest.first() else { return };
        let section = dotted(known);
        if !self.unknown.insert(format!("{section}.{name}")) {
            return;
        }
        let place = if section.is_empty() { "the file".to_owned() } else { format!("`[{section}]`") };
        self.flaws.push(FileFlaw {
            line: Some(self.lines.at(span)),
            field: None,
            what: format!("there is no field `{}` in {place}", shown(name)),
            remedy: suggestion(&section, name),
        });
    }
}

/// At which depth of the trail a name stands that no field has.
fn unknown(trail: &Trail<'_>) -> Option<usize> {
    let names = |section: &str| FIELDS.iter().find(|(name, _)| *name == section).map(|(_, fields)| *fields);
    let mut section = String::new();
    for (depth, (name, _)) in trail.iter().enumerate() {
        if !names(&section)?.contains(name) {
            return Some(depth);
        }
        section = if depth == 0 { (*name).to_owned() } else { return None };
    }
    None
}

/// The field that was meant, or those that there are.
fn suggestion(section: &str, name: &str) -> String {
    let wanted = name.to_ascii_lowercase().replace('_', "-");
    let here = FIELDS.iter().find(|(place, _)| *place == section).map_or(&[][..], |(_, fields)| fields);
    let near = |field: &&&str| {
        let begins = wanted.len() >= 3 && (field.starts_with(&wanted) || wanted.starts_with(**field));
        begins || distance(&wanted, field) <= SLIP.min(field.len() / 2)
    };
    let closest = here.iter().filter(near).min_by_key(|field| distance(&wanted, field));
    let elsewhere =
        FIELDS.iter().find(|(place, fields)| !place.is_empty() && fields.contains(&wanted.as_str()));
    match (closest, elsewhere, here.is_empty()) {
        (Some(field), _, _) => format!("did you mean `{field}`?"),
        (None, Some((place, _)), _) => format!("it belongs to `[{place}]`"),
        (None, None, true) => "that section takes none yet".to_owned(),
        (None, None, false) => format!("there are `{}`", here.join("`, `")),
    }
}

/// How many letters must be added, taken away or changed. Long names are not compared.
fn distance(one: &str, other: &str) -> usize {
    if one.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (index, left) in one.chars().enumerate() {
        let mut next = vec![index + 1];
        for ((right, above_left), above) in other.chars().zip(&row).zip(row.iter().skip(1)) {
            let beside = next.last().copied().unwrap_or_default();
            next.push((above_left + usize::from(left != right)).min(above + 1).min(beside + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or(usize::MAX)
}

fn dotted(trail: &[(&str, Range<usize>)]) -> String {
    trail.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(".")
}

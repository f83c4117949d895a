//! A `fumehood.toml` as text: read field by field, so that every flaw is found in one reading, and
//! each with its line.

use super::{Defaults, Envelope, EnvelopeSpec, Flaw};
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

/// The one field whose names are the writer's own.
const VARIABLES: &str = "credentials.set";
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
    (
        "network",
        &["net", "allow", "allow-cidr", "resolve", "presets", "publish", "limits", "upstream", "authorities"],
    ),
    ("privilege", &["user", "syscalls"]),
    ("credentials", &["env", "set", "secrets"]),
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
/// the values mean is judged by [`Located::check`]; [`read`] does both.
pub fn parse(text: &str) -> Result<Located, Vec<FileFlaw>> {
    let (located, flaws) = parse_what_can_be(text);
    if flaws.is_empty() { Ok(located) } else { Err(in_order(flaws)) }
}

/// Reads and checks a file that stands in `folder`, and reports every flaw of either kind at once.
/// The result is rebased: ready for [`super::named_file`] and [`super::found_file`].
pub fn read(text: &str, folder: &Path, defaults: &Defaults) -> Result<Located, Vec<FileFlaw>> {
    let (located, mut flaws) = parse_what_can_be(text);
    let located = located.rebased(folder);
    flaws.extend(located.check(defaults).err().unwrap_or_default());
    if flaws.is_empty() { Ok(located) } else { Err(in_order(flaws)) }
}

/// The fields that could be read, and the flaws of the others.
fn parse_what_can_be(text: &str) -> (Located, Vec<FileFlaw>) {
    let nothing = || Located { spec: EnvelopeSpec::default(), lines: BTreeMap::new() };
    if text.len() > MAX_BYTES {
        let what = format!("the file has {} bytes, and {MAX_BYTES} is the most", text.len());
        return (nothing(), vec![FileFlaw::whole(what, "an envelope fits on a page")]);
    }
    let lines = Lines::of(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return (nothing(), syntax_flaws(&errors, &lines));
    }
    let span = document.span();
    let mut reading = Reading { lines, places: BTreeMap::new(), flaws: Vec::new(), unknown: BTreeSet::new() };
    let good = reading.table(&mut Vec::new(), document.get_ref());
    let Reading { lines: _, places, mut flaws, unknown: _ } = reading;
    match EnvelopeSpec::deserialize(Deserializer::from(Spanned::new(span, good))) {
        Ok(spec) => (Located { spec, lines: places }, flaws),
        Err(error) => {
            flaws.push(FileFlaw::whole(cut(error.message(), SENTENCE_CHARS), SCHEMA));
            (nothing(), flaws)
        }
    }
}

fn in_order(mut flaws: Vec<FileFlaw>) -> Vec<FileFlaw> {
    flaws.sort_by_key(|flaw| flaw.line);
    flaws.truncate(MAX_FLAWS);
    flaws
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
        self.spec = self.spec.rebased(folder);
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
            let name = self.spec.credentials.set.keys().nth(entry).filter(|_| field == VARIABLES);
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
    /// Reads what is in `table`, and answers with the part of it that is good. Goes no further than
    /// the names that there are, so that a hostile file can not make it remember more than it says.
    fn table<'a, 'i>(&mut self, trail: &mut Trail<'a>, table: &'a DeTable<'i>) -> DeTable<'i> {
        let mut good = DeTable::new();
        for (key, value) in table {
            if self.flaws.len() >= MAX_FLAWS {
                break;
            }
            trail.push((key.get_ref().as_ref(), key.span()));
            let kept = match unknown(trail) {
                Some(depth) => {
                    self.unknown_field(trail, depth);
                    None
                }
                None => self.field(trail, key.span(), value),
            };
            trail.pop();
            good.extend(kept.map(|kept| (key.clone(), kept)));
        }
        good
    }

    /// Reads one field, or the section that bears its name.
    fn field<'a, 'i>(
        &mut self,
        trail: &mut Trail<'a>,
        key: Range<usize>,
        value: &'a Spanned<DeValue<'i>>,
    ) -> Option<Spanned<DeValue<'i>>> {
        let name = dotted(trail);
        let section = name == VARIABLES || FIELDS.iter().any(|(section, _)| *section == name);
        self.places.insert(name.clone(), self.lines.at(&key));
        match value.get_ref() {
            DeValue::Table(inner) if section => {
                Some(Spanned::new(value.span(), DeValue::Table(self.table(trail, inner))))
            }
            DeValue::Array(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    self.places.insert(format!("{name}[{index}]"), self.lines.at(&entry.span()));
                }
                self.leaf(trail, value)
            }
            DeValue::Table(_)
            | DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => self.leaf(trail, value),
        }
    }

    /// Reads one value as if it stood alone in the file, so that one flaw does not hide another.
    fn leaf<'i>(&mut self, trail: &Trail<'_>, value: &Spanned<DeValue<'i>>) -> Option<Spanned<DeValue<'i>>> {
        let mut alone = value.clone();
        for (name, span) in trail.iter().rev() {
            let mut table = DeTable::new();
            table.insert(Spanned::new(span.clone(), (*name).to_owned().into()), alone);
            alone = Spanned::new(value.span(), DeValue::Table(table));
        }
        let DeValue::Table(document) = alone.into_inner() else { return None };
        let read = EnvelopeSpec::deserialize(Deserializer::from(Spanned::new(value.span(), document)));
        let Err(error) = read else { return Some(value.clone()) };
        let (what, remedy) = in_words(error.message());
        self.flaws.push(FileFlaw {
            line: Some(self.lines.at(&error.span().unwrap_or_else(|| value.span()))),
            field: Some(shown(&dotted(trail))),
            what: cut(&what, SENTENCE_CHARS),
            remedy: cut(&remedy, SENTENCE_CHARS),
        });
        None
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

/// The parser's sentence about a value in the words of somebody who wrote one: what, and what instead.
fn in_words(message: &str) -> (String, String) {
    let split = |prefix| message.strip_prefix(prefix)?.rsplit_once(", expected ");
    if let Some((value, known)) = split("unknown variant ") {
        let known = known.strip_prefix("one of ").unwrap_or(known);
        return (format!("{value} is no value for it"), format!("write one of {known}"));
    }
    let Some((found, wanted)) = split("invalid type: ").or_else(|| split("invalid value: ")) else {
        return (message.to_owned(), SCHEMA.to_owned());
    };
    let found = match found.split_once(' ') {
        Some(("integer" | "boolean", value)) => value.to_owned(),
        Some(("floating", value)) => value.trim_start_matches("point ").to_owned(),
        Some(("string", value)) => format!("`{value}`"),
        _ if found == "map" => "a section".to_owned(),
        _ if found == "sequence" => "a list".to_owned(),
        _ => found.to_owned(),
    };
    let wanted = match wanted {
        "a string" => "a text in quotes",
        "a sequence" => "a list, as in `[\"a\", \"b\"]`",
        other => other,
    };
    (format!("{found} does not fit"), format!("write {wanted}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn flaws(text: &str) -> Vec<String> {
        let read = read(text, Path::new("/home/ann/work"), &Defaults::for_tests());
        read.expect_err("the file is flawed").iter().map(|flaw| flaw.in_file("fumehood.toml")).collect()
    }

    fn assert_flaws(text: &str, expected: &[&str]) {
        let found = flaws(text);
        let alike = |(found, wanted): (&String, &&str)| found.starts_with(wanted);
        assert!(
            found.len() == expected.len() && found.iter().zip(expected).all(alike),
            "for\n{text}\nfound\n{}",
            found.join("\n")
        );
    }

    #[test]
    fn a_whole_file_is_read() {
        let text = "level = \"container\"\n[filesystem]\nworkspace = \".\"\nread-only = [\"../lib:/lib/x\"]\n\
                    inputs = [\"in:put.csv:/data/put.csv\", \"a.txt\"]\n[resources]\nmemory = 536870912\ncpus = 1.5\n\
                    processes = 64\ntimeout = \"5m\"\n[credentials]\nenv = [\"LANG\"]\nset = { MODE = \"test\" }\n";
        let file = read(text, Path::new("/home/ann/a:b"), &Defaults::for_tests()).expect("the file is good");
        let envelope = file.check(&Defaults::for_tests()).expect("it was checked");
        let files = envelope.filesystem();
        let sources: Vec<_> =
            files.inputs.iter().map(|input| (input.source.to_str(), input.at.to_str())).collect();
        assert_eq!(
            sources,
            [
                (Some("/home/ann/a:b/in:put.csv"), Some("/data/put.csv")),
                (Some("/home/ann/a:b/a.txt"), Some("/workspace/a.txt"))
            ]
        );
        assert_eq!(envelope.resources().memory_bytes, 512 << 20);
        assert_eq!(envelope.resources().cpu_millis, 1_500);
        assert_eq!(file.line("resources.cpus", None), Some(8));
        assert_eq!(file.line("filesystem.inputs", Some(1)), Some(5));
    }

    #[test]
    fn every_flaw_is_reported_at_once_and_with_its_line() {
        assert_flaws(
            "[resources]\nmemory = \"0\"\ncpus = 9\nmem = 1\nprocesses = \"many\"\n[filesystem]\ninputs = [\n  \"a\",\n  \
             \"/proc/1\",\n]\nread_only = []\n",
            &[
                "fumehood.toml:2: resources.memory: `0` is not a size: it must be more than zero; write a size such as",
                "fumehood.toml:3: resources.cpus: `9` is more processors than this host has; write at most `4`",
                "fumehood.toml:4: there is no field `mem` in `[resources]`; did you mean `memory`?",
                "fumehood.toml:5: resources.processes: `\"many\"` does not fit; write a whole number",
                "fumehood.toml:9: filesystem.inputs: `/proc/1` can not be shown inside",
                "fumehood.toml:11: there is no field `read_only` in `[filesystem]`; did you mean `read-only`?",
            ],
        );
    }

    #[test]
    fn types_and_syntax_have_their_lines_too() {
        assert_flaws(
            "memory = 1\nlevel = \"vm\"\n[x.y]\nz = 1\nw = 2\n[network]\nallowed = []\n",
            &[
                "fumehood.toml:1: there is no field `memory` in the file; it belongs to `[resources]`",
                "fumehood.toml:2: level: `vm` is no value for it; write one of `wasm`",
                "fumehood.toml:3: there is no field `x` in the file; there are `level`",
                "fumehood.toml:7: there is no field `allowed` in `[network]`; did you mean `allow`?",
            ],
        );
        assert_flaws(
            "[resources]\nmemory = true\nopen-files = -1\ntimeout = { x = 1 }\nprocesses = 99999999999\n",
            &[
                "fumehood.toml:2: resources.memory: `true` does not fit; write an amount",
                "fumehood.toml:3: resources.open-files: `-1` does not fit; write a whole number",
                "fumehood.toml:4: resources.timeout: a section does not fit; write an amount",
                "fumehood.toml:5: resources.processes: `99999999999` does not fit; write a whole number",
            ],
        );
        assert_flaws("filesystem = 3", &["fumehood.toml:1: filesystem: `3` does not fit; write a section"]);
        assert_flaws(
            "a =\nb = [",
            &["fumehood.toml:1: this is not TOML", "fumehood.toml:2: this is not TOML"],
        );
        assert_flaws("[cleanup]\n[cleanup]\n", &["fumehood.toml:2: this is not TOML: duplicate key"]);
    }

    #[test]
    fn variables_have_their_lines() {
        assert_flaws(
            "[credentials]\nenv = [\"A\", \"B\",\n\"A\"]\n[credentials.set]\nB = \"1\"\n\"9=\" = \"\"\n",
            &[
                "fumehood.toml:3: credentials.env: `A` is named twice",
                "fumehood.toml:5: credentials.set: `B` is both copied from the host and set",
                "fumehood.toml:6: credentials.set: `9=` is not the name of a variable",
            ],
        );
    }

    #[test]
    fn a_hostile_file_can_not_speak_to_the_terminal() {
        for text in
            ["\"\\u001b[2J\" = 1", "level = \"\\u001b]0;x\\u0007\"", "[filesystem]\nsession = \"\\u202e\\n\""]
        {
            assert!(!flaws(text).concat().chars().any(|c| c.is_control() || c == '\u{202e}'), "{text}");
        }
        assert_eq!(flaws(&"#".repeat(MAX_BYTES + 1)).len(), 1);
    }

    #[test]
    fn a_hostile_file_can_not_take_more_than_it_gives() {
        let many = |line: &dyn Fn(usize) -> String| (0..20_000).map(line).collect::<String>();
        let long = "n".repeat(400_000);
        for text in [
            format!("[{long}]\n{}", many(&|at| format!("k{at} = 1\n"))),
            format!("[resources.memory.{long}]\n{}", many(&|at| format!("k{at} = 1\n"))),
            many(&|at| format!("k{at} = 1\n")),
            format!("[filesystem]\ninputs = [{}]", many(&|at| format!("\"/{at}\","))),
            format!("[filesystem]\ncaches = [{}]", many(&|at| format!("\"/{at}\","))),
            format!("[credentials]\nenv = [{}]", many(&|at| format!("\"V{at}\","))),
            format!("[credentials.set]\n{}", many(&|at| format!("V{at} = \"\"\n"))),
            "[".repeat(60_000),
            "a.".repeat(60_000),
        ] {
            let found = flaws(&text);
            assert!(!found.is_empty() && found.len() <= MAX_FLAWS && found.concat().len() < 100_000);
        }
    }

    #[test]
    fn the_list_of_fields_is_the_schema() {
        let schema = crate::envelope::json_schema();
        let names = |object: &serde_json::Value| -> Vec<String> {
            object["properties"]
                .as_object()
                .map(|fields| fields.keys().cloned().collect())
                .unwrap_or_default()
        };
        for (section, fields) in FIELDS {
            let held = match section {
                "" => names(&schema),
                section => {
                    let to = schema["properties"][section]["$ref"].as_str().expect("a section");
                    names(schema.pointer(to.trim_start_matches('#')).expect("a definition"))
                }
            };
            let mut listed: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
            listed.sort();
            assert_eq!(held, listed, "[{section}]");
        }
    }
}

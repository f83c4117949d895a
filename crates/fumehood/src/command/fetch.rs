//! `fumehood fetch URL`: one page, by the rules of a sandbox and without one.

use super::NetworkArguments;
use crate::refusal::Refusal;
use crate::{after, network, screen, tasks, usage};
use base64::Engine as _;
use clap::Parser;
use fumehood_model::code::NOT_STARTED;
use fumehood_model::quantity::{self, QuantityError};
use fumehood_model::text;
use fumehood_runtime::fetch::{
    self, CacheLimits, Failed, FetchRequest, Fetched, Job, Method, NotFetched, Outcome, Page, Url,
};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const STEP: &str = "read the arguments";
/// The page is held in memory.
const MOST_BYTES: u64 = 256 << 20;
/// There is no page, or it is the server's refusal.
const NO_PAGE: u8 = 1;

/// Fetch one page. It is judged, dialled and recorded as what a sandbox sends, by a process that can do nothing
/// else. Without rules every public host may be asked; with rules, what they allow
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// `https://…` or `http://…`
    #[arg(value_name = "URL")]
    url: String,
    /// `GET`, or `HEAD` for the status alone
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET", value_parser = ["GET", "HEAD"])]
    method: String,
    /// Write the page to this file, over what is there
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Take so much of the page at most, decoded
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    max_bytes: String,
    /// Follow so many redirects at most; each is judged anew, and carries no secret on
    #[arg(long, value_name = "COUNT", default_value = "5")]
    max_redirects: u32,
    /// The time for all of it
    #[arg(long, value_name = "TIME", default_value = "30s")]
    timeout: String,
    /// A page that was fetched by the same rules is good for so long, and is not asked for again
    #[arg(long, value_name = "TIME", default_value = "2m")]
    cache_time: String,
    /// Keep so many pages at most
    #[arg(long, value_name = "COUNT", default_value = "128")]
    cache_pages: usize,
    /// Neither take a page that was kept, nor keep this one
    #[arg(long)]
    no_cache: bool,
    /// Take the rules from this file; flags go on top
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    network: NetworkArguments,
}

const EXAMPLES: &str = "Examples:
  fumehood fetch https://example.com/
  fumehood fetch --json --allow 'GET https://docs.example.com/**' https://docs.example.com/api
  fumehood fetch -o page.html --max-bytes 10M https://example.com/large
  fumehood fetch --secret TOKEN --allow 'https://api.example.com/v1/** with bearer:TOKEN' https://api.example.com/v1/items

Exit codes: 0 there is a page, 1 there is none (status 400 or more, denied, not reached, too slow),
125 the arguments or the URL could not be read, or nothing could be tried.";

/// What `--json` prints. A member that has no place is left out, but for `error` and `task`.
#[derive(Serialize)]
struct Told<'a> {
    url: &'a str,
    final_url: Option<&'a str>,
    status: Option<u16>,
    content_type: Option<&'a str>,
    bytes: u64,
    truncated: bool,
    from_cache: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Error<'a>>,
    task: Option<&'a str>,
}

#[derive(Serialize)]
struct Error<'a> {
    code: &'a str,
    message: &'a str,
    remedy: &'a str,
}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let json = words.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    let args = match usage::parse::<Args>("fetch", words) {
        Ok(args) => args,
        Err(usage::Unparsed::Helped) => return ExitCode::SUCCESS,
        Err(usage::Unparsed::Refused(refusal)) => return refused("", json, &refusal),
    };
    match attempt(&args) {
        Ok(code) => code,
        Err(refusal) => refused(&args.url, args.json, &refusal),
    }
}

fn refused(url: &str, json: bool, refusal: &Refusal) -> ExitCode {
    if json {
        let error = Error { code: "refused", message: &refusal.why, remedy: &refusal.remedy };
        say(&Told { error: Some(error), ..Told::empty(url) });
    } else {
        refusal.tell();
    }
    ExitCode::from(NOT_STARTED)
}

fn attempt(args: &Args) -> Result<ExitCode, Refusal> {
    let request = request(args)?;
    if let Some(file) = &args.output {
        look(file)?;
    }
    crate::operator::Operator::read()?;
    let state = tasks::state()?;
    let fetched = fetch::fetch(&state, request).map_err(|NotFetched { step, why, remedy }| {
        let why = if step == "fetch" { why } else { format!("failed to {step}: {why}") };
        Refusal::new(&step, why, remedy)
    })?;
    match &fetched.outcome {
        Outcome::Page(page) => page_of(args, &fetched, page),
        Outcome::Failed(failed) => {
            no_page(args, &fetched, failed);
            Ok(ExitCode::from(NO_PAGE))
        }
    }
}

fn request(args: &Args) -> Result<FetchRequest, Refusal> {
    let url = Url::parse(&args.url).map_err(|flaw| {
        Refusal::new(STEP, format!("`{}` is not fetched: {flaw}", text::shown(&args.url)), flaw.remedy())
    })?;
    let amount =
        |flag: &str, error: QuantityError| Refusal::new(STEP, format!("{flag}: {error}"), error.remedy());
    let most_bytes = quantity::bytes(&args.max_bytes).map_err(|error| amount("--max-bytes", error))?;
    if most_bytes > MOST_BYTES {
        let why = format!("--max-bytes: a page of {} is not held in memory", after::bytes(most_bytes));
        return Err(Refusal::new(STEP, why, "256 MiB are the most; `fumehood run -- curl` writes to a file"));
    }
    let time = quantity::duration(&args.timeout).map_err(|error| amount("--timeout", error))?;
    let fresh = quantity::duration(&args.cache_time).map_err(|error| amount("--cache-time", error))?;
    let cache = (!args.no_cache).then_some(CacheLimits { fresh, most_pages: args.cache_pages });
    if !args.network.publish.is_empty() {
        let why = "`--publish` leads to a server in a sandbox, and here is none";
        return Err(Refusal::new(STEP, why, "leave it out"));
    }
    let usual = args.config.is_none().then_some("proxy");
    let envelope = network::envelope(args.config.as_deref(), &args.network, usual)?;
    let Some(egress) = envelope.network().egress.clone() else {
        let why = "there is no network: nothing may be fetched";
        return Err(Refusal::new(STEP, why, "leave out `--net none`, or name a rule: `--allow example.com`"));
    };
    let method = if args.method == "HEAD" { Method::Head } else { Method::Get };
    let job = Job { url, method, most_bytes, most_redirects: args.max_redirects, time };
    Ok(FetchRequest { egress, secrets: envelope.secrets().to_vec(), job, cache })
}

/// Looks, before anything is sent, whether the file has a place.
fn look(file: &Path) -> Result<(), Refusal> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if file.is_dir() || file.file_name().is_none() {
        let why = format!("`{}` is a folder", file.display());
        return Err(Refusal::new(STEP, why, "name a file in it"));
    }
    if !folder.is_dir() {
        let why = format!("there is no folder `{}`", folder.display());
        return Err(Refusal::new(STEP, why, "make it, or name a file elsewhere"));
    }
    Ok(())
}

/// Gives a page out, in the way that was asked for.
fn page_of(args: &Args, fetched: &Fetched, page: &Page) -> Result<ExitCode, Refusal> {
    if let Some(file) = &args.output {
        let made = File::create(file);
        made.and_then(|mut made| made.write_all(&fetched.body)).map_err(|error| {
            let why = format!("`{}` could not be written: {error}", file.display());
            Refusal::new("write the page", why, "name a file that you may write to")
        })?;
    }
    if args.json {
        let mut told = Told {
            final_url: Some(&page.url),
            status: Some(page.status),
            content_type: page.content_type.as_deref(),
            bytes: page.bytes,
            truncated: page.truncated,
            from_cache: fetched.from_cache,
            file: args.output.as_deref(),
            task: Some(fetched.task.as_str()),
            ..Told::empty(&args.url)
        };
        if args.output.is_none() {
            match readable(&fetched.body, page.truncated) {
                Some(text) => told.body = Some(text.to_owned()),
                None => told.body_base64 = Some(base64::prelude::BASE64_STANDARD.encode(&fetched.body)),
            }
        }
        say(&told);
    } else {
        if args.output.is_none() {
            show(&fetched.body);
        }
        if page.truncated {
            let size = after::bytes(page.bytes);
            screen::note(&format!("the page goes on after {size}; `--max-bytes` takes more of it"));
        }
        if page.status >= 400 {
            screen::note(&format!("{} answered with status {}", page.url, page.status));
        } else if args.method == "HEAD" {
            let kind = page.content_type.as_deref().map(|kind| format!(", {kind}")).unwrap_or_default();
            screen::note(&format!("{}: status {}{kind}", page.url, page.status));
        }
    }
    Ok(ExitCode::from(if page.status >= 400 { NO_PAGE } else { 0 }))
}

fn no_page(args: &Args, fetched: &Fetched, failed: &Failed) {
    let Failed { url, code, message, remedy } = failed;
    let message = message.strip_prefix("fumehood ").unwrap_or(message);
    if args.json {
        let error = Error { code, message, remedy };
        let task = Some(fetched.task.as_str());
        say(&Told { final_url: Some(url), error: Some(error), task, ..Told::empty(&args.url) });
    } else {
        screen::note(&format!("{message}\n  remedy: {remedy}"));
    }
}

/// The body as text, where it is one. What was cut may end in the middle of a letter.
fn readable(body: &[u8], truncated: bool) -> Option<&str> {
    match std::str::from_utf8(body) {
        Ok(text) => Some(text),
        Err(error) if truncated && error.error_len().is_none() => {
            std::str::from_utf8(body.get(..error.valid_up_to())?).ok()
        }
        Err(_) => None,
    }
}

/// The body as it is; on a terminal, with nothing in it that a terminal would obey.
fn show(body: &[u8]) {
    if !std::io::stdout().is_terminal() {
        return screen::say_bytes(body);
    }
    screen::say_raw(&harmless(body));
}

fn harmless(body: &[u8]) -> String {
    let whole = String::from_utf8_lossy(body).replace("\r\n", "\n");
    let lines: Vec<String> = whole.split('\t').map(text::lines).collect();
    let ended = lines.join("\t");
    if ended.is_empty() || ended.ends_with('\n') { ended } else { ended + "\n" }
}

/// Prints the object. On a terminal what is beyond ASCII is escaped: JSON leaves some of it that one obeys.
fn say(told: &Told<'_>) {
    if !std::io::stdout().is_terminal() {
        return screen::say_json(told);
    }
    let text = serde_json::to_string(told).unwrap_or_default();
    screen::say(&ascii(&text));
}

fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        if matches!(letter, ' '..='~') {
            out.push(letter);
        } else {
            let mut units = [0; 2];
            letter.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        }
    }
    out
}

// === impl Told ===

impl<'a> Told<'a> {
    fn empty(url: &'a str) -> Self {
        Self {
            url,
            final_url: None,
            status: None,
            content_type: None,
            bytes: 0,
            truncated: false,
            from_cache: false,
            body: None,
            body_base64: None,
            file: None,
            error: None,
            task: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_of_a_page() {
        let page = b"a\tb\r\n\x1b]52;c;eA==\x07\x1b[2J\xc2\x9b\xff\xe2\x80\xaeend";
        let shown = harmless(page);
        assert!(shown.starts_with("a\tb\n\\u{1b}]52") && shown.ends_with("end\n"), "{shown}");
        assert!(!shown.contains(|letter: char| letter.is_control() && !"\n\t".contains(letter)), "{shown}");
        assert!(!shown.contains('\u{202e}'));
        assert_eq!(harmless(b""), "");
    }

    #[test]
    fn json_on_a_terminal_is_ascii_and_the_same() {
        let told = Told { body: Some("é\u{9b}\u{1f600}\n\u{7f}".to_owned()), ..Told::empty("x") };
        let text = serde_json::to_string(&told).unwrap();
        let shown = ascii(&text);
        assert!(shown.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{shown}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&shown), read(&text));
    }

    #[test]
    fn a_cut_text_is_still_one() {
        let whole = "aé".as_bytes();
        assert_eq!(readable(whole, false), Some("aé"));
        assert_eq!(readable(&whole[..2], true), Some("a"));
        assert_eq!(readable(&whole[..2], false), None);
        assert_eq!(readable(b"\xff\xfe", true), None);
    }
}

//! Reading the values of secrets, outside. Done before anything is launched, so that one that can not be read is
//! a run that does not start; and again for one that has ended.

use crate::run::unix_millis;
use fumehood_keep::literals::Literals;
use fumehood_model::egress::{Inject, Rule};
use fumehood_model::envelope::{Secret as Declared, SecretSource};
use fumehood_sys::host;
use fumehood_vault::placeholder::Shape;
use fumehood_vault::secret::{Secret, SecretName};
use fumehood_vault::source::{Given as Source, OUTPUT_LIMIT_BYTES};
use fumehood_vault::vault::Vault;
use std::io::{self, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use zeroize::Zeroizing;

/// A command that gives a secret may ask a service; nobody waits longer.
const COMMAND_TIME: Duration = Duration::from_secs(30);

/// Why a secret has no value. Holds nothing of it.
#[derive(Debug)]
pub(crate) struct NoSecret {
    pub(crate) name: String,
    pub(crate) why: String,
    pub(crate) remedy: String,
}

/// Reads every secret, and gives each its placeholder. Some may have been handed over.
pub(crate) fn read_all(
    declared: &[Declared],
    rules: &[Rule],
    given: Option<&Literals>,
) -> Result<Vault, NoSecret> {
    let mut vault = Vault::default();
    for one in declared {
        let secret = read(one, given)?;
        let shape = shape(&one.name, rules);
        vault.add(secret, shape, &mut fill).map_err(|error| NoSecret {
            name: one.name.clone(),
            why: error.to_string(),
            remedy: error.remedy().to_owned(),
        })?;
    }
    Ok(vault)
}

/// The same names and placeholders with values of chance, which open nothing anywhere.
pub(crate) fn imagine_all(declared: &[Declared], rules: &[Rule]) -> Result<Vault, NoSecret> {
    let mut vault = Vault::default();
    for one in declared {
        let shape = shape(&one.name, rules);
        let mut bytes = [0; 24];
        fill(&mut bytes);
        let word: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let value = match shape {
            Shape::AwsKeys => {
                format!("{{\"AccessKeyId\":\"AKIAIOSFODNN7EXAMPLE\",\"SecretAccessKey\":\"{word}\"}}")
            }
            Shape::Pair => format!("user:{word}"),
            Shape::Opaque => word,
        };
        let secret = made(one, Zeroizing::new(value.into_bytes()))?;
        vault.add(secret, shape, &mut fill).map_err(|error| NoSecret {
            name: one.name.clone(),
            why: error.to_string(),
            remedy: error.remedy().to_owned(),
        })?;
    }
    Ok(vault)
}

/// Reads one secret's value.
pub(crate) fn read(declared: &Declared, literals: Option<&Literals>) -> Result<Secret, NoSecret> {
    let fail =
        |why: String, remedy: &str| NoSecret { name: declared.name.clone(), why, remedy: remedy.to_owned() };
    let given = match &declared.source {
        SecretSource::Variable(name) => match std::env::var_os(name) {
            Some(value) => Zeroizing::new(value.into_encoded_bytes()),
            None => {
                return Err(fail(
                    format!("the variable `{name}` is not set here"),
                    "set it, or name another source",
                ));
            }
        },
        SecretSource::File(path) => {
            let file = std::fs::File::open(path);
            file.and_then(read_bounded).map_err(|error| {
                fail(format!("`{}`: {error}", path.display()), "name a file that you can read")
            })?
        }
        SecretSource::Given => match literals.and_then(|literals| literals.get(&declared.name)) {
            Some(value) => Zeroizing::new(value.as_bytes().to_vec()),
            None => {
                return Err(fail(
                    "no value was handed over with it".to_owned(),
                    "name another source: `env:VARIABLE`, `file:PATH` or `cmd:COMMAND`",
                ));
            }
        },
        SecretSource::Command(line) => printed(line).map_err(|why| {
            fail(why, "run the command by hand; it has 30 s, no input, and prints the value alone")
        })?,
    };
    made(declared, given)
}

/// A secret of what its source gave.
pub(crate) fn made(declared: &Declared, given: Zeroizing<Vec<u8>>) -> Result<Secret, NoSecret> {
    let unusable =
        |why: String, remedy: &str| NoSecret { name: declared.name.clone(), why, remedy: remedy.to_owned() };
    let name =
        SecretName::parse(&declared.name).map_err(|why| unusable(why.to_string(), "give it another name"))?;
    let source = source(&declared.source);
    source.secret(name, given, unix_millis()).map_err(|why| unusable(why.to_string(), why.remedy()))
}

/// The source in the vault's words, which say what is made of the bytes.
fn source(source: &SecretSource) -> Source {
    match source {
        SecretSource::Variable(_) | SecretSource::Given => Source::Variable,
        SecretSource::File(_) => Source::File,
        SecretSource::Command(_) => Source::Command,
    }
}

/// A command that gives a secret.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) child: Child,
    pub(crate) output: ChildStdout,
}

/// Starts a command, as the caller, without input.
pub(crate) fn start(line: &str) -> io::Result<Given> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", line])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let output = child.stdout.take().ok_or(io::ErrorKind::NotFound)?;
    Ok(Given { child, output })
}

/// What a command prints, which runs as the caller with the caller's environment.
fn printed(line: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    let Given { mut child, output } = start(line).map_err(|error| format!("`/bin/sh`: {error}"))?;
    let bytes = timed(output, COMMAND_TIME);
    if bytes.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let bytes = bytes.map_err(|error| {
        if error.kind() == io::ErrorKind::TimedOut {
            "the command did not end within 30 s".to_owned()
        } else {
            format!("its output can not be read: {error}")
        }
    })?;
    if status.success() { Ok(bytes) } else { Err(format!("the command ended with {status}")) }
}

/// Reads until the end, or until the time is over.
fn timed(output: ChildStdout, time: Duration) -> io::Result<Zeroizing<Vec<u8>>> {
    use fumehood_sys::poll::{self, Interest};
    use std::os::fd::AsFd as _;
    let end = std::time::Instant::now() + time;
    let mut bytes = Zeroizing::new(Vec::with_capacity(OUTPUT_LIMIT_BYTES));
    let mut output = output;
    loop {
        let left = end.saturating_duration_since(std::time::Instant::now());
        let waited = poll::wait(&[(output.as_fd(), Interest::Read)], Some(left))?;
        if !waited.iter().any(|waited| waited.ready) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut chunk = Zeroizing::new([0_u8; 4096]);
        let count = output.read(&mut *chunk)?;
        if count == 0 {
            return Ok(bytes);
        }
        if bytes.len() + count > OUTPUT_LIMIT_BYTES {
            return Err(io::Error::other(format!("it is longer than {OUTPUT_LIMIT_BYTES} bytes")));
        }
        bytes.extend_from_slice(chunk.get(..count).unwrap_or_default());
    }
}

fn read_bounded(file: std::fs::File) -> io::Result<Zeroizing<Vec<u8>>> {
    let most = u64::try_from(OUTPUT_LIMIT_BYTES).unwrap_or(u64::MAX);
    // As large as it may get from the start: growing would leave copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(OUTPUT_LIMIT_BYTES + 1));
    file.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// How the value is built, by the rules that use it.
fn shape(name: &str, rules: &[Rule]) -> Shape {
    let mut uses =
        rules.iter().filter_map(|rule| rule.binding.as_ref()).filter(|binding| binding.secret == name);
    match uses.next().map(|binding| &binding.inject) {
        Some(Inject::Basic { user: None }) => Shape::Pair,
        Some(Inject::Sigv4) => Shape::AwsKeys,
        Some(
            Inject::Bearer
            | Inject::Basic { user: Some(_) }
            | Inject::Header { .. }
            | Inject::Query { .. }
            | Inject::Body,
        )
        | None => Shape::Opaque,
    }
}

/// Randomness of the kernel's.
fn fill(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        // Without randomness every placeholder comes out alike, which is refused.
        let word = host::random().unwrap_or(0).to_ne_bytes();
        chunk.iter_mut().zip(word).for_each(|(to, from)| *to = from);
    }
}

//! `fumehood serve`: the daemon.

use super::daemon;
use crate::{tasks, usage};
use clap::Parser;
use fumehood_server::config::Config;
use fumehood_server::tls::Files;
use fumehood_server::{log, serve};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Serve sandboxes over HTTP, to many at once.
///
/// It listens at a socket in the state folder that only you can open, and at the addresses that you name. Sandboxes
/// live on when it ends, and are found again.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// Listen at this address too; whoever calls there needs a key
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// A name of this host; `PORT-ID.NAME` leads to a port of a sandbox
    #[arg(long, value_name = "NAME")]
    domain: Vec<String>,
    /// Speak TLS at the addresses: the certificate for the names of `--domain` and `*.NAME`, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// How long a sandbox lives if nobody says
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    ttl: u64,
    /// The longest that anybody may ask for
    #[arg(long, value_name = "SECONDS")]
    most_ttl: Option<u64>,
    /// Sandboxes of the template `base` that wait in any case
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pool: usize,
    /// Sandboxes that wait for each template, at most; 0 lets none wait
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    most_pool: usize,
    /// How log lines are written: `text` or `json`
    #[arg(long, value_name = "FORM", default_value = "text", value_parser = ["text", "json"], hide_possible_values = true)]
    log: String,
    /// Send traces to this OTLP collector (`OTEL_EXPORTER_OTLP_ENDPOINT`), as in `http://127.0.0.1:4318`
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
}

const EXAMPLES: &str = "Examples:
  fumehood serve --listen 127.0.0.1:3000
  fumehood keys new laptop            makes the key to call it with";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("serve", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let state = match tasks::state() {
        Ok(state) => state,
        Err(refusal) => {
            refusal.tell();
            return ExitCode::FAILURE;
        }
    };
    if args.log == "json" {
        log::as_json();
    }
    let program = PathBuf::from("/proc/self/exe");
    let config = Config {
        sandboxes: state.sandboxes(),
        snapshots: state.snapshots(),
        records: state.records(),
        domains: args.domain.iter().map(|name| name.to_ascii_lowercase()).collect(),
        tls: args.tls_cert.zip(args.tls_key).map(|(certificates, key)| Files { certificates, key }),
        traces: args.otlp.or_else(|| std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok()),
        ttl: Duration::from_secs(args.ttl),
        most_ttl: args.most_ttl.map(Duration::from_secs),
        pool_base: args.pool,
        pool_most: args.most_pool.max(args.pool),
        ..Config::new(state.root().to_owned(), std::env::current_exe().unwrap_or(program))
    };
    match serve::run(config, &args.listen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            daemon::refusal(&error).tell();
            ExitCode::FAILURE
        }
    }
}

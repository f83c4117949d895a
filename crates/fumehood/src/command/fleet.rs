//! `fumehood fleet`: how much so many tasks take, and how long they wait.

use crate::refusal::Refusal;
use crate::{screen, usage};
use clap::Parser;
use fumehood_model::quantity;
use fumehood_server::fleet::{Host, Load, Plan, Simulated, plan, simulate};
use serde::Serialize;
use std::ffi::OsString;
use std::process::ExitCode;

/// Compute memory, storage, hosts and pools for so many tasks, and simulate their arrivals.
///
/// Everything is arithmetic on what you say: measure your own sandboxes (`fumehood ls`, `GET /v1/sandboxes/ID/metrics`)
/// and put their sizes in. The daemon sizes its pools by the same function.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// Tasks that come in an hour, a sandbox each
    #[arg(long, value_name = "NUMBER", default_value_t = 1000.0)]
    tasks_per_hour: f64,
    /// How long a sandbox lives
    #[arg(long, value_name = "TIME", default_value = "10m")]
    life: String,
    /// The part of its life in which it works, from 0 to 1; else it is paused
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    active: f64,
    /// Memory of one that works
    #[arg(long = "mem", value_name = "SIZE", default_value = "512MiB")]
    memory: String,
    /// Memory of one that is paused
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    paused_mem: String,
    /// Memory of one that waits in a pool
    #[arg(long, value_name = "SIZE", default_value = "3MiB")]
    waiting_mem: String,
    /// Files of one
    #[arg(long, value_name = "SIZE", default_value = "200MiB")]
    disk: String,
    /// Cores that one takes while it works
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0)]
    cpus: f64,
    /// How long one takes to be made
    #[arg(long, value_name = "TIME", default_value = "50ms")]
    create: String,
    /// Sandboxes that wait [default: what the load asks for]
    #[arg(long, value_name = "COUNT")]
    pool: Option<usize>,
    /// Memory, disk and cores of one host, and its price an hour
    #[arg(long, value_name = "SIZE", default_value = "64GiB")]
    host_mem: String,
    #[arg(long, value_name = "SIZE", default_value = "1TiB")]
    host_disk: String,
    #[arg(long, value_name = "NUMBER", default_value_t = 16.0)]
    host_cpus: f64,
    #[arg(long, value_name = "MONEY", default_value_t = 0.5)]
    host_price: f64,
    /// Arrivals that are simulated
    #[arg(long, value_name = "COUNT", default_value_t = 100_000)]
    arrivals: usize,
    /// What the simulation begins with; the same gives the same
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  fumehood fleet --tasks-per-hour 20000 --life 30m --active 0.1 --mem 1GiB
  fumehood fleet --tasks-per-hour 500 --create 900ms --pool 0 --json";

/// From a claim to a sandbox, in seconds.
const CLAIM_S: f64 = 0.003;
const MOST_ARRIVALS: usize = 10_000_000;

#[derive(Serialize)]
struct Told {
    load: Load,
    host: Host,
    plan: Plan,
    simulated: Simulated,
}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("fleet", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match attempt(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            refusal.tell();
            ExitCode::FAILURE
        }
    }
}

fn attempt(args: &Args) -> Result<(), Refusal> {
    let load = Load {
        tasks_per_hour: number("--tasks-per-hour", args.tasks_per_hour)?,
        life_s: seconds("--life", &args.life)?,
        active_share: number("--active", args.active)?,
        memory_mib: mebibytes("--mem", &args.memory)?,
        paused_mib: mebibytes("--paused-mem", &args.paused_mem)?,
        waiting_mib: mebibytes("--waiting-mem", &args.waiting_mem)?,
        disk_mib: mebibytes("--disk", &args.disk)?,
        cores: number("--cpus", args.cpus)?,
        create_s: seconds("--create", &args.create)?,
        claim_s: CLAIM_S,
    };
    if load.active_share > 1.0 {
        return Err(flaw("--active", &args.active.to_string(), "it is a share, from 0 to 1"));
    }
    if args.arrivals > MOST_ARRIVALS {
        return Err(flaw("--arrivals", &args.arrivals.to_string(), "10000000 is the most"));
    }
    let host = Host {
        memory_mib: mebibytes("--host-mem", &args.host_mem)?,
        disk_mib: mebibytes("--host-disk", &args.host_disk)?,
        cores: number("--host-cpus", args.host_cpus)?,
        price_per_hour: number("--host-price", args.host_price)?,
    };
    let mut plan = plan(&load, &host);
    plan.pool = args.pool.unwrap_or(plan.pool);
    // The daemon starts twice as many at once as there are cores.
    let makers = std::thread::available_parallelism().map_or(4, |cores| cores.get().saturating_mul(2));
    let simulated = simulate(&load, plan.pool, makers, args.arrivals, args.seed);
    if args.json {
        screen::say_json(&Told { load, host, plan, simulated });
    } else {
        text(&plan, &simulated).iter().for_each(|line| screen::say(line));
    }
    Ok(())
}

fn text(plan: &Plan, seen: &Simulated) -> Vec<String> {
    let share = |part: usize| {
        let (part, all) =
            (u32::try_from(part).unwrap_or(u32::MAX), u32::try_from(seen.arrivals).unwrap_or(1));
        f64::from(part) / f64::from(all.max(1)) * 100.0
    };
    vec![
        format!("arrivals    {:.2} a second", plan.arrivals_per_second),
        format!("living      {:.0}: {:.0} at work, {:.0} paused", plan.living, plan.active, plan.paused),
        format!("pool        {}", plan.pool),
        format!("memory      {:.1} GiB", plan.memory_mib / 1024.0),
        format!("storage     {:.1} GiB", plan.disk_mib / 1024.0),
        format!("cores       {:.1}", plan.cores),
        format!("hosts       {} ({} is what runs out first)", plan.hosts, plan.scarcest),
        format!(
            "cost        {:.2} an hour, {:.0} a month, {:.4} a thousand tasks",
            plan.per_hour, plan.per_month, plan.per_thousand_tasks
        ),
        format!(
            "wait        p50 {:.1} ms, p95 {:.1} ms, most {:.1} ms (of {} simulated)",
            seen.wait_p50_ms, seen.wait_p95_ms, seen.wait_most_ms, seen.arrivals
        ),
        format!("misses      {} ({:.2} %): nothing waited", seen.misses, share(seen.misses)),
    ]
}

fn number(flag: &str, value: f64) -> Result<f64, Refusal> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(flaw(flag, &value.to_string(), "it is a number of zero or more"))
    }
}

fn seconds(flag: &str, text: &str) -> Result<f64, Refusal> {
    if let Some(ms) = text.strip_suffix("ms") {
        let ms: u32 = ms.parse().map_err(|_| flaw(flag, text, "write a time, as in `50ms`"))?;
        return Ok(f64::from(ms) / 1000.0);
    }
    quantity::duration(text)
        .map(|time| time.as_secs_f64())
        .map_err(|error| flaw(flag, text, &error.to_string()))
}

fn mebibytes(flag: &str, text: &str) -> Result<f64, Refusal> {
    let bytes = quantity::bytes(text).map_err(|error| flaw(flag, text, &error.to_string()))?;
    let kibibytes = u32::try_from(bytes >> 10).map_err(|_| flaw(flag, text, "it is more than 4 TiB"))?;
    Ok(f64::from(kibibytes) / 1024.0)
}

fn flaw(flag: &str, value: &str, why: &str) -> Refusal {
    Refusal::new(
        "read the arguments",
        format!("`{flag} {value}`: {why}"),
        "`fumehood fleet --help` has examples",
    )
}

//! The flags that say what may leave. `run` and `net explain` take the same.

use clap::Args;

/// What may leave, as it was typed.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct NetworkArguments {
    /// Let something out: `api.example.com` (TLS), `http://HOST`, `HOST:PORT` (any protocol), `*.HOST`,
    /// `GET https://HOST/v1/**`, `git-read https://HOST/OWNER/NAME`; ` with bearer:NAME` uses a secret.
    /// May be repeated
    #[arg(long, value_name = "RULE", help_heading = "Network")]
    pub(crate) allow: Vec<String>,
    /// Let a tool reach its registries, as your own configuration names them: `npm`, `pip`, `cargo`,
    /// `git`. May be repeated
    #[arg(long = "preset", value_name = "NAME", help_heading = "Network")]
    pub(crate) presets: Vec<String>,
    /// How far it reaches: `none`, `dns` (names resolve, nothing connects), `allow` (the rules), `proxy`
    /// (all public hosts, recorded) [default: none, or allow where there are rules]
    #[arg(long, value_name = "REACH", help_heading = "Network")]
    pub(crate) net: Option<String>,
    /// A secret that rules use: `env:VARIABLE`, `file:PATH` or `cmd:COMMAND`. It never enters; inside,
    /// the variable NAME holds a placeholder. May be repeated
    #[arg(long = "secret", value_name = "NAME=SOURCE", help_heading = "Network")]
    pub(crate) secrets: Vec<String>,
    /// Lead a port of the host's loopback to a server inside. May be repeated
    #[arg(long = "publish", short = 'p', value_name = "[HOST_PORT:]PORT", help_heading = "Network")]
    pub(crate) publish: Vec<String>,
    /// Let a private range be dialled by address: `10.1.0.0/16:5432`. May be repeated
    #[arg(long, value_name = "CIDR:PORT", help_heading = "Network")]
    pub(crate) allow_cidr: Vec<String>,
    /// Let a name resolve into a private range: `db.example.com=10.1.0.0/16`. May be repeated
    #[arg(long, value_name = "HOST=CIDR", help_heading = "Network")]
    pub(crate) resolve: Vec<String>,
    /// A ceiling: `bytes-out=10MiB`, `requests@HOST=100`, `bytes-in`, `connections`, `per-minute`. May
    /// be repeated
    #[arg(long = "net-limit", value_name = "WHAT=AMOUNT", help_heading = "Network")]
    pub(crate) net_limits: Vec<String>,
    /// Go out through this proxy: `http://proxy.example.com:3128`
    #[arg(long, value_name = "URL", help_heading = "Network")]
    pub(crate) upstream_proxy: Option<String>,
    /// Believe a certificate authority for one host: `HOST=FILE`. May be repeated
    #[arg(long, value_name = "HOST=FILE", help_heading = "Network")]
    pub(crate) upstream_ca: Vec<String>,
}

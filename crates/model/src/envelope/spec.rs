//! The wire form: what a caller may write. Unknown fields are refused when it is read.

use super::clauses::{Syscalls, WorkspaceMode};
use super::wire;
use crate::level::{Blast, Level, Trust};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An envelope as a `fumehood.toml` says it. Every clause and every field may be left out; what is
/// left out is denied, or has the default that the reference states.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case", expecting = "a section of fields")]
#[schemars(title = "Fumehood envelope")]
pub struct EnvelopeSpec {
    /// The level of isolation. Left out, it follows from trust and blast radius.
    pub level: Option<Level>,
    /// How far the input can be trusted: `low`, `medium` or `high`.
    pub trust: Option<Trust>,
    /// The worst that the run could do: `low`, `medium` or `high`.
    pub blast: Option<Blast>,
    pub filesystem: FilesystemSpec,
    pub network: NetworkSpec,
    pub privilege: PrivilegeSpec,
    pub credentials: CredentialsSpec,
    pub resources: ResourcesSpec,
    pub cleanup: CleanupSpec,
}

/// Files: what may be seen and where writes go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case", expecting = "a section of fields")]
pub struct FilesystemSpec {
    /// An unpacked root directory to use in place of the host's system folders.
    pub image: Option<String>,
    /// The project folder, seen at `/workspace`.
    pub workspace: Option<String>,
    /// `copy-on-write` (the default), `read-only` or `read-write`.
    pub workspace_mode: Option<WorkspaceMode>,
    /// Read-only views, each `HOST` or `HOST:GUEST`.
    pub read_only: Vec<String>,
    /// Files copied in, each `FILE` or `FILE:GUEST`.
    pub inputs: Vec<String>,
    /// Where the plain files of `/out` are collected on the host.
    pub output: Option<String>,
    /// Caches kept per project: `npm`, `pip`, `cargo`, or an absolute guest folder.
    pub caches: Vec<String>,
    /// A name under which a later run goes on with the same layer and HOME.
    pub session: Option<String>,
}

/// Where the sandbox may send. What no rule allows is denied, and without a rule there is no route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case", expecting = "a section of fields")]
pub struct NetworkSpec {
    /// How far it reaches: `none`, `dns` (public names resolve, nothing connects), `allow` (what the
    /// rules name; the default where there are rules) or `proxy` (every public destination, recorded).
    pub net: Option<String>,
    /// Rules: `api.example.com` (TLS), `http://host`, `host:5432` (any protocol over TCP), `*.host`,
    /// `GET https://host/v1/**`, `git-read https://host/owner/name`; ` with bearer:NAME` uses a secret.
    pub allow: Vec<String>,
    /// Address ranges that may be dialled as addresses, each `10.1.0.0/16:5432`.
    pub allow_cidr: Vec<String>,
    /// Names that may resolve into a private range, each `host=CIDR`.
    pub resolve: Vec<String>,
    /// Rules for the registries of a tool, as its user and system configuration names them: `npm`,
    /// `pip`, `cargo`, `git`, or one of your own.
    pub presets: Vec<String>,
    /// Ports inside that the host's loopback leads to, each `8080` or `9000:8080`.
    pub publish: Vec<String>,
    /// Ceilings: `bytes-out=10MiB`, `requests@api.example.com=100`, and `bytes-in`, `connections`,
    /// `per-minute`.
    pub limits: Vec<String>,
    /// A proxy that everything goes through, `http://proxy.example.com:3128`.
    pub upstream: Option<String>,
    /// Certificate authorities that are believed for some hosts alone, each `host=FILE`.
    pub authorities: Vec<String>,
}

/// Who it is inside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case", expecting = "a section of fields")]
pub struct PrivilegeSpec {
    /// The uid seen inside; never 0 (1000).
    #[serde(deserialize_with = "wire::count", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "wire::count_schema")]
    pub user: Option<u32>,
    /// `default` or `debug`.
    pub syscalls: Option<Syscalls>,
}

/// Which variables enter, and which secrets the rules may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case", expecting = "a section of fields")]
pub struct CredentialsSpec {
    /// Host variables to copy, by name.
    pub env: Vec<String>,
    /// Variables to set.
    pub set: BTreeMap<String, String>,
    /// Secrets that rules use, each `NAME=env:VARIABLE`, `NAME=file:PATH` or `NAME=cmd:COMMAND`. They
    /// never enter: inside, the variable NAME holds a placeholder.
    pub secrets: Vec<String>,
}

/// Ceilings, all finite. Sizes are `512MiB`, `1.5G` or bytes (`K`, `M`, `G`, `T` count in 1024s and
/// `KB`, `MB`, `GB`, `TB` in 1000s); times are `500ms`, `90s`, `5m`, `1h`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case", expecting = "a section of fields")]
pub struct ResourcesSpec {
    /// Memory, as a size (4 GiB, or half of the host's where that is less).
    #[serde(deserialize_with = "wire::amount", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "wire::amount_schema")]
    pub memory: Option<String>,
    /// Processors, as a number such as `1.5` (all of the host's).
    #[serde(deserialize_with = "wire::amount", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "wire::amount_schema")]
    pub cpus: Option<String>,
    /// Processes and threads of the command, at most 65536 (512).
    #[serde(deserialize_with = "wire::count", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "wire::count_schema")]
    pub processes: Option<u32>,
    /// What may be written to disk and scratch, as a size (10 GiB).
    #[serde(deserialize_with = "wire::amount", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "wire::amount_schema")]
    pub disk: Option<String>,
    /// The largest single file, as a size (the same as `disk`).
    #[serde(deserialize_with = "wire::amount", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "wire::amount_schema")]
    pub file_size: Option<String>,
    /// Open files of one process, at most 65536 (4096).
    #[serde(deserialize_with = "wire::count", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "wire::count_schema")]
    pub open_files: Option<u32>,
    /// Wall clock of one command, as a time, at most 30 days (60 s; none at an interactive terminal).
    #[serde(deserialize_with = "wire::amount", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "wire::amount_schema")]
    pub timeout: Option<String>,
    /// Output that is forwarded or kept, as a size; what is past it is drained and counted.
    #[serde(deserialize_with = "wire::amount", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "wire::amount_schema")]
    pub output: Option<String>,
}

/// What stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case", expecting = "a section of fields")]
pub struct CleanupSpec {
    /// `false` also throws a changed layer away. `true` is the default.
    pub keep_layer: Option<bool>,
}

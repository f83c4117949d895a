//! Daily use: the tools that a developer and an agent use, each against its real server.
//!
//! `TOOLS` is one list for both sides of the wall. Beside it each tool must work as it is (that shows that
//! the servers are right); inside, with the rules of its line, it must work just so, once with rules that let TLS
//! pass and once with rules that need to see inside; and without a rule it must fail and say why.

mod held;

use crate::lab::{Caller, Lab, am_root, installed};
use crate::stand::{Seen, Stand, Wall};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One tool: a script for `sh`, the rules that it needs while TLS passes, and those that look inside.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// Words in capitals are filled in by [`Setting::fill`].
    script: &'static str,
    pub(crate) passing: &'static [&'static str],
    /// None where there is no HTTP to look into.
    pub(crate) opened: &'static [&'static str],
    /// A program that not every machine has; without it, the tool is left out, and that is said.
    needs: Option<&'static str>,
}

const API: &[&str] = &["api.example.com"];
const API_OPENED: &[&str] = &["https://api.example.com/**"];
const MIRROR: &[&str] = &["mirror.example.com"];
const MIRROR_OPENED: &[&str] = &["GET,HEAD,POST https://mirror.example.com/files/**"];

const TOOLS: &[Tool] = &[
    Tool {
        name: "curl",
        script: "curl -sSf https://api.example.com/page | grep -q served_by",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "curl, HTTP/2",
        script: "test $(curl -sSf --http2 -o page -w '%{http_version}' https://api.example.com/page) = 2 && grep -q served_by page",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "wget",
        script: "wget -qO- https://api.example.com/page | grep -q served_by",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Python: urllib",
        script: "PYTHON CLIENTS/libraries.py api.example.com urllib",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Python: urllib3",
        script: "PYTHON CLIENTS/libraries.py api.example.com urllib3",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Python: requests",
        script: "PYTHON CLIENTS/libraries.py api.example.com requests",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Python: httpx",
        script: "PYTHON CLIENTS/libraries.py api.example.com httpx",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Python: httpx, HTTP/2",
        script: "PYTHON CLIENTS/libraries.py api.example.com httpx-2",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Python: aiohttp",
        script: "PYTHON CLIENTS/libraries.py api.example.com aiohttp",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Python: websockets",
        script: "PYTHON CLIENTS/websocket.py api.example.com",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Python: gRPC",
        script: "PYTHON CLIENTS/grpc_call.py api.example.com",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Node: fetch",
        script: "node CLIENTS/fetch.js api.example.com",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Node: ws",
        script: "node CLIENTS/websocket.js api.example.com",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Node: gRPC",
        script: "node CLIENTS/grpc_call.js api.example.com",
        passing: API,
        opened: API_OPENED,
        needs: None,
    },
    Tool {
        name: "Java: HttpClient",
        script: "java -Xmx256m CLIENTS/Get.java api.example.com",
        passing: API,
        opened: API_OPENED,
        needs: Some("java"),
    },
    Tool {
        name: "Go: net/http",
        script: "cp CLIENTS/get.go . && HOME=$PWD GOFLAGS=-mod=mod GOCACHE=$PWD/go-cache GO111MODULE=off go run get.go api.example.com",
        passing: API,
        opened: API_OPENED,
        needs: Some("go"),
    },
    Tool {
        name: "git over https",
        script: "git clone -q https://git.example.com/git/one.git one && cd one && echo more >> README && \
                 git -c user.name=A -c user.email=a@example.com commit -qam more && git push -q origin HEAD:other-$$",
        passing: &["git.example.com"],
        opened: &["git-write https://git.example.com/git/one.git"],
        needs: None,
    },
    Tool {
        name: "git over ssh",
        script: "cp CLIENTS/key key && chmod 600 key && \
                 GIT_SSH_COMMAND='ssh -F none -o UserKnownHostsFile=CLIENTS/known -i key' git ls-remote SSH_URL | grep -q COMMIT",
        passing: &["git.example.com:22"],
        opened: &[],
        needs: None,
    },
    Tool {
        name: "psql",
        script: "test $(psql -h db.example.com -U range -Atc 'select 6*7' range) = 42",
        passing: &["db.example.com:5432"],
        opened: &[],
        needs: None,
    },
    Tool {
        name: "pip",
        script: "PYTHON -m pip download -q --retries 0 --no-cache-dir --no-deps --isolated -d pip -i MIRROR/pypi/simple rangepack && ls pip/*.whl && \
                 PYTHON -m pip download -q --retries 0 --no-cache-dir --no-deps --isolated --no-build-isolation --no-binary :all: -d pip -i MIRROR/pypi/simple rangepack-source && \
                 ls pip/*.tar.gz",
        passing: MIRROR,
        opened: MIRROR_OPENED,
        needs: None,
    },
    Tool {
        name: "uv",
        script: "SSL_CERT_FILE=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt} KIT/bin/uv pip install -q --no-config --no-cache --python /usr/bin/python3 --target uv \
                 --index-url MIRROR/pypi/simple rangepack && ls uv/rangepack.py",
        passing: MIRROR,
        opened: MIRROR_OPENED,
        needs: None,
    },
    Tool {
        name: "npm",
        script: "mkdir npm && cd npm && NODE_EXTRA_CA_CERTS=${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt} \
                 npm install --silent --fetch-retries 0 --cache ../npm-cache --registry MIRROR/npm/ rangepack && ls node_modules/rangepack/index.js",
        passing: MIRROR,
        opened: MIRROR_OPENED,
        needs: None,
    },
    Tool {
        name: "cargo",
        script: "mkdir -p crate/src && cd crate && echo 'pub use rangepack::WORD;' > src/lib.rs && \
                 printf '[package]\\nname = \"one\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n[dependencies]\\nrangepack = { version = \"1\", registry = \"range\" }\\n' > Cargo.toml && \
                 PATH=RUST/bin:$PATH CARGO_HOME=$PWD/home CARGO_NET_RETRY=0 CARGO_HTTP_CAINFO=${CARGO_HTTP_CAINFO:-/etc/ssl/certs/ca-certificates.crt} \
                 CARGO_REGISTRIES_RANGE_INDEX=sparse+MIRROR/cargo/ cargo build -q && ls target/debug/*.rlib",
        passing: MIRROR,
        opened: MIRROR_OPENED,
        needs: None,
    },
    Tool {
        name: "apt",
        script: "mkdir -p apt/lists/partial apt/cache/archives/partial && echo 'deb [trusted=yes] MIRROR/apt stable main' > apt/list && \
                 : > apt/status && set -- -o Dir::Etc::SourceList=$PWD/apt/list -o Dir::Etc::SourceParts=- -o Dir::State::Lists=$PWD/apt/lists \
                 -o Dir::State::Status=$PWD/apt/status -o Dir::Cache=$PWD/apt/cache -o APT::Sandbox::User= && \
                 apt-get -q \"$@\" update && apt-get -q \"$@\" download rangepack && ls rangepack_*.deb",
        passing: MIRROR,
        opened: MIRROR_OPENED,
        needs: None,
    },
];

/// A stand in which every tool finds its server.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) stand: Stand,
    ssh_url: String,
    commit: String,
    /// A Rust toolchain that the caller can read.
    rust: PathBuf,
}

// === impl Setting ===

impl Setting {
    pub(crate) fn new(caller: Caller) -> Self {
        let stand = Stand::new(caller);
        stand.range.name("*.example.com", &["203.0.113.7", "2001:db8::7"]);
        stand.range.mirrors("mirror.example.com");
        stand.range.database();
        let repository = stand.range.repository("one.git");
        let ssh = stand.range.ssh();
        stand.lab.folder("clients");
        stand.lab.file("clients/key", &ssh.client_key);
        stand.lab.file("clients/known", format!("git.example.com {}\n", ssh.host_key));
        let ssh_url = format!("ssh://{}@git.example.com{}", ssh.account, repository.folder.display());
        for client in [
            "libraries.py",
            "websocket.py",
            "grpc_call.py",
            "fetch.js",
            "websocket.js",
            "grpc_call.js",
            "Get.java",
            "get.go",
        ] {
            crate::kit::client(&stand.lab, &format!("clients/{client}"));
        }
        let rust = rust(&stand.lab);
        Self { stand, ssh_url, commit: repository.commit, rust }
    }

    /// Runs one tool behind `wall` with `rules`, in a fresh folder.
    pub(crate) fn run(&self, tool: &Tool, wall: Wall, rules: &[&str]) -> Seen {
        let lab = &self.stand.lab;
        let mut flags: Vec<String> =
            rules.iter().flat_map(|rule| ["--allow".to_owned(), (*rule).to_owned()]).collect();
        flags.extend(["--ro".to_owned(), format!("{}:/input/clients", lab.path().join("clients").display())]);
        if tool.script.contains("RUST") {
            flags.extend(["--ro".to_owned(), format!("{}:/input/rust", self.rust.display())]);
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let script = match wall {
            Wall::Fumehood => self.fill(tool, "/input/clients", "/input/python", "/input/rust"),
            Wall::Open => {
                let folder = lab.folder(&tool.name.replace([' ', ':', ',', '/'], "-"));
                let own = lab.path().join("clients").display().to_string();
                format!(
                    "cd {} && {}",
                    folder.display(),
                    self.fill(
                        tool,
                        &own,
                        &crate::kit::python().display().to_string(),
                        &self.rust.display().to_string()
                    )
                )
            }
        };
        self.stand.behind(wall, &flags, &["sh", "-c", &script])
    }

    fn fill(&self, tool: &Tool, clients: &str, kit: &str, rust: &str) -> String {
        let script = tool
            .script
            .replace("CLIENTS", clients)
            .replace("KIT", kit)
            .replace("RUST/", &format!("{rust}/"))
            .replace("PYTHON ", "/usr/bin/python3 ");
        let script = script.replace("MIRROR", "https://mirror.example.com/files");
        script.replace("SSH_URL", &self.ssh_url).replace("COMMIT", &self.commit)
    }
}

/// The toolchain of this build: as it is, or as a copy where its folder is closed to the caller.
fn rust(lab: &Lab) -> PathBuf {
    let own = Path::new(env!("CARGO")).ancestors().nth(2).unwrap();
    if lab.caller == Caller::Root || !am_root() {
        return own.to_owned();
    }
    let copy = lab.folder("rust");
    let mut command = Command::new("cp");
    // Links cost nothing, where the file system is the same.
    let link = lab.path().metadata().unwrap().dev() == own.metadata().unwrap().dev();
    command.arg(if link { "-al" } else { "-a" }).args(["bin", "lib"].map(|part| own.join(part))).arg(&copy);
    assert!(command.status().unwrap().success(), "{command:?}");
    copy
}

/// Those of the list that this machine can run.
pub(crate) fn tools() -> impl Iterator<Item = &'static Tool> {
    TOOLS.iter().filter(|tool| tool.needs.is_none_or(installed))
}

/// The servers are right, or the tests behind the wall would blame it for them.
#[test]
fn without_a_wall_every_tool_works() {
    let setting = Setting::new(if am_root() { Caller::Root } else { Caller::User });
    let mut flaws = Vec::new();
    for tool in tools() {
        // Both sets of rules mean nothing here; that there are some is what a line of the list needs.
        assert!(
            !tool.passing.is_empty() && (tool.opened.is_empty() || tool.opened != tool.passing),
            "{tool:?}"
        );
        let seen = setting.run(tool, Wall::Open, &[]);
        if seen.ran.code() != 0 || seen.log.dialled().is_empty() {
            flaws.push(format!("{}: {}\n{}", tool.name, seen.ran.told(), seen.log.told()));
        }
    }
    assert!(flaws.is_empty(), "{}", flaws.join("\n"));
}

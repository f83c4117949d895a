//! Daily use: the tools that a developer and an agent use, each against its real server.
//!
//! `TOOLS` is one list for both sides of the wall. Beside it each tool must work as it is (that shows that
//! the servers are right); inside, with the rules of its line, it must work just so, once with rules that let TLS
//! pass and once with rules that need to see inside; and without a rule it must fail and say why.

mod held;

use crate::lab::{Caller, am_root};
use crate::stand::{Seen, Stand, Wall};

/// One tool: a script for `sh`, the rules that it needs while TLS passes, and those that look inside.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// Words in capitals are filled in by [`Setting::fill`].
    script: &'static str,
    pub(crate) passing: &'static [&'static str],
    /// None where there is no HTTP to look into.
    pub(crate) opened: &'static [&'static str],
}

const API: &[&str] = &["api.example.com"];
const API_OPENED: &[&str] = &["https://api.example.com/**"];
const MIRROR: &[&str] = &["mirror.example.com"];
const MIRROR_OPENED: &[&str] = &["GET,HEAD,POST https://mirror.example.com/files/**"];

pub(crate) const TOOLS: &[Tool] = &[
    Tool {
        name: "curl",
        script: "curl -sSf https://api.example.com/page | grep -q served_by",
        passing: API,
        opened: API_OPENED,
    },
    Tool {
        name: "curl, HTTP/2",
        script: "test $(curl -sSf --http2 -o page -w '%{http_version}' https://api.example.com/page) = 2 && grep -q served_by page",
        passing: API,
        opened: API_OPENED,
    },
    Tool {
        name: "wget",
        script: "wget -qO- https://api.example.com/page | grep -q served_by",
        passing: API,
        opened: API_OPENED,
    },
    Tool {
        name: "Python: urllib, requests, httpx, aiohttp",
        script: "PYTHON CLIENTS/libraries.py api.example.com",
        passing: API,
        opened: API_OPENED,
    },
    Tool {
        name: "Python: websockets",
        script: "PYTHON CLIENTS/websocket.py api.example.com",
        passing: API,
        opened: API_OPENED,
    },
    Tool {
        name: "Python: gRPC",
        script: "PYTHON CLIENTS/grpc_call.py api.example.com",
        passing: API,
        opened: API_OPENED,
    },
    Tool {
        name: "Node: fetch",
        script: "node CLIENTS/fetch.js api.example.com",
        passing: API,
        opened: API_OPENED,
    },
    Tool {
        name: "Node: ws",
        script: "node CLIENTS/websocket.js api.example.com",
        passing: API,
        opened: API_OPENED,
    },
    Tool {
        name: "Node: gRPC",
        script: "node CLIENTS/grpc_call.js api.example.com",
        passing: API,
        opened: API_OPENED,
    },
    Tool {
        name: "git over https",
        script: "git clone -q https://git.example.com/git/one.git one && cd one && echo more >> README && \
                 git -c user.name=A -c user.email=a@example.com commit -qam more && git push -q origin HEAD:other-$$",
        passing: &["git.example.com"],
        opened: &["git-write https://git.example.com/git/one.git"],
    },
    Tool {
        name: "git over ssh",
        script: "cp CLIENTS/key key && chmod 600 key && \
                 GIT_SSH_COMMAND='ssh -F none -o UserKnownHostsFile=CLIENTS/known -i key' git ls-remote SSH_URL | grep -q COMMIT",
        passing: &["git.example.com:22"],
        opened: &[],
    },
    Tool {
        name: "psql",
        script: "test $(psql -h db.example.com -U range -Atc 'select 6*7' range) = 42",
        passing: &["db.example.com:5432"],
        opened: &[],
    },
    Tool {
        name: "pip",
        script: "PYTHON -m pip download -q --no-cache-dir --no-deps --isolated -d pip -i MIRROR/pypi/simple rangepack && ls pip/*.whl && \
                 PYTHON -m pip download -q --no-cache-dir --no-deps --isolated --no-build-isolation --no-binary :all: -d pip -i MIRROR/pypi/simple rangepack-source && \
                 ls pip/*.tar.gz",
        passing: MIRROR,
        opened: MIRROR_OPENED,
    },
    Tool {
        name: "uv",
        script: "SSL_CERT_FILE=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt} KIT/bin/uv pip install -q --no-config --no-cache --python /usr/bin/python3 --target uv \
                 --index-url MIRROR/pypi/simple rangepack && ls uv/rangepack.py",
        passing: MIRROR,
        opened: MIRROR_OPENED,
    },
    Tool {
        name: "npm",
        script: "mkdir npm && cd npm && NODE_EXTRA_CA_CERTS=${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt} \
                 npm install --silent --cache ../npm-cache --registry MIRROR/npm/ rangepack && ls node_modules/rangepack/index.js",
        passing: MIRROR,
        opened: MIRROR_OPENED,
    },
    Tool {
        name: "apt",
        script: "mkdir -p apt/lists/partial apt/cache/archives/partial && echo 'deb [trusted=yes] MIRROR/apt stable main' > apt/list && \
                 : > apt/status && set -- -o Dir::Etc::SourceList=$PWD/apt/list -o Dir::Etc::SourceParts=- -o Dir::State::Lists=$PWD/apt/lists \
                 -o Dir::State::Status=$PWD/apt/status -o Dir::Cache=$PWD/apt/cache -o APT::Sandbox::User= && \
                 apt-get -q \"$@\" update && apt-get -q \"$@\" download rangepack && ls rangepack_*.deb",
        passing: MIRROR,
        opened: MIRROR_OPENED,
    },
];

/// A stand in which every tool finds its server.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) stand: Stand,
    ssh_url: String,
    commit: String,
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
        for client in
            ["libraries.py", "websocket.py", "grpc_call.py", "fetch.js", "websocket.js", "grpc_call.js"]
        {
            crate::kit::client(&stand.lab, &format!("clients/{client}"));
        }
        Self { stand, ssh_url, commit: repository.commit }
    }

    /// Runs one tool behind `wall` with `rules`, in a fresh folder.
    pub(crate) fn run(&self, tool: &Tool, wall: Wall, rules: &[&str]) -> Seen {
        let lab = &self.stand.lab;
        let mut flags: Vec<String> =
            rules.iter().flat_map(|rule| ["--allow".to_owned(), (*rule).to_owned()]).collect();
        flags.extend(["--ro".to_owned(), format!("{}:/input/clients", lab.path().join("clients").display())]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let script = match wall {
            Wall::Fumehood => self.fill(tool, "/input/clients", "/input/python"),
            Wall::Open => {
                let folder = lab.folder(&tool.name.replace([' ', ':', ',', '/'], "-"));
                let own = lab.path().join("clients").display().to_string();
                format!(
                    "cd {} && {}",
                    folder.display(),
                    self.fill(tool, &own, &crate::kit::python().display().to_string())
                )
            }
        };
        self.stand.behind(wall, &flags, &["sh", "-c", &script])
    }

    fn fill(&self, tool: &Tool, clients: &str, kit: &str) -> String {
        let script = tool
            .script
            .replace("CLIENTS", clients)
            .replace("KIT", kit)
            .replace("PYTHON ", "/usr/bin/python3 ");
        let script = script.replace("MIRROR", "https://mirror.example.com/files");
        script.replace("SSH_URL", &self.ssh_url).replace("COMMIT", &self.commit)
    }
}

/// The servers are right, or the tests behind the wall would blame it for them.
#[test]
fn without_a_wall_every_tool_works() {
    let setting = Setting::new(if am_root() { Caller::Root } else { Caller::User });
    let mut flaws = Vec::new();
    for tool in TOOLS {
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

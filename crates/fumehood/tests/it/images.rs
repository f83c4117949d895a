//! Images, from a source to a command that stands on one, and what a hostile or failing source comes to.

use crate::both_callers::both_callers;
use crate::lab::{Caller, DEADLINE, Lab, Ran, finish, poll, wait};
use fumehood_image::Digest;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

both_callers! {
    an_image_of_a_registry_is_pulled_and_stood_on
    a_run_takes_from_an_image_what_was_not_typed
    a_bad_source_has_one_cause_and_leaves_nothing
    a_puller_that_is_killed_leaves_what_the_next_removes
    two_pullers_of_one_image_do_not_disturb_each_other
    a_token_is_fetched_and_a_redirect_gets_none
}

/// Files by their digests, as a layout and as a registry have them.
#[derive(Clone, Debug, Default)]
struct Image {
    blobs: HashMap<String, Vec<u8>>,
    manifest: String,
}

// === impl Image ===

impl Image {
    /// A static shell and some files. `packing` is the ending of the layer's media type.
    fn shell(lab: &Lab, packing: &str) -> Self {
        let root = lab.folder("rootfs");
        for name in ["bin", "etc", "app", "srv"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        for name in ["sh", "cat", "id", "pwd", "ls", "touch"] {
            if !root.join("bin").join(name).is_symlink() {
                symlink("busybox", root.join("bin").join(name)).unwrap();
            }
        }
        fs::write(root.join("app/said"), "from the image").unwrap();
        fs::write(root.join("start"), "#!/bin/sh\n").unwrap();
        let tar = output(Command::new("tar").arg("-C").arg(&root).args(["-cf", "-", "."]));
        let sent = match packing {
            "" => tar.clone(),
            "+gzip" => piped("gzip", &["-c"], &tar),
            "+zstd" => piped("zstd", &["-c", "-q"], &tar),
            other => panic!("no packing {other}"),
        };
        let config = json!({
            "os": "linux", "architecture": "amd64",
            "config": {
                "Env": ["PATH=/bin", "OF_IMAGE=yes", "HOME=/root", "A=image"],
                "WorkingDir": "/app", "User": "4321:4321",
                "Entrypoint": ["sh", "-c"], "Cmd": ["pwd; cat said; echo; id -u"],
            },
            "rootfs": { "type": "layers", "diff_ids": [Digest::of(&tar).as_str()] },
        });
        Self::of(config.to_string().into_bytes(), sent, packing)
    }

    fn of(config: Vec<u8>, layer: Vec<u8>, packing: &str) -> Self {
        let mut image = Self::default();
        let config = image.put("application/vnd.oci.image.config.v1+json", config);
        let layer = image.put(&format!("application/vnd.oci.image.layer.v1.tar{packing}"), layer);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
        });
        let text = manifest.to_string();
        image.manifest = image.put(MANIFEST, text.into_bytes())["digest"].as_str().unwrap().to_owned();
        image
    }

    fn put(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = Digest::of(&bytes).to_string();
        let size = bytes.len();
        self.blobs.insert(digest.clone(), bytes);
        json!({ "mediaType": media_type, "digest": digest, "size": size })
    }

    fn layer(&mut self) -> &mut Vec<u8> {
        self.blobs.values_mut().max_by_key(|bytes| bytes.len()).unwrap()
    }

    /// Writes it as a layout.
    fn layout(&self, lab: &Lab, name: &str) -> PathBuf {
        let folder = lab.folder(name);
        fs::create_dir_all(folder.join("blobs/sha256")).unwrap();
        for (digest, bytes) in &self.blobs {
            fs::write(folder.join("blobs/sha256").join(digest.trim_start_matches("sha256:")), bytes).unwrap();
        }
        let size = self.blobs[&self.manifest].len();
        let entry = json!({ "mediaType": MANIFEST, "digest": self.manifest, "size": size });
        fs::write(folder.join("index.json"), json!({ "schemaVersion": 2, "manifests": [entry] }).to_string())
            .unwrap();
        fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        lab.give_all(&folder);
        folder
    }
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn output(command: &mut Command) -> Vec<u8> {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

fn piped(program: &str, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program);
    command.args(args);
    finish(command, input).stdout
}

fn image(lab: &Lab, words: &[&str]) -> Ran {
    let mut command = lab.fumehood();
    command.arg("image").args(words);
    finish(command, b"")
}

fn pulled(lab: &Lab, layout: &Path, name: &str) {
    let ran = image(lab, &["pull", layout.to_str().unwrap(), "--as", name]);
    assert!(ran.status.success(), "{}", ran.told());
}

/// The stable word of a failure, as a program gets it.
fn code(ran: &Ran) -> String {
    let told: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.told()));
    assert!(!told["error"]["remedy"].as_str().unwrap().is_empty());
    told["error"]["code"].as_str().unwrap().to_owned()
}

fn count(lab: &Lab, folder: &str) -> usize {
    fs::read_dir(lab.state().join("images").join(folder)).map_or(0, Iterator::count)
}

/// A registry as people run it.
struct Registry {
    child: Child,
    port: u16,
}

// === impl Registry ===

impl Registry {
    fn start(lab: &Lab) -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let folder = lab.folder("registry");
        let config = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n",
            folder.display()
        );
        let file = lab.file("registry.yml", config);
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let reached = poll(DEADLINE, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        assert!(reached, "the registry does not answer");
        Self { child, port }
    }

    fn push(&self, layout: &Path, name: &str, form: &str) -> String {
        let place = format!("127.0.0.1:{}/{name}", self.port);
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--insecure-policy", "copy", "--dest-tls-verify=false", "--format", form]);
        output(skopeo.arg(format!("oci:{}", layout.display())).arg(format!("docker://{place}")));
        place
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn an_image_of_a_registry_is_pulled_and_stood_on(lab: &Lab) {
    let registry = Registry::start(lab);
    for (packing, form) in [("+gzip", "oci"), ("+zstd", "oci"), ("", "v2s2")] {
        let layout = Image::shell(lab, packing).layout(lab, &format!("layout{packing}{form}"));
        let name = registry.push(&layout, &format!("team/tool:{form}"), form);
        let ran = image(lab, &["pull", "--json", &name]);
        assert!(ran.status.success(), "{packing} {form}: {}", ran.told());
        let digest =
            serde_json::from_slice::<Value>(&ran.stdout).unwrap()["digest"].as_str().unwrap().to_owned();
        let (report, ran) =
            lab.json(&["--image", &name], &["sh", "-c", "id -u; cat /app/said; touch /app/x || echo kept"]);
        assert_eq!(report["stdout"]["text"], "4321\nfrom the imagekept\n", "{}", ran.told());
        // By the digest as well, and it stands in the record.
        let by_digest = format!("127.0.0.1:{}/team/tool@{digest}", registry.port);
        assert!(lab.run(&["--image", &by_digest], &["id"]).status.success());
        let mut audit = lab.fumehood();
        audit.args(["audit", "show", "--json"]);
        assert!(finish(audit, b"").out().contains(&digest));
    }
    let missing = image(lab, &["pull", "--json", &format!("127.0.0.1:{}/team/none", registry.port)]);
    assert_eq!(code(&missing), "not_found");
    assert_eq!(count(lab, "tmp"), 0);
}

fn a_run_takes_from_an_image_what_was_not_typed(lab: &Lab) {
    pulled(lab, &Image::shell(lab, "+gzip").layout(lab, "layout"), "shell:1");
    let ran = lab.run::<&str>(&["--image", "shell:1"], &[]);
    assert_eq!(ran.out(), "/app\nfrom the image\n4321\n", "{}", ran.told());
    let script = "pwd; id -u; echo $HOME $OF_IMAGE $A";
    let flags = ["--image", "shell:1", "--user", "1234", "--cwd", "/workspace", "--env", "A=typed"];
    let ran = lab.run(&flags, &["sh", "-c", script]);
    assert_eq!(ran.out(), "/workspace\n1234\n/home/user yes typed\n", "{}", ran.told());
    let mut explain = lab.fumehood();
    explain.args(["run", "--image", "shell:1", "--explain"]);
    let told = finish(explain, b"").out();
    assert!(told.contains("root: image `docker.io/library/shell:1`, sha256:"), "{told}");
    let ran = lab.run(&["--image", "none:1"], &["true"]);
    assert_eq!(ran.code(), 125);
    assert!(
        ran.err().contains("no image `none:1` in the store") && ran.err().contains("image pull"),
        "{}",
        ran.told()
    );
    // Removed, it is not there any more, and nothing of it.
    assert!(image(lab, &["rm", "shell:1"]).status.success());
    assert_eq!((count(lab, "layers"), count(lab, "roots")), (0, 0));
}

fn a_bad_source_has_one_cause_and_leaves_nothing(lab: &Lab) {
    let good = Image::shell(lab, "+gzip");
    let flipped = |mut image: Image| {
        let layer = image.layer();
        let middle = layer.len() / 2;
        layer[middle] ^= 0x55;
        image
    };
    let cut = |mut image: Image| {
        let layer = image.layer();
        layer.truncate(layer.len() - 100);
        image
    };
    let zeros = vec![0; 80 << 20];
    let bomb = piped("gzip", &["-9", "-c"], &zeros);
    let config = json!({ "os": "linux", "architecture": "amd64", "rootfs": { "diff_ids": [Digest::of(b"").as_str()] } });
    let bomb = Image::of(config.to_string().into_bytes(), bomb, "+gzip");
    let other = json!({ "os": "linux", "architecture": "arm64", "rootfs": { "diff_ids": [Digest::of(b"").as_str()] } });
    let other = Image::of(other.to_string().into_bytes(), Vec::new(), "");
    for (what, image_of, expected) in [
        ("flipped", flipped(good.clone()), "bad_digest"),
        ("cut", cut(good), "bad_size"),
        ("bomb", bomb, "bomb"),
        ("other", other, "no_platform"),
    ] {
        let layout = image_of.layout(lab, what);
        let ran = image(lab, &["pull", "--json", layout.to_str().unwrap(), "--as", "bad"]);
        assert_eq!((ran.code(), code(&ran).as_str()), (1, expected), "{what}");
        for folder in ["tmp", "layers", "roots", "images", "names"] {
            assert_eq!(count(lab, folder), 0, "{what} left something in {folder}");
        }
    }
    let plain = image(lab, &["pull", lab.path().to_str().unwrap(), "--as", "bad"]);
    assert!(plain.err().contains("no image layout"), "{}", plain.told());
}

/// A registry that does what a test wants.
struct Stage {
    port: u16,
}

struct Asked {
    path: String,
    authorization: Option<String>,
}

// === impl Stage ===

impl Stage {
    /// Answers each request with what `answer` makes of it; an answer that says so leaves its connection open.
    fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let answer = Arc::clone(&answer);
                std::thread::spawn(move || serve(stream, answer.as_ref()));
            }
        });
        Self { port }
    }

    fn of(image: Image, change: impl Fn(&Asked) -> Option<Answer> + Send + Sync + 'static) -> Self {
        Self::start(move |asked| change(asked).unwrap_or_else(|| usual(&image, &asked.path)))
    }

    fn name(&self) -> String {
        format!("127.0.0.1:{}/team/tool:1", self.port)
    }
}

#[derive(Clone, Debug)]
struct Answer {
    head: String,
    body: Vec<u8>,
    /// Half of the body, and then silence.
    stalls: bool,
}

fn ok(body: Vec<u8>) -> Answer {
    Answer { head: "200 OK\r\nContent-Type: application/octet-stream".to_owned(), body, stalls: false }
}

fn usual(image: &Image, path: &str) -> Answer {
    let last = path.rsplit('/').next().unwrap_or_default();
    let found = if last == "1" { image.blobs.get(&image.manifest) } else { image.blobs.get(last) };
    found
        .cloned()
        .map_or_else(|| Answer { head: "404 Not Found".to_owned(), body: Vec::new(), stalls: false }, ok)
}

fn serve(stream: TcpStream, answer: &(dyn Fn(&Asked) -> Answer + Send + Sync)) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_owned());
        }
        let path = lines[0].split(' ').nth(1).unwrap().to_owned();
        let header = |line: &String| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("authorization").then(|| value.trim().to_owned())
        };
        let authorization = lines.iter().find_map(header);
        let Answer { head, body, stalls } = answer(&Asked { path, authorization });
        let head = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n", body.len());
        let sent = if stalls { &body[..body.len() / 2] } else { &body[..] };
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent)).is_err() {
            return;
        }
        if stalls {
            std::thread::park();
        }
    }
}

fn a_puller_that_is_killed_leaves_what_the_next_removes(lab: &Lab) {
    let good = Image::shell(lab, "+gzip");
    let layer =
        good.blobs.iter().max_by_key(|(_, bytes)| bytes.len()).map(|(digest, _)| digest.clone()).unwrap();
    let whole = good.blobs[&layer].clone();
    let stage = Stage::of(good.clone(), move |asked| {
        let stalled = Answer { stalls: true, ..ok(whole.clone()) };
        asked.path.ends_with(&layer).then_some(stalled)
    });
    let mut command = lab.command(lab.binary());
    command.args(["image", "pull", &stage.name()]).stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let begun = || {
        count(lab, "tmp") > 0
            && fs::read_dir(lab.state().join("images/tmp/1/tree")).is_ok_and(|t| t.count() > 0)
    };
    assert!(poll(DEADLINE, begun), "the pull does not begin");
    child.kill().unwrap();
    assert!(wait(&mut child, DEADLINE).is_some());
    assert!(count(lab, "tmp") > 0);
    let ran = lab.run(&["--image", &stage.name()], &["id"]);
    assert_eq!(ran.code(), 125, "half an image was run: {}", ran.told());
    pulled(lab, &good.layout(lab, "layout"), "shell:1");
    assert_eq!(count(lab, "tmp"), 0);
    assert!(lab.run(&["--image", "shell:1"], &["id"]).status.success());
}

fn two_pullers_of_one_image_do_not_disturb_each_other(lab: &Lab) {
    let layout = Image::shell(lab, "+gzip").layout(lab, "layout");
    let start = |name: &str| {
        let mut command = lab.fumehood();
        command.args(["image", "pull", layout.to_str().unwrap(), "--as", name]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut children: Vec<Child> = ["a:1", "b:1", "a:1", "c:1"].map(start).into();
    for child in &mut children {
        assert!(wait(child, DEADLINE).is_some_and(|status| status.success()));
    }
    assert_eq!(
        (count(lab, "layers"), count(lab, "roots"), count(lab, "images"), count(lab, "names")),
        (1, 1, 1, 3)
    );
    for name in ["a:1", "b:1", "c:1"] {
        assert!(lab.run(&["--image", name], &["id"]).status.success());
    }
}

fn a_token_is_fetched_and_a_redirect_gets_none(lab: &Lab) {
    let good = Image::shell(lab, "+gzip");
    let elsewhere = Stage::of(good.clone(), |asked| {
        // What a registry redirects to must not see the token.
        asked.authorization.as_ref().map(|_| Answer {
            head: "400 Bad Request".to_owned(),
            body: Vec::new(),
            stalls: false,
        })
    });
    let to = elsewhere.port;
    let port = Arc::new(std::sync::OnceLock::new());
    let own = Arc::clone(&port);
    let stage = Stage::of(good, move |asked| {
        let empty = |head: String| Some(Answer { head, body: Vec::new(), stalls: false });
        if asked.path.starts_with("/token") {
            let known = asked.authorization.as_deref() == Some("Basic dTpw");
            let scoped = asked.path.contains("scope=repository%3Ateam%2Ftool%3Apull");
            return if known && scoped {
                Some(ok(br#"{"token":"opensesame"}"#.to_vec()))
            } else {
                empty("403 No".to_owned())
            };
        }
        if asked.authorization.as_deref() != Some("Bearer opensesame") {
            let port = own.get().unwrap();
            return empty(format!(
                "401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"here\",scope=\"repository:team/tool:pull\""
            ));
        }
        let blob = asked.path.contains("/blobs/");
        blob.then(|| empty(format!("307 There\r\nLocation: http://127.0.0.1:{to}{}", asked.path))).flatten()
    });
    port.set(stage.port).unwrap();
    let refused = image(lab, &["pull", "--json", &stage.name()]);
    assert_eq!(code(&refused), "unauthorised");
    let docker = lab.home().join(".docker");
    fs::create_dir_all(&docker).unwrap();
    let auths = json!({ "auths": { format!("127.0.0.1:{}", stage.port): { "auth": "dTpw" } } });
    fs::write(docker.join("config.json"), auths.to_string()).unwrap();
    lab.give_all(&docker);
    let ran = image(lab, &["pull", &stage.name()]);
    assert!(ran.status.success(), "{}", ran.told());
    assert!(lab.run(&["--image", &stage.name()], &["id"]).status.success());
}

#[test]
fn a_full_disk_has_its_own_cause() {
    if !Caller::Root.available() {
        return;
    }
    let lab = Lab::new(Caller::Root);
    let layout = Image::shell(&lab, "+gzip").layout(&lab, "layout");
    let script = format!(
        "mount -t tmpfs -o size=1m,mode=700 none {0} && exec \"$0\" image pull --json {1} --as shell",
        lab.folder("state").display(),
        layout.display()
    );
    let mut command = lab.command("unshare");
    command.args(["--mount", "sh", "-c", &script]).arg(lab.binary());
    let ran = finish(command, b"");
    assert_eq!(code(&ran), "disk_full", "{}", ran.told());
}

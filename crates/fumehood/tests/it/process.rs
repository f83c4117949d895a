//! The process level as a person meets it: what it refuses where namespaces are forbidden, and what is chosen when.

use crate::lab::{self, Caller, Lab, Ran};

/// `fumehood run --json --level process FLAGS -- sh -c SCRIPT` on a host that permits no namespace.
fn bare(lab: &Lab, flags: &[&str], script: &str) -> (serde_json::Value, Ran) {
    let words = lab.forbidding();
    let mut command = lab.command(&words[0]);
    command.args(&words[1..]).arg(lab.binary()).args(["run", "--json", "--level", "process"]).args(flags);
    command.args(["--", "sh", "-c", script]);
    let ran = lab::finish(command, b"");
    let value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.told()));
    (value, ran)
}

fn callers() -> impl Iterator<Item = Caller> {
    [Caller::Root, Caller::User].into_iter().filter(|caller| caller.available())
}

#[test]
fn what_can_not_be_held_without_namespaces_is_refused_with_a_remedy() {
    for caller in callers() {
        let lab = Lab::new(caller);
        let project = lab.folder("project");
        let project = project.to_str().unwrap();
        let image = lab.folder("image");
        let elsewhere = format!("{project}:/data/project");
        let refused: [(&[&str], &str); 5] = [
            (&["--workspace", project], "filesystem"),
            (&["--image", image.to_str().unwrap()], "filesystem"),
            (&["--ro", &elsewhere], "filesystem"),
            (&["--allow", "example.com"], "network"),
            (&["--publish", "18080:80"], "network"),
        ];
        for (flags, clause) in refused {
            let (report, ran) = bare(&lab, flags, "echo ran");
            assert_eq!(report["ending"]["cause"], "not_started", "{flags:?}: {}", ran.told());
            let step = report["ending"]["step"].as_str().unwrap();
            assert!(step.contains(clause), "{flags:?}: {step}");
            assert!(!report["ending"]["remedy"].as_str().unwrap().is_empty(), "{flags:?}");
            assert_eq!(ran.code(), 125, "{flags:?}");
        }
    }
}

#[test]
fn the_container_level_is_refused_where_namespaces_are_and_not_replaced() {
    let lab = Lab::new(Caller::User);
    let words = lab.forbidding();
    let mut command = lab.command(&words[0]);
    command.args(&words[1..]).arg(lab.binary()).args(["run", "--", "echo", "ran"]);
    let ran = lab::finish(command, b"");
    assert_eq!(ran.code(), 125, "{}", ran.told());
    assert!(!ran.out().contains("ran"), "{}", ran.told());
}

#[test]
fn a_workspace_is_read_and_written_where_it_is() {
    let lab = Lab::new(Caller::User);
    let project = lab.folder("project");
    lab.file("project/given", "x");
    let project = project.to_str().unwrap();
    let script = "pwd; cat given; echo y > made; chmod 700 made; ls";
    let (report, ran) = bare(&lab, &["--workspace", &format!("{project}:rw")], script);
    assert_eq!(report["ending"]["code"], 0, "{}", ran.told());
    assert!(report["stdout"]["text"].as_str().unwrap().starts_with(project), "{}", ran.told());
    assert_eq!(std::fs::read_to_string(format!("{project}/made")).unwrap(), "y\n");
    let (report, ran) = bare(&lab, &["--workspace", &format!("{project}:ro")], "cat given; echo z > more");
    assert_ne!(report["ending"]["code"], 0, "{}", ran.told());
    assert!(!lab.path().join("project/more").exists());
}

#[test]
fn a_session_keeps_its_home_and_a_cache_its_files() {
    let lab = Lab::new(Caller::User);
    for (flags, place) in
        [(["--session", "work"], "$HOME/kept"), (["--cache", "pip"], "$HOME/.cache/pip/kept")]
    {
        let (report, ran) = bare(&lab, &flags, &format!("echo first > {place}"));
        assert_eq!(report["ending"]["code"], 0, "{}", ran.told());
        let (report, ran) = bare(&lab, &flags, &format!("cat {place}"));
        assert_eq!(report["stdout"]["text"], "first\n", "{}", ran.told());
    }
}

#[test]
fn disk_bytes_of_scratch_are_watched() {
    let lab = Lab::new(Caller::User);
    let (report, ran) = bare(&lab, &["--disk", "8M"], "head -c 64000000 /dev/zero > $TMPDIR/x; sleep 30");
    assert_eq!(report["ending"]["cause"], "limit_passed", "{}", ran.told());
    assert!(lab::poll(lab::DEADLINE, || {
        std::fs::read_dir(lab.state().join("scratch")).unwrap().next().is_none()
    }));
}

/// With an operator's file in place, as root sees `/etc` in a mount namespace of its own.
pub(crate) fn with_operator(lab: &Lab, text: &str, spoil: &str, words: &[&str]) -> Ran {
    let (upper, work) = (lab.folder("upper"), lab.folder("work"));
    let script = format!(
        "mount -t overlay overlay -o lowerdir=/etc,upperdir={},workdir={} /etc && mkdir -p /etc/fumehood && \
         printf '%s' \"$0\" > /etc/fumehood/operator.toml && {{ {spoil}; }} && exec \"$@\"",
        upper.display(),
        work.display()
    );
    let mut command = lab.command("unshare");
    command.args(["--mount", "sh", "-c", &script, text]).arg(lab.binary()).args(words);
    lab::finish(command, b"")
}

#[test]
fn an_operators_floor_holds_and_a_file_that_others_could_write_refuses_every_run() {
    if !Caller::Root.available() {
        return;
    }
    let lab = Lab::new(Caller::Root);
    let run = |level: &'static str| ["run", "--json", "--level", level, "--", "echo", "ran"];
    let floor = "floor = \"container\"";
    let ran = with_operator(&lab, floor, "true", &run("process"));
    assert_eq!(ran.code(), 125, "{}", ran.told());
    assert!(ran.told().contains("no level below `container`"), "{}", ran.told());
    let ran = with_operator(&lab, floor, "true", &run("container"));
    assert_eq!(ran.code(), 0, "{}", ran.told());
    let raised = ["run", "--json", "--trust", "high", "--blast", "low", "--", "true"];
    let ran = with_operator(&lab, floor, "true", &raised);
    let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(
        (&report["level"]["level"], &report["level"]["reason"]["kind"]),
        (&"container".into(), &"floor".into())
    );
    let flawed = [
        (floor, "chmod 666 /etc/fumehood/operator.toml"),
        (floor, "chown 12345 /etc/fumehood/operator.toml"),
        (floor, "chmod 777 /etc/fumehood"),
        (floor, "mv /etc/fumehood/operator.toml /etc/fumehood/x && ln -s x /etc/fumehood/operator.toml"),
        ("floor = \"container\"\nroof = 1", "true"),
        ("floor = \"none\"", "true"),
    ];
    for (text, spoil) in flawed {
        let ran = with_operator(&lab, text, spoil, &run("container"));
        assert_eq!(ran.code(), 125, "{spoil}: {}", ran.told());
        assert!(ran.told().contains("operator.toml"), "{spoil}: {}", ran.told());
    }
}

#[test]
fn the_level_follows_from_what_is_at_stake() {
    let lab = Lab::new(Caller::User);
    let chosen = |words: &[&str]| {
        let mut command = lab.fumehood();
        command.args(["choose", "--json"]).args(words);
        let ran = lab::finish(command, b"");
        let value: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        (value["level"].as_str().unwrap().to_owned(), value["reason"]["kind"].as_str().unwrap().to_owned())
    };
    let says = |level: &str, kind: &str| (level.to_owned(), kind.to_owned());
    assert_eq!(chosen(&["--trust", "high", "--blast", "low"]), says("process", "table"));
    let low = ["--trust", "low", "--blast", "low"];
    assert_eq!(chosen(&low), says("container", "table"));
    assert_eq!(chosen(&[&low[..], &["--private", "--egress", "open"]].concat()), says("gvisor", "trifecta"));
    assert_eq!(chosen(&[&low[..], &["--private", "--egress", "bound"]].concat()), says("container", "table"));
    let (report, ran) = lab.json(&["--trust", "high", "--blast", "low"], &["true"]);
    assert_eq!(report["level"]["level"], "process", "{}", ran.told());
    assert_eq!(report["ending"]["code"], 0, "{}", ran.told());
}

//! Files that host tools execute by themselves.
//!
//! A closed table. A row is here when a tool runs the file, or a program that the file names, without
//! being asked for that file: on entering the folder, on opening it in an editor, on an everyday
//! command about something else (`git status`, `npm install`, any Python start). What a person runs
//! knowingly (`Makefile`, `package.json` scripts, `build.rs`, test files) is not: that is the work.
//!
//! Names are compared as a careless file system would: without case, without invisible characters,
//! without trailing dots and spaces.

use super::changes::Node;
use super::text::invisible;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// What the table says of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing runs it by itself.
    Plain,
    /// It runs elsewhere, once it is pushed: worth a line, no refusal.
    Elsewhere(&'static str),
    /// Refused unless it is named.
    Named(&'static str),
    /// Refused always.
    Never(&'static str),
}

/// One row: components that match anywhere in a path, with all that lies below, and the reason.
struct Row {
    pattern: &'static [&'static str],
    why: &'static str,
}

const fn row(pattern: &'static [&'static str], why: &'static str) -> Row {
    Row { pattern, why }
}

const EDITOR: &str = "an editor runs what it names when the folder is opened";
const AGENT: &str = "coding agents run the hooks, servers and commands it names";
const HOOKS: &str = "git runs it as a hook once it is installed";
const SHELL: &str = "a shell or a login session runs it when it starts";
const TOOLCHAIN: &str = "every cargo command, also an editor's, can be sent to a toolchain it names";
const PACKAGES: &str = "package commands run the programs it names";

/// The table. Lower case.
const ROWS: &[Row] = &[
    row(&[".envrc"], "direnv runs it on entering the folder"),
    row(&[".mise.toml"], "mise runs what it names on entering the folder"),
    row(&["mise.toml"], "mise runs what it names on entering the folder"),
    row(&[".mise.local.toml"], "mise runs what it names on entering the folder"),
    row(&["mise.local.toml"], "mise runs what it names on entering the folder"),
    row(&[".config", "mise.toml"], "mise runs what it names on entering the folder"),
    row(&[".mise"], "mise runs what it names on entering the folder"),
    row(&[".config", "mise"], "mise runs what it names on entering the folder"),
    row(&[".vscode"], EDITOR),
    row(&[".idea"], EDITOR),
    row(&[".fleet"], EDITOR),
    row(&[".zed"], EDITOR),
    row(&[".devcontainer"], "an editor builds and runs it when the folder is opened"),
    row(&[".devcontainer.json"], "an editor builds and runs it when the folder is opened"),
    row(&[".helix"], EDITOR),
    row(&[".vim"], EDITOR),
    row(&[".exrc"], EDITOR),
    row(&[".nvimrc"], EDITOR),
    row(&[".nvim.lua"], EDITOR),
    row(&[".vimrc"], EDITOR),
    row(&[".dir-locals.el"], EDITOR),
    row(&[".dir-locals-2.el"], EDITOR),
    row(&[".claude"], AGENT),
    row(&[".claude.json"], AGENT),
    row(&[".cursor"], AGENT),
    row(&[".codex"], AGENT),
    row(&[".gemini"], AGENT),
    row(&[".windsurf"], AGENT),
    row(&[".continue"], AGENT),
    row(&[".kiro"], AGENT),
    row(&[".amazonq"], AGENT),
    row(&[".roo"], AGENT),
    row(&[".opencode"], AGENT),
    row(&["opencode.json"], AGENT),
    row(&["opencode.jsonc"], AGENT),
    row(&[".aider.conf.yml"], AGENT),
    row(&[".mcp.json"], AGENT),
    row(&[".husky"], HOOKS),
    row(&[".githooks"], HOOKS),
    row(&[".pre-commit-config.yaml"], HOOKS),
    row(&["lefthook.yml"], HOOKS),
    row(&[".lefthook.yml"], HOOKS),
    row(&["lefthook-local.yml"], HOOKS),
    row(&[".gitconfig"], "git runs the programs it names"),
    row(&[".config", "git"], "git runs the programs it names"),
    row(&[".cargo", "config"], "every cargo command, also an editor's, runs the programs it names"),
    row(&[".cargo", "config.toml"], "every cargo command, also an editor's, runs the programs it names"),
    row(&["rust-toolchain.toml"], TOOLCHAIN),
    row(&["rust-toolchain"], TOOLCHAIN),
    row(&[".hg", "hgrc"], "every Mercurial command runs the hooks and programs it names"),
    row(&[".jj", "repo", "config.toml"], "every jj command runs the programs it names"),
    row(&[".npmrc"], PACKAGES),
    row(&[".yarnrc"], PACKAGES),
    row(&[".yarnrc.yml"], PACKAGES),
    row(&[".yarn", "releases"], PACKAGES),
    row(&[".yarn", "plugins"], PACKAGES),
    row(&[".pnpmfile.cjs"], PACKAGES),
    row(&[".bazelrc"], PACKAGES),
    row(&["sitecustomize.py"], "every Python started here imports it"),
    row(&["usercustomize.py"], "every Python started here imports it"),
    row(&[".gdbinit"], "a debugger started here runs it"),
    row(&[".lldbinit"], "a debugger started here runs it"),
    row(&[".bashrc"], SHELL),
    row(&[".bash_profile"], SHELL),
    row(&[".bash_login"], SHELL),
    row(&[".bash_logout"], SHELL),
    row(&[".profile"], SHELL),
    row(&[".zshrc"], SHELL),
    row(&[".zshenv"], SHELL),
    row(&[".zprofile"], SHELL),
    row(&[".zlogin"], SHELL),
    row(&[".config", "fish"], SHELL),
    row(&[".config", "autostart"], SHELL),
    row(&[".config", "systemd"], SHELL),
    row(&[".ssh"], "ssh trusts it and runs the programs it names"),
];

/// What runs on a build service with the project's own credentials.
const ELSEWHERE: &[Row] = &[
    row(&[".github", "workflows"], "a build service runs it once it is pushed"),
    row(&[".github", "actions"], "a build service runs it once it is pushed"),
    row(&[".gitlab-ci.yml"], "a build service runs it once it is pushed"),
    row(&[".circleci"], "a build service runs it once it is pushed"),
];

/// What ordinary work writes into a `.git` folder. Git executes none of it; all else there is refused.
const GIT_PLAIN: &[&str] = &[
    "head",
    "orig_head",
    "fetch_head",
    "merge_head",
    "merge_msg",
    "merge_mode",
    "cherry_pick_head",
    "revert_head",
    "commit_editmsg",
    "tag_editmsg",
    "squash_msg",
    "auto_merge",
    "merge_autostash",
    "index",
    "packed-refs",
    "shallow",
    "description",
    "objects",
    "refs",
    "logs",
    "gc.log",
];
/// What git executes or follows, wherever in a submodule's folder it is.
const GIT_RUN: &[&str] = &[
    "hooks",
    "config",
    "config.worktree",
    "commondir",
    "gitdir",
    "rebase-merge",
    "rebase-apply",
    "worktrees",
];

const POLICY: &str = "fumehood.toml";
const GIT: &str = "git runs the hooks and programs it names, or follows it to a folder that names some";

/// What the table says of `path`, where `now` is to stand.
pub fn judge(path: &Path, now: &Node) -> Verdict {
    let parts: Vec<String> = path.components().map(fold).collect();
    if parts.iter().any(|part| part == POLICY) {
        return Verdict::Never("a policy never comes from inside the sandbox");
    }
    if let Some(why) = git(&parts, now) {
        return Verdict::Named(why);
    }
    // A link can stand in for the folder that a row lies in.
    let redirects = matches!(now, Node::Link { .. });
    let meets = |row: &&Row| {
        let inside = parts.windows(row.pattern.len()).any(|window| window == row.pattern);
        let heads = || (1..row.pattern.len()).filter_map(|length| row.pattern.get(..length));
        inside || (redirects && heads().any(|head| ends_with(&parts, head)))
    };
    if let Some(row) = ROWS.iter().find(meets) {
        return Verdict::Named(row.why);
    }
    if parts.last().is_some_and(|name| name.ends_with(".code-workspace")) {
        return Verdict::Named(EDITOR);
    }
    match ELSEWHERE.iter().find(meets) {
        Some(row) => Verdict::Elsewhere(row.why),
        None => Verdict::Plain,
    }
}

/// What the table says of a path that goes with the folder it lies in. Planting is what the table is
/// about; of what is removed in passing, only a policy and a repository's history matter.
pub fn judge_loss(path: &Path) -> Verdict {
    let is_history = path.components().next_back().map(fold).is_some_and(|name| name == ".git");
    match judge(path, &Node::Gone) {
        never @ Verdict::Never(_) => never,
        named @ Verdict::Named(_) if is_history => named,
        Verdict::Named(_) | Verdict::Elsewhere(_) | Verdict::Plain => Verdict::Plain,
    }
}

/// Whether `name` is, in a folder with `HEAD`, `objects` and `refs`, what makes git take that folder for
/// a bare repository or run something in it.
pub fn is_bare_part(name: &Path) -> bool {
    let folded: String = name.components().map(fold).collect();
    ["head", "config", "hooks", "commondir"].contains(&folded.as_str())
}

/// What is wrong with a path that has `.git` components; each of them may be the one that git uses.
fn git(parts: &[String], now: &Node) -> Option<&'static str> {
    let positions = parts.iter().enumerate().filter(|(_, part)| *part == ".git");
    positions.map(|(at, _)| parts.get(at + 1..).unwrap_or_default()).find_map(|below| in_git(below, now))
}

fn in_git(below: &[String], now: &Node) -> Option<&'static str> {
    let Some(first) = below.first() else {
        return match now {
            Node::Dir { .. } => None,
            Node::Gone => Some("the whole history of the repository would go"),
            // A file or a link is a pointer to another repository.
            Node::File { .. } | Node::Link { .. } | Node::Special(_) => Some(GIT),
        };
    };
    let plain = match first.as_str() {
        "hooks" => is_sample(below, now),
        "info" => {
            is_dir_at(below, now) || below.get(1).is_some_and(|name| name == "exclude" || name == "refs")
        }
        "objects" => !below.iter().any(|part| part.contains("alternates")) && !is_link(now),
        "modules" => !below.iter().any(|part| GIT_RUN.contains(&part.as_str())) && !is_link(now),
        name => GIT_PLAIN.contains(&name) && !is_link(now),
    };
    if plain { None } else { Some(GIT) }
}

/// A hook under a name that git never runs, or the folder of hooks alone.
fn is_sample(below: &[String], now: &Node) -> bool {
    match (below, now) {
        ([_hooks], Node::Dir { .. }) => true,
        ([_hooks, name], Node::File { .. }) => name.ends_with(".sample"),
        (_, Node::Dir { .. } | Node::File { .. } | Node::Link { .. } | Node::Special(_) | Node::Gone) => {
            false
        }
    }
}

fn is_dir_at(below: &[String], now: &Node) -> bool {
    below.len() == 1 && matches!(now, Node::Dir { .. })
}

const fn is_link(now: &Node) -> bool {
    matches!(now, Node::Link { .. })
}

fn ends_with(parts: &[String], tail: &[&str]) -> bool {
    parts.len() >= tail.len() && parts.iter().rev().zip(tail.iter().rev()).all(|(part, name)| part == name)
}

/// A component as a careless file system compares it.
fn fold(part: Component<'_>) -> String {
    let text = String::from_utf8_lossy(part.as_os_str().as_bytes());
    let shown: String = text
        .chars()
        .filter(|letter| !invisible(*letter))
        .map(|letter| if letter == '\u{17f}' { 's' } else { letter })
        .flat_map(char::to_lowercase)
        .collect();
    shown.trim_end_matches(['.', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fumehood_sys::dirfd::{DirHandle, Kind};

    fn file() -> Node {
        let stat = DirHandle::open(Path::new("/")).unwrap().stat().unwrap();
        Node::File { stat, copied_up: false }
    }

    fn named(path: &str) -> bool {
        matches!(judge(Path::new(path), &file()), Verdict::Named(_))
    }

    #[test]
    fn what_runs_by_itself_is_refused_wherever_it_lies() {
        for path in [
            ".git/hooks/pre-commit",
            ".git/config",
            ".git/config.worktree",
            ".git/info/attributes",
            ".git",
            "sub/.git",
            "sub/.git/hooks/post-checkout",
            ".git/modules/lib/hooks/x",
            ".git/modules/a/b/config",
            ".git/commondir",
            ".git/objects/info/alternates",
            ".git/rebase-merge/git-rebase-todo",
            ".git/worktrees/w/gitdir",
            ".GIT/Hooks/pre-commit",
            ".g\u{200c}it/config",
            ".git./config",
            ".Envrc",
            ".envrc",
            "a/b/.envrc",
            ".vscode/tasks.json",
            ".VSCode/settings.json",
            "x.code-workspace",
            ".idea/workspace.xml",
            ".claude/settings.json",
            ".cursor/mcp.json",
            ".mcp.json",
            ".hu\u{17f}ky/pre-commit",
            ".cargo/config.toml",
            "rust-toolchain",
            ".hg/hgrc",
            ".helix/languages.toml",
            ".npmrc",
            ".yarn/releases/yarn.cjs",
            "src/sitecustomize.py",
            ".devcontainer/devcontainer.json",
            ".vsco\u{200d}de/tasks.json",
            ".pre-commit-config.yaml",
            ".\u{212a}iro/x",
        ] {
            assert!(named(path), "{path}");
        }
    }

    #[test]
    fn ordinary_work_passes() {
        for path in [
            "src/main.rs",
            ".git/HEAD",
            ".git/index",
            ".git/refs/heads/main",
            ".git/objects/ab/cdef",
            ".git/logs/HEAD",
            ".git/hooks/pre-commit.sample",
            ".git/info/exclude",
            ".gitignore",
            "Makefile",
            "package.json",
            ".envrc-notes",
            "git/hooks/x",
            "my.git/hooks/x",
            "vscode/tasks.json",
            ".cargo/registry",
            "config",
            ".git/COMMIT_EDITMSG",
        ] {
            assert_eq!(judge(Path::new(path), &file()), Verdict::Plain, "{path}");
        }
    }

    #[test]
    fn a_policy_never_comes_back() {
        for path in ["fumehood.toml", "a/FumeHood.TOML", "fumehood.toml/x"] {
            assert!(matches!(judge(Path::new(path), &file()), Verdict::Never(_)), "{path}");
        }
    }

    #[test]
    fn a_link_in_the_place_of_a_guarded_folder_is_refused() {
        let stat = DirHandle::open(Path::new("/")).unwrap().stat().unwrap();
        let link = Node::Link { target: "elsewhere".into(), stat };
        for path in [".git", ".cargo", ".vscode", ".yarn", ".git/hooks", ".git/refs", "sub/.config"] {
            assert!(matches!(judge(Path::new(path), &link), Verdict::Named(_)), "{path}");
        }
        assert_eq!(judge(Path::new(".github"), &link), Verdict::Elsewhere(ELSEWHERE[0].why));
        assert_eq!(judge(Path::new("docs"), &link), Verdict::Plain);
        assert!(matches!(judge(Path::new(".git"), &Node::Special(Kind::Fifo)), Verdict::Named(_)));
    }
}

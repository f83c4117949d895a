//! The known toolchain managers: where they keep programs, and nothing else of theirs.
//!
//! **Invariant:** no entry shows a folder in which its manager keeps a token, a login or a
//! configuration file. Where a root holds such a file, only the folders with programs are named.

/// One toolchain manager.
#[derive(Debug)]
pub(super) struct Known {
    /// The word shown to people.
    pub(super) name: &'static str,
    /// Where it lives.
    pub(super) root: Root,
    /// Folders beneath the root that are shown; an empty one is the whole root.
    pub(super) shown: &'static [&'static str],
    /// Another root that its programs need.
    pub(super) needs: Option<(Root, &'static [&'static str])>,
}

/// The folder of a manager: a host variable's, else a place under the home folder (or an absolute one).
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    /// Passed on to the command only where the root is not at its usual place.
    pub(super) variable: Option<&'static str>,
    pub(super) usual: &'static str,
}

const fn at(variable: &'static str, usual: &'static str) -> Root {
    Root { variable: Some(variable), usual }
}

const fn always(usual: &'static str) -> Root {
    Root { variable: None, usual }
}

const fn known(name: &'static str, root: Root, shown: &'static [&'static str]) -> Known {
    Known { name, root, shown, needs: None }
}

const WHOLE: &[&str] = &[""];

/// Folders of a conda root. `.condarc` and `etc` may hold channel tokens and stay out.
const CONDA: &[&str] = &[
    "aarch64-conda-linux-gnu",
    "bin",
    "compiler_compat",
    "conda-meta",
    "condabin",
    "envs",
    "include",
    "lib",
    "libexec",
    "sbin",
    "share",
    "shell",
    "ssl",
    "x86_64-conda-linux-gnu",
];
/// Folders of a Homebrew prefix. `etc` and `var` belong to services and stay out.
const BREW: &[&str] = &["Cellar", "bin", "include", "lib", "opt", "sbin", "share"];

pub(super) const KNOWN: &[Known] = &[
    known("pyenv", at("PYENV_ROOT", ".pyenv"), WHOLE),
    known("rbenv", at("RBENV_ROOT", ".rbenv"), WHOLE),
    known("nodenv", at("NODENV_ROOT", ".nodenv"), WHOLE),
    known("nvm", at("NVM_DIR", ".nvm"), &["versions"]),
    known("nvm", always(".config/nvm"), &["versions"]),
    known("fnm", at("FNM_DIR", ".local/share/fnm"), &["aliases", "node-versions"]),
    known("volta", at("VOLTA_HOME", ".volta"), &["bin", "tools"]),
    known("asdf", at("ASDF_DATA_DIR", ".asdf"), &["bin", "installs", "lib", "libexec", "plugins", "shims"]),
    known("mise", at("MISE_DATA_DIR", ".local/share/mise"), &["installs", "plugins", "shims"]),
    // `credentials.toml`, `config.toml` and the registry stay out: only the proxies are shown.
    Known {
        name: "rustup",
        root: at("CARGO_HOME", ".cargo"),
        shown: &["bin"],
        needs: Some((at("RUSTUP_HOME", ".rustup"), WHOLE)),
    },
    // `credentials` lies beside these two.
    known("uv", always(".local/share/uv"), &["python", "tools"]),
    known("pipx", at("PIPX_HOME", ".local/share/pipx"), &["shared", "venvs"]),
    known("pipx", always(".local/pipx"), &["shared", "venvs"]),
    known("poetry", always(".local/share/pypoetry"), &["venv"]),
    known("conda", always("miniconda3"), CONDA),
    known("conda", always("anaconda3"), CONDA),
    known("conda", always("miniforge3"), CONDA),
    known("conda", always("mambaforge"), CONDA),
    known("mamba", at("MAMBA_ROOT_PREFIX", "micromamba"), CONDA),
    known("brew", at("HOMEBREW_PREFIX", "/home/linuxbrew/.linuxbrew"), BREW),
    known("nix", always("/nix/store"), WHOLE),
    known("go", at("GOPATH", "go"), &["bin"]),
    known("bun", at("BUN_INSTALL", ".bun"), &["bin", "install/global"]),
    known("deno", at("DENO_INSTALL", ".deno"), &["bin"]),
    known("pnpm", at("PNPM_HOME", ".local/share/pnpm"), WHOLE),
    known("npm", always(".npm-global"), &["bin", "lib"]),
    known("sdkman", at("SDKMAN_DIR", ".sdkman"), &["candidates"]),
    known("ghcup", always(".ghcup"), &["bin", "cabal", "ghc", "hls", "stack"]),
    Known {
        name: "juliaup",
        root: always(".juliaup"),
        shown: &["bin"],
        needs: Some((always(".julia/juliaup"), WHOLE)),
    },
];

//! From what was typed to a task: an id, the beginning of one, or nothing for the latest.

use crate::refusal::Refusal;
use crate::{config, host};
use fumehood_model::id::TaskId;
use fumehood_runtime::files::layer::{self, Layer};
use fumehood_runtime::files::text::escape_path;
use fumehood_runtime::state::{State, StateError};
use fumehood_sys::dirfd::DirHandle;
use std::fs;
use std::path::{Path, PathBuf};

const STEP: &str = "find the task";

/// Opens the state folder.
pub(crate) fn state() -> Result<State, Refusal> {
    let step = "open the state folder";
    let Some(root) = host::state_root(host::home().as_deref()) else {
        return Err(Refusal::new(
            step,
            "there is no home folder to keep state in",
            "set `FUMEHOOD_STATE` to a folder of yours",
        ));
    };
    State::open(root).map_err(|error| {
        let remedy = match &error {
            StateError::Unsafe { remedy, .. } => remedy.clone(),
            StateError::Io { source, .. } => fumehood_model::remedy::of_io(source)
                .unwrap_or("set `FUMEHOOD_STATE` to a folder of yours")
                .to_owned(),
        };
        let source =
            std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        Refusal::new(step, format!("{error}{source}"), remedy)
    })
}

/// The task that has a layer: the one that is named, or the latest over a workspace that holds the
/// current folder or lies beneath it. What waits elsewhere is another project's, and only meant by name.
pub(crate) fn with_layer(state: &State, typed: Option<&str>) -> Result<TaskId, Refusal> {
    let nothing = Refusal::new(
        STEP,
        "no run left changes to look at",
        "a run with `--workspace DIR` leaves them where it changed something",
    );
    if typed.is_some() {
        return pick(&state.layers(), "", typed, nothing);
    }
    let waiting = waiting(state);
    let here = std::env::current_dir().unwrap_or_default();
    let related = |workspace: &Path| here.starts_with(workspace) || workspace.starts_with(&here);
    let own = waiting.iter().rev().find(|(_, workspace)| related(workspace));
    match own {
        Some((task, _)) => Ok(task.clone()),
        None if waiting.is_empty() => Err(nothing),
        None => Err(elsewhere(&waiting)),
    }
}

/// Every layer and its workspace, oldest first.
fn waiting(state: &State) -> Vec<(TaskId, PathBuf)> {
    let Ok(layers) = DirHandle::open(&state.layers()) else { return Vec::new() };
    let over = |task: TaskId| {
        let workspace = Layer::open(&layers, &task).ok()?.meta.workspace();
        let workspace = config::real_path(&workspace).unwrap_or(workspace);
        Some((task, workspace))
    };
    layer::list(&layers).unwrap_or_default().into_iter().filter_map(over).collect()
}

fn elsewhere(waiting: &[(TaskId, PathBuf)]) -> Refusal {
    /// More would not help to choose.
    const SHOWN: usize = 5;
    let newest = waiting.iter().rev().take(SHOWN);
    let list: String =
        newest.map(|(task, workspace)| format!("\n  {task}  {}", escape_path(workspace))).collect();
    let why = format!("no run over this folder left changes; others did:{list}");
    Refusal::new(STEP, why, "name one, or go to its folder")
}

/// The task that has a record.
pub(crate) fn with_record(state: &State, typed: Option<&str>) -> Result<TaskId, Refusal> {
    let nothing = Refusal::new(STEP, "nothing has run yet", "`fumehood run -- true` runs something");
    pick(&state.root().join("records"), ".jsonl", typed, nothing)
}

fn pick(folder: &Path, ending: &str, typed: Option<&str>, nothing: Refusal) -> Result<TaskId, Refusal> {
    let typed = typed.unwrap_or_default().to_ascii_lowercase();
    let mut ids: Vec<TaskId> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| TaskId::parse(entry.ok()?.file_name().to_str()?.strip_suffix(ending)?).ok())
        .collect();
    ids.sort();
    if ids.is_empty() {
        return Err(nothing);
    }
    if typed.is_empty() {
        return ids.pop().ok_or(nothing);
    }
    let mut fitting = ids.into_iter().filter(|id| id.as_str().starts_with(&typed));
    match (fitting.next(), fitting.next()) {
        (Some(id), None) => Ok(id),
        (Some(first), Some(second)) => Err(Refusal::new(
            STEP,
            format!("`{typed}` is the beginning of more than one task"),
            format!("type more of it, as in `{first}` or `{second}`"),
        )),
        (None, _) => Err(Refusal::new(
            STEP,
            format!("there is no task `{typed}` here"),
            "`fumehood audit list` lists the tasks",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_found_by_its_beginning_and_the_latest_by_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let old = TaskId::new(1_000, 1);
        let new = TaskId::new(2_000, 1);
        for name in [old.as_str(), new.as_str(), "index", "../x"] {
            let _ = fs::write(folder.path().join(format!("{name}.jsonl")), "");
        }
        let nothing = || Refusal::new(STEP, "nothing", "");
        let find = |typed: Option<&str>| pick(folder.path(), ".jsonl", typed, nothing());
        assert_eq!(find(None), Ok(new));
        assert_eq!(find(Some(old.as_str())), Ok(old));
        assert!(find(Some("0")).unwrap_err().why.contains("more than one"));
        assert!(find(Some("zzz")).unwrap_err().why.contains("no task"));
        assert_eq!(pick(Path::new("/nonexistent"), "", None, nothing()), Err(nothing()));
    }
}

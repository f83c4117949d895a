//! Any bytes in the records folder: everything that reads them answers, and nothing panics.
#![no_main]

use fumehood_audit::{
    TaskLog, find, index_path, list, read, show, show_list, show_report, task_path, to_json, verify,
};
use fumehood_model::event::Event;
use fumehood_model::id::TaskId;
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

/// A folder of this process, in memory where there is room for it.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
    base.join(format!("fumehood-fuzz-record-{}", std::process::id()))
});

fuzz_target!(|input: &[u8]| {
    let records = FOLDER.as_path();
    let _ = fs::remove_dir_all(records);
    let Some((mode, input)) = input.split_first() else { return };
    let task = TaskId::new(1, 1);
    let files = [index_path(records), task_path(records, &task)];
    // Either a true record with changed bytes, so that the digests are mostly right, or none at all.
    if mode & 1 == 0 {
        if let Ok(mut log) = TaskLog::open(records, &task, 1) {
            let _ = log.append_all(2, &[Event::LayerDiscarded {}, Event::LayerDiscarded {}]);
            if mode & 2 == 0 {
                let _ = log.close(3);
            }
        }
        for change in input.chunks_exact(4) {
            let [file, high, low, with] = change else { continue };
            let path = &files[usize::from(file & 1)];
            let Ok(mut content) = fs::read(path) else { continue };
            let at = usize::from(u16::from_be_bytes([*high, *low])) % content.len().max(1);
            match (file >> 1) % 3 {
                0 => content.iter_mut().skip(at).take(1).for_each(|byte| *byte = *with),
                1 => content.truncate(at),
                _ => content.extend_from_within(at..),
            }
            let _ = fs::write(path, content);
        }
    } else {
        let (index, lines) = input.split_at(input.len() / 2);
        let _ = fs::create_dir(records);
        let _ = fs::write(&files[0], index);
        let _ = fs::write(&files[1], lines);
    }
    for _ in 0..2 {
        if let Ok(report) = verify(records, None) {
            let _ = (show_report(&report), to_json(&report));
        }
        if let Ok(tasks) = list(records) {
            let _ = (show_list(&tasks), to_json(&tasks));
        }
        let _ = find(records, "last");
        if let Ok(transcript) = read(records, &task) {
            let _ = (show(&transcript), to_json(&transcript));
        }
        // Going on seals what can be sealed; then everything is read again.
        if let Ok(log) = TaskLog::reopen(records, &task, 4) {
            let _ = log.close(5);
        }
    }
    let _ = fs::remove_dir_all(records);
});

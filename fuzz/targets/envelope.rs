//! Any text is read, checked and compared without a panic, and what passes keeps its promises: an
//! envelope contains itself, and a file that was found by itself never widens.

#![no_main]

use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec, file, found_file, named_file};
use libfuzzer_sys::{Corpus, fuzz_target};
use std::path::{Path, PathBuf};
use std::time::Duration;

fuzz_target!(|text: &str| -> Corpus {
    let folder = Path::new("/home/ann/work");
    let defaults = Defaults {
        base: PathBuf::from(folder),
        home: Some(PathBuf::from("/home/ann")),
        state: Some(PathBuf::from("/home/ann/.local/state/fumehood")),
        host_memory_bytes: 8 << 30,
        host_cpus: 4,
        timeout: Some(Duration::from_secs(60)),
        output_bytes: 10 << 20,
        presets: Default::default(),
        images: Default::default(),
    };
    let located = match file::read(text, folder, &defaults) {
        Ok(located) => located,
        Err(flaws) => {
            assert!(!flaws.is_empty(), "a refusal has a reason");
            let shown: String = flaws.iter().map(|flaw| flaw.in_file("fumehood.toml")).collect();
            assert!(!shown.chars().any(char::is_control), "a message is safe to show: {shown:?}");
            return Corpus::Keep;
        }
    };
    let flags = EnvelopeSpec::default();
    let named = named_file(&flags, &located, &defaults).expect("a good file under no flags is good");
    assert_eq!(named.envelope.narrow(named.envelope.clone()), Ok(named.envelope.clone()));
    for mount in &named.envelope.filesystem().mounts {
        assert!(mount.source.is_absolute() && mount.at.is_absolute());
        assert!(!mount.at.starts_with("/proc") && !mount.at.starts_with("/sys") && !mount.at.starts_with("/dev"));
    }
    if let Ok(found) = found_file(&flags, &located, &defaults) {
        let alone = Envelope::check(&flags, &defaults).expect("no flags are good");
        assert_eq!(alone.widenings(&found.envelope), vec![]);
        assert!(found.spec.credentials.env.is_empty() && found.envelope.filesystem().mounts.is_empty());
    }
    Corpus::Keep
});

//! What names an image and what describes it: a name has one whole spelling, and every refusal can be shown.

#![no_main]

use fumehood_image::{Config, Document, Limits};
use fumehood_model::image::Reference;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(name) = Reference::parse(text)
    {
        let whole = name.to_string();
        assert_eq!(Reference::parse(&whole).as_ref(), Ok(&name));
        assert_eq!(Reference::parse(&name.short()).as_ref(), Ok(&name));
        assert!(whole.split(['/', ':', '@']).all(|part| part != "..") && !whole.chars().any(char::is_control));
    }
    match Document::parse(bytes, None) {
        Ok(Document::Manifest(manifest)) => {
            if let Err(fault) = manifest.check(&Limits::default()) {
                shown(&fault.why);
            }
        }
        Ok(Document::Index(index)) => {
            if let Err(fault) = index.choose() {
                shown(&fault.why);
            }
        }
        Err(fault) => shown(&fault.why),
    }
    match Config::parse(bytes, 1) {
        Ok(config) => assert_eq!(config.chain(), config.diff_ids[0]),
        Err(fault) => shown(&fault.why),
    }
});

fn shown(why: &str) {
    assert!(!why.is_empty() && !why.chars().any(char::is_control), "{why:?}");
}

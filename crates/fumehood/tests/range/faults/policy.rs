//! A policy that is none: the run does not start, and every flaw is named at once.

use crate::both_callers::both_callers;
use crate::lab::Lab;

both_callers! {
    e42_a_policy_with_a_flaw_starts_nothing
}

const GOOD: &str = "[network]\nallow = [\"api.example.com\"]\n";

fn e42_a_policy_with_a_flaw_starts_nothing(lab: &Lab) {
    let run = |name: &str, text: &str| {
        let file = lab.file(name, text);
        lab.run(&["--config", file.to_str().unwrap()], &["sh", "-c", "echo started"])
    };
    let ran = run("good.toml", GOOD);
    assert_eq!(ran.out(), "started\n", "{}", ran.told());
    let bad = [
        ("[network]\nallow = [\"api.example.com\"]\nalow = [\"x\"]\n", "alow"),
        ("[network]\nallow = \"api.example.com\"\n", "allow"),
        ("[network]\nallow = [42]\n", "allow"),
        ("[network]\nallow = [\"*\"]\n", "*"),
        ("[network]\nallow = [\"*.co.uk\"]\n", "*.co.uk"),
        ("[network]\nallow = [\"https://api.example.com/a/../b\"]\n", ".."),
        ("[network]\nallow = [\"api.example.com:0\"]\n", "api.example.com:0"),
        ("[network]\nallow = [\"2130706433\"]\n", "2130706433"),
        ("[network]\nallow = [\"user@api.example.com\"]\n", "user@api.example.com"),
        ("[network]\nallow = [\"https://api.example.com/** with bearer:NONE\"]\n", "NONE"),
        ("[network]\nnet = \"everything\"\n", "everything"),
        ("[network]\nallow = [\"api.example.com\"]\n[network]\nallow = []\n", "duplicate"),
        ("[nettwork]\nallow = []\n", "nettwork"),
        ("[network\nallow = []\n", "unclosed"),
        ("\0\u{1}", ""),
    ];
    for (place, (text, word)) in bad.iter().enumerate() {
        let ran = run(&format!("bad-{place}.toml"), text);
        assert_eq!(ran.code(), 125, "{text:?}: {}", ran.told());
        assert!(ran.out().is_empty() && ran.err().contains(word), "{text:?}: {}", ran.told());
    }
    let ran = run(
        "many.toml",
        "[network]\nallow = [\"*\", \"api.example.com:0\", \"good.example.com\", \"a b\"]\n",
    );
    for word in ["`*`", "api.example.com:0", "a b"] {
        assert!(ran.err().contains(word), "{word} is not told: {}", ran.told());
    }
}

//! How much a fetch takes: bombs, streams without end, drips, redirects, heads.

use super::{control, stand, told};
use crate::both_callers::both_callers;
use crate::lab::Lab;
use crate::stand::Seen;
use std::time::Duration;

both_callers! {
    e50_the_cap_is_on_decoded_bytes
    e50_the_clock_is_on_everything
    e50_redirects_have_an_end
    e50_odd_answers_are_refused_or_whole
}

const CAP: u64 = 2 << 20;

fn e50_the_cap_is_on_decoded_bytes(lab: &Lab) {
    let stand = stand(lab);
    let urls = [
        "bomb/1000000000?as=gzip",
        "bomb/1000000000?as=br",
        "bomb/1000000000?as=zstd",
        "endless",
        "stream/10000000000",
        "stream/2097153",
    ];
    for path in urls {
        let seen = stand.fetch(&["--json", &format!("http://allowed.test/{path}")]);
        let object = told(&seen);
        assert_eq!(seen.ran.code(), 0, "{path}: {}", seen.ran.told());
        assert_eq!((&object["bytes"], &object["truncated"]), (&CAP.into(), &true.into()), "{path}");
        assert!(seen.ran.elapsed < Duration::from_secs(20), "{path}: {:?}", seen.ran.elapsed);
        let ended = stand.record().into_iter().find(|line| line["event"] == "egress.ended").unwrap();
        assert!(ended["bytes_in"].as_u64().unwrap() < 6 << 20, "{path}: {ended}");
    }
    let seen = stand.fetch(&["--json", "http://allowed.test/stream/2097152"]);
    assert_eq!((&told(&seen)["bytes"], &told(&seen)["truncated"]), (&CAP.into(), &false.into()));
    let seen = stand.fetch(&["--json", "--max-bytes", "100", "http://allowed.test/bomb/1000000"]);
    assert_eq!((&told(&seen)["bytes"], &told(&seen)["truncated"]), (&100.into(), &true.into()));
    // The control: a client without a cap takes what the bombs hold.
    for kind in ["gzip", "br", "zstd"] {
        let url = format!("http://allowed.test/bomb/50000000?as={kind}");
        let seen = stand.beside(&["curl", "-sS", "-o", "/dev/null", "-w", "%{size_download}", &url]);
        let packed: u64 = seen.ran.out().parse().unwrap();
        assert!((1..200_000).contains(&packed), "{kind} is no bomb: {packed}");
        let wide = stand.fetch(&["--json", "--max-bytes", "64MiB", "-o", "bomb", &url]);
        assert_eq!(told(&wide)["bytes"], 50_331_648, "{}", wide.ran.told());
    }
}

fn e50_the_clock_is_on_everything(lab: &Lab) {
    let stand = stand(lab);
    stand.range.zone("silent.allowed.test", &serde_json::json!({"hostile": "silence"}));
    for url in [
        "http://allowed.test/drip?n=1000&ms=1000",
        "http://allowed.test/raw/hang",
        "http://allowed.test/redirect?to=/raw/hang",
        "http://silent.allowed.test/",
    ] {
        let seen = stand.fetch(&["--json", "--timeout", "2s", url]);
        assert_eq!(
            (seen.ran.code(), &told(&seen)["error"]["code"]),
            (1, &"timed_out".into()),
            "{url}: {}",
            seen.ran.told()
        );
        assert!(seen.ran.elapsed < Duration::from_secs(8), "{url}: {:?}", seen.ran.elapsed);
    }
    let seen = stand.fetch(&["http://allowed.test/drip?n=5&ms=100"]);
    assert_eq!((seen.ran.code(), seen.ran.out().as_str()), (0, "....."));
    // The control: nothing else ends it.
    let seen = control(&stand, "http://allowed.test/drip?n=1000&ms=1000");
    assert!(seen.ran.elapsed >= Duration::from_secs(5), "{}", seen.ran.told());
}

fn e50_redirects_have_an_end(lab: &Lab) {
    let stand = stand(lab);
    let error = |seen: &Seen| told(seen)["error"]["code"].clone();
    let many = "http://allowed.test/hops/50?to=/end";
    let seen = stand.fetch(&["--json", many]);
    assert_eq!((seen.ran.code(), error(&seen)), (1, "too_many_redirects".into()), "{}", seen.ran.told());
    assert_eq!(seen.log.requests().len(), 6);
    for (count, code) in [("4", 1), ("5", 0)] {
        let url = "http://allowed.test/hops/5?to=/end";
        let seen = stand.fetch(&["--no-cache", "--max-redirects", count, url]);
        assert_eq!(seen.ran.code(), code, "{}", seen.ran.told());
    }
    let seen = stand.fetch(&["--json", "http://allowed.test/redirect?to=/redirect?to=/redirect"]);
    assert_eq!(seen.ran.code(), 1, "{}", seen.ran.told());
    let circle = "http://allowed.test/redirect?to=";
    let seen = stand.fetch(&["--json", &format!("{circle}%23"), "--max-redirects", "50"]);
    assert_eq!((error(&seen), seen.log.requests().len()), ("redirect_loop".into(), 1), "{}", seen.ran.told());
    // The control: a client that follows them all gets there.
    let seen = stand.beside(&["curl", "-sSfL", "--max-redirs", "60", many]);
    assert!(seen.ran.out().contains("/end"), "{}", seen.ran.told());
}

fn e50_odd_answers_are_refused_or_whole(lab: &Lab) {
    let stand = stand(lab);
    for (path, code) in [
        ("big-header/1048576", "bad_answer"),
        ("endless-headers", "bad_answer"),
        ("garbage", "bad_answer"),
        ("two-lengths", "bad_answer"),
        ("bad-chunk", "broken_off"),
        ("lying-length", "broken_off"),
        ("reset/1000", "broken_off"),
        ("switch", "bad_answer"),
    ] {
        let seen = stand.fetch(&["--json", &format!("http://allowed.test/raw/{path}")]);
        assert_eq!(seen.ran.code(), 1, "{path}: {}", seen.ran.told());
        assert_eq!(told(&seen)["error"]["code"], code, "{path}: {}", seen.ran.told());
        assert!(told(&seen)["error"]["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()));
    }
    for (path, body) in
        [("no-length", "to the end"), ("early", "ok"), ("half-close", "whole"), ("big-header/1000", "ok")]
    {
        let seen = stand.fetch(&[&format!("http://allowed.test/raw/{path}")]);
        assert_eq!((seen.ran.code(), seen.ran.out().as_str()), (0, body), "{path}: {}", seen.ran.told());
    }
    // The control: a head of that size is one that servers send and clients take.
    let seen = stand.beside(&["curl", "-sS", "http://allowed.test/raw/big-header/60000"]);
    assert_eq!(seen.ran.out(), "ok", "{}", seen.ran.told());
}

//! The other ways in which a value is put into a request.

use super::{Held, assert_silent, base64, field, word};
use crate::both_callers::both_callers;
use crate::lab::Lab;

both_callers! {
    a_field_of_its_own
    a_parameter_of_the_query
    a_pair_of_user_and_password
    a_place_in_the_body
    a_signature
}

fn a_field_of_its_own(lab: &Lab) {
    let held = Held::new(lab);
    let script = "curl -sSf -H \"X-Api-Key: $GH\" https://api.example.com/v1/items && curl -sSf --http2 -H 'x-api-key: mine' https://api.example.com/v1/items && \
                  curl -sSf -H 'X-Api_Key: mine' https://api.example.com/v1/items";
    let seen = held.sh(&["--allow", "https://api.example.com/v1/** with header:X-Api-Key:GH"], script);
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    assert_silent(&seen, &held.value);
    assert_eq!(seen.log.all("request").count(), 3);
    for request in seen.log.all("request") {
        assert_eq!(field(request, "x-api-key"), held.value, "{request}");
        assert!(!request.to_string().contains("mine"), "{request}");
    }
}

fn a_parameter_of_the_query(lab: &Lab) {
    let held = Held::new(lab);
    let script = "curl -sSfg \"https://api.example.com/v1/items?a=1&key=$GH&b=2\" && curl -sSfg 'https://api.example.com/v1/items?a=1&KEY=mine&%6bey=mine' && \
                  curl -sSf --http2 https://api.example.com/v1/items";
    let seen = held.sh(&["--allow", "https://api.example.com/v1/** with query:key:GH"], script);
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    assert_silent(&seen, &held.value);
    let targets: Vec<_> =
        seen.log.all("request").map(|request| request["target"].as_str().unwrap().to_owned()).collect();
    assert_eq!(targets.len(), 3, "{targets:?}");
    for target in targets {
        assert!(target.contains(&format!("key={}", held.value)) && !target.contains("mine"), "{target}");
    }
    let record = held.stand.record().into_iter().map(|line| line.to_string());
    let mut told = record.filter(|line| line.contains("egress.") && line.contains("/v1/items")).peekable();
    assert!(
        told.peek().is_some() && told.all(|line| !line.contains("key=")),
        "queries are left out of the record"
    );
}

fn a_pair_of_user_and_password(lab: &Lab) {
    let held = Held::of(lab, format!("ann:{}", word(30)));
    let script =
        "curl -sSf -u \"$GH\" https://api.example.com/v1/items && curl -sSf https://api.example.com/v1/items";
    let seen = held.sh(&["--allow", "https://api.example.com/v1/** with basic:GH"], script);
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    assert_silent(&seen, &held.value);
    assert_silent(&seen, held.value.strip_prefix("ann:").unwrap());
    for request in seen.log.all("request") {
        assert_eq!(field(request, "authorization"), format!("Basic {}", base64(&held.value)), "{request}");
    }
    assert_eq!(seen.log.all("request").count(), 2);
}

fn a_place_in_the_body(lab: &Lab) {
    let held = Held::new(lab);
    let script = "curl -sSf -d \"grant=x&secret=$GH&more\" https://api.example.com/v1/token && \
                  curl -sSf --http2 -H 'Content-Type: application/json' -d \"{\\\"secret\\\": \\\"$GH\\\"}\" https://api.example.com/v1/token && \
                  curl -sSf -H 'Transfer-Encoding: chunked' -d \"secret=$GH\" https://api.example.com/v1/token && \
                  curl -sSf -d 'secret=none' https://api.example.com/v1/token; \
                  curl -sS -o answer -w '%{http_code}' -H \"X-Key: $GH\" -d x https://api.example.com/v1/token";
    let seen = held.sh(&["--allow", "POST https://api.example.com/v1/token with body:GH"], script);
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    assert!(seen.ran.out().ends_with("403"), "{}", seen.ran.told());
    assert_silent(&seen, &held.value);
    let bodies: Vec<_> =
        seen.log.all("request").map(|request| request["body"].as_str().unwrap().to_owned()).collect();
    let value = &held.value;
    let expected = [
        format!("grant=x&secret={value}&more"),
        format!("{{\"secret\": \"{value}\"}}"),
        format!("secret={value}"),
        "secret=none".to_owned(),
    ];
    assert_eq!(bodies, expected, "{}", seen.ran.told());
}

/// The range checks the signature itself, with the real key.
fn a_signature(lab: &Lab) {
    let (access, secret, token) = (format!("AKIA{}", word(16).to_uppercase()), word(40), word(200));
    let held = Held::of(lab, format!("{access}:{secret}:{token}"));
    held.stand.range.aws_key(&access, &secret, &token);
    let client = held.client("sign.py");
    let runs = [
        "GET https://api.example.com/aws/bucket/key%20one '' s3",
        "PUT https://api.example.com/aws/bucket/key data s3",
        "POST 'https://api.example.com/aws/?Action=List&Version=1%2F2' 'a=1&b=2' ec2",
        "GET 'https://api.example.com/aws/a%20b?x=1' '' execute-api",
    ];
    let script: String =
        runs.iter().map(|run| format!("/usr/bin/python3 sign.py {run} || exit 9; ")).collect();
    let flags = [
        "--secret",
        "AWS=env:HELD",
        "--in",
        &client,
        "--allow",
        "https://api.example.com/aws/** with sigv4:AWS",
    ];
    let run = |script: &str| held.stand.inside_with(&[("HELD", &held.value)], &flags, &["sh", "-c", script]);
    let seen = run(&script);
    assert_eq!(seen.ran.out(), "200 right\n".repeat(runs.len()), "{}", seen.ran.told());
    for part in [&held.value, &secret, &token] {
        assert_silent(&seen, part);
        assert!(part == &token || !seen.log.has(part), "the key itself went out");
    }
    // Signed with the placeholder's key alone, the server says no: beside the sandbox nothing signs again.
    let wrong = held.stand.beside(&[
        "sh",
        "-c",
        &format!(
            "cd {} && AWS=AKIAWRONG:wrong:wrong /usr/bin/python3 sign.py {}",
            held.stand.lab.path().display(),
            runs[0]
        ),
    ]);
    assert!(wrong.ran.out().starts_with("403"), "{}", wrong.ran.told());
}

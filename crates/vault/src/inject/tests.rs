use super::*;
use crate::placeholder::Placeholder;
use crate::testing::{random, secret};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Request};
use proptest::prelude::*;

fn parts(target: &str, fields: &[(&str, &str)]) -> http::request::Parts {
    let mut request = Request::builder().method("POST").uri(target);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request").into_parts().0
}

fn done(
    target: &str,
    fields: &[(&str, &str)],
    injection: &Injection,
    value: &str,
) -> Result<http::request::Parts, InjectError> {
    let mut parts = parts(target, fields);
    let used = inject(&mut Head::from(&mut parts), injection, &secret("T", value), Payload::Empty, 0)?;
    assert_eq!((used.secret.as_str(), used.count), ("T", 1));
    assert_eq!(used.place, injection.place());
    Ok(parts)
}

fn all(parts: &http::request::Parts, name: &str) -> Vec<String> {
    parts.headers.get_all(name).iter().map(|value| value.to_str().expect("text").to_owned()).collect()
}

#[test]
fn a_field_is_set_and_what_the_client_had_is_gone() {
    let own = [("authorization", "Bearer own"), ("authorization", "Basic own"), ("accept", "*/*")];
    let set = done("/", &own, &Injection::Bearer, "the-real-one").expect("it is set");
    assert_eq!(all(&set, "authorization"), ["Bearer the-real-one"]);
    assert_eq!(all(&set, "accept"), ["*/*"]);
    assert!(set.headers["authorization"].is_sensitive());

    let own = [("x_api_key", "own"), ("x-api-key", "own"), ("x-api_key", "own")];
    let kind = Injection::header("X-Api-Key").expect("a kind");
    let set = done("/", &own, &kind, "the real one").expect("it is set");
    assert_eq!(all(&set, "x-api-key"), ["the real one"]);
    assert_eq!(set.headers.len(), 1);
}

#[test]
fn basic_is_a_pair_in_base64() {
    let set = done("/", &[], &Injection::basic(None).expect("a kind"), "user:pass:word").expect("it is set");
    assert_eq!(all(&set, "authorization"), [format!("Basic {}", STANDARD.encode("user:pass:word"))]);
    let kind = Injection::basic(Some("x-access-token")).expect("a kind");
    let set = done("/", &[], &kind, "the-token").expect("it is set");
    assert_eq!(
        all(&set, "authorization"),
        [format!("Basic {}", STANDARD.encode("x-access-token:the-token"))]
    );
    let refused = done("/", &[], &Injection::basic(None).expect("a kind"), "no-colon");
    assert!(matches!(refused, Err(InjectError::Shape { .. })));
    let refused = done("/", &[], &Injection::Bearer, "Bearer of-a-token");
    assert!(matches!(refused, Err(InjectError::Shape { .. })));
}

#[test]
fn a_parameter_is_set_under_every_spelling_of_its_name() {
    let kind = Injection::query("api_key").expect("a kind");
    for (target, expected) in [
        ("/a", "/a?api_key=a%20b%26c"),
        ("/a?", "/a?api_key=a%20b%26c"),
        ("/a?api_key=own&x=1&api%5Fkey=own&API_KEY=own&api_key", "/a?x=1&api_key=a%20b%26c"),
        ("/a%20b?x=%2F&y", "/a%20b?x=%2F&y&api_key=a%20b%26c"),
        ("https://example.com:8443/a?x=1", "https://example.com:8443/a?x=1&api_key=a%20b%26c"),
    ] {
        let set = done(target, &[], &kind, "a b&c").expect("it is set");
        assert_eq!(set.uri.to_string(), expected);
    }
    let refused = done("/?x=1;api_key=own", &[], &kind, "a b&c");
    assert!(matches!(refused, Err(InjectError::Request { .. })));
    let long = "/".to_owned() + &"a".repeat(65_000);
    assert!(matches!(done(&long, &[], &kind, &"b".repeat(1000)), Err(InjectError::Request { .. })));
}

#[test]
fn kinds_that_would_break_a_message_can_not_be_made() {
    for name in ["host", "Content-Length", "proxy-authorization", "connection", "transfer-encoding"] {
        assert_eq!(Injection::header(name), Err(BadInjection::FramingField), "{name}");
    }
    for name in ["", "a b", "a:b", ":authority", "é"] {
        assert_eq!(Injection::header(name), Err(BadInjection::FieldName), "{name}");
    }
    assert_eq!(Injection::query(""), Err(BadInjection::Parameter));
    assert_eq!(Injection::query("a b"), Err(BadInjection::Parameter));
    assert_eq!(Injection::basic(Some("a:b")), Err(BadInjection::User));
}

#[test]
fn past_its_end_a_value_is_not_used() {
    let name = SecretName::parse("T").expect("a name");
    let secret = Secret::new(name.clone(), b"value".to_vec().into(), Some(10)).expect("a secret");
    let mut parts = parts("/", &[]);
    let mut head = Head::from(&mut parts);
    assert!(inject(&mut head, &Injection::Bearer, &secret, Payload::Empty, 9).is_ok());
    let late = inject(&mut head, &Injection::Bearer, &secret, Payload::Empty, 10);
    assert_eq!(late, Err(InjectError::Expired(name.clone())));
    let placeholder = Placeholder::new(&secret, Shape::Opaque, &mut random(1)).expect("a placeholder");
    assert_eq!(body(&mut head, b"", &secret, &placeholder, 10).err(), Some(InjectError::Expired(name)));
}

fn replaced(kind: &str, value: &str, make: impl Fn(&str) -> String) -> (String, http::request::Parts) {
    let secret = secret("T", value);
    let placeholder = Placeholder::new(&secret, Shape::Opaque, &mut random(1)).expect("a placeholder");
    let mut parts = parts("/", &[("content-type", kind), ("content-length", "5")]);
    let text = make(placeholder.as_str());
    let (out, used) =
        body(&mut Head::from(&mut parts), text.as_bytes(), &secret, &placeholder, 0).expect("it is put in");
    assert_eq!(used.count, 1, "{text}");
    assert_eq!(parts.headers["content-length"], out.len().to_string().as_str());
    (String::from_utf8(out.to_vec()).expect("text"), parts)
}

#[test]
fn a_body_gets_the_value_as_its_kind_writes_it() {
    let value = r#"abc/DEF+123"45\6=<&>"#;
    let json = |text: &str| serde_json::to_string(text).expect("JSON");
    let (out, _) =
        replaced("application/json; charset=utf-8", value, |mine| format!("{{\"k\":{}}}", json(mine)));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).expect("JSON")["k"], value);
    let (out, _) =
        replaced("application/vnd.api+json", "abc/DEF/12345678", |mine| json(mine).replace('/', "\\/"));
    assert_eq!(out, r#""abc\/DEF\/12345678""#);
    let (out, _) = replaced("application/x-www-form-urlencoded", "abc DEF/12345678", |mine| {
        format!("a=1&k={}&b=2", mine.replace(' ', "+").replace('/', "%2F"))
    });
    assert_eq!(out, "a=1&k=abc+DEF%2F12345678&b=2");
    let (out, _) = replaced("text/plain", value, |mine| format!("<{mine}>"));
    assert_eq!(out, format!("<{value}>"));
    let (out, _) =
        replaced("text/xml", "a1b2c3d4&e5f6", |mine| format!("<k>{}</k>", mine.replace('&', "&amp;")));
    assert_eq!(out, "<k>a1b2c3d4&amp;e5f6</k>");
}

#[test]
fn a_body_that_can_not_be_looked_through_is_refused() {
    let secret = secret("T", "abcdefgh12345678");
    let placeholder = Placeholder::new(&secret, Shape::Opaque, &mut random(1)).expect("a placeholder");
    let text = placeholder.as_str().as_bytes();
    let json = ("content-type", "application/json");
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[json, ("content-encoding", "gzip")], "compressed"),
        (&[("content-type", "application/octet-stream")], "Content-Type"),
        (&[], "Content-Type"),
        (&[("content-type", "text/plain; charset=utf-16")], "not UTF-8"),
        (&[json, ("content-digest", "sha-256=:x:")], "digest"),
        (&[json, ("x-amz-content-sha256", "x")], "sigv4"),
    ];
    for (fields, expected) in cases {
        let mut parts = parts("/", fields);
        let error =
            body(&mut Head::from(&mut parts), text, &secret, &placeholder, 0).expect_err("it is refused");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let mut parts = parts("/", &[json]);
    let large = vec![b' '; BODY_LIMIT_BYTES + 1];
    assert!(body(&mut Head::from(&mut parts), &large, &secret, &placeholder, 0).is_err());
    let (out, used) =
        body(&mut Head::from(&mut parts), b"{}", &secret, &placeholder, 0).expect("nothing to do");
    assert_eq!((&out[..], used.count), (&b"{}"[..], 0));
    assert!(!parts.headers.contains_key("content-length"));
}

fn shown(value: &impl fmt::Debug) -> String {
    format!("{value:?}")
}

proptest! {
    /// Whatever the request, the value is set or the request refused, and no error has any of it.
    #[test]
    fn no_error_holds_the_value(
        value in "[!-~]{8,40}",
        query in "[a-z;&=%0-9+]{0,40}",
        kind in 0_usize..6,
        own in "[ -~]{0,60}",
    ) {
        let injection = match kind {
            0 => Injection::Bearer,
            1 => Injection::Basic { user: None },
            2 => Injection::Basic { user: Some("u".to_owned()) },
            3 => Injection::header("x-key").expect("a kind"),
            4 => Injection::query("k").expect("a kind"),
            _ => Injection::SigV4 { region: None, service: None },
        };
        let mut parts = parts("/", &[("host", "example.com"), ("x-amz-date", "20150830T123600Z")]);
        parts.uri = format!("/?{query}").parse().expect("a target");
        if let Ok(value) = HeaderValue::from_str(&own) {
            parts.headers.append("authorization", value);
        }
        let result = inject(&mut Head::from(&mut parts), &injection, &secret("T", &value), Payload::Empty, 0);
        match result {
            Ok(used) => prop_assert!(!shown(&used).contains(&value)),
            Err(error) => {
                prop_assert!(!shown(&error).contains(&value) && !error.to_string().contains(&value));
                prop_assert!(!shown(&parts).contains(&value));
            }
        }
        prop_assert!(!shown(&parts.headers).contains(&value));
    }
}

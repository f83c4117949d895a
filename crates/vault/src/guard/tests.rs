use super::*;
use crate::placeholder::Shape;
use crate::testing::{random, secret};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Request};
use proptest::prelude::*;

const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";

fn two() -> (Guard, Placeholder, Placeholder) {
    let make = |name: &str, seed| {
        Placeholder::new(&secret(name, TOKEN), Shape::Opaque, &mut random(seed)).expect("a placeholder")
    };
    let (mine, other) = (make("MINE", 1), make("OTHER", 2));
    let (a, b) = (SecretName::parse("MINE").expect("a name"), SecretName::parse("OTHER").expect("a name"));
    (Guard::new([(&a, &mine), (&b, &other)]), mine, other)
}

fn judged(
    guard: &Guard,
    target: &str,
    fields: &[(&str, &str)],
    own: Option<&Injection>,
) -> Result<(), Misplaced> {
    let mut request = Request::builder().uri(target);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let mut parts = request.body(()).expect("a request").into_parts().0;
    let name = SecretName::parse("MINE").expect("a name");
    guard.head(&Head::from(&mut parts), own.map(|own| (own, &name)))
}

#[test]
fn a_placeholder_is_in_its_place_where_it_will_be_replaced() {
    let (guard, mine, other) = two();
    let basic = format!("Basic {}", STANDARD.encode(format!("x-access-token:{mine}")));
    let bearer = format!("Bearer {mine}");
    let key = Injection::header("x-api-key").expect("a kind");
    let query = Injection::query("key").expect("a kind");
    let keys = Injection::SigV4 { region: None, service: None };
    for (field, value, own) in [
        ("authorization", bearer.as_str(), &Injection::Bearer),
        ("authorization", basic.as_str(), &Injection::Basic { user: None }),
        ("authorization", bearer.as_str(), &keys),
        ("x-amz-security-token", mine.as_str(), &keys),
        ("x_api_key", mine.as_str(), &key),
    ] {
        assert_eq!(judged(&guard, "/", &[(field, value)], Some(own)), Ok(()), "{field}");
        // Without the injection nothing replaces it.
        assert!(judged(&guard, "/", &[(field, value)], None).is_err(), "{field}");
        // Nor does it anywhere else.
        assert!(judged(&guard, "/", &[("cookie", value)], Some(own)).is_err(), "{field}");
        // And another's is not in its place there.
        let wrong = format!("{value} {other}");
        let error = judged(&guard, "/", &[(field, wrong.as_str())], Some(own)).expect_err("it is refused");
        assert_eq!(error.secret.as_str(), "OTHER");
    }
    assert_eq!(judged(&guard, &format!("/?a=1&Key={mine}"), &[], Some(&query)), Ok(()));
    assert!(judged(&guard, &format!("/?a={mine}"), &[], Some(&Injection::Bearer)).is_err());
    assert!(judged(&guard, "/plain?a=1", &[("authorization", "Bearer own")], None).is_ok());
}

#[test]
fn everywhere_else_it_is_found_and_the_place_is_named() {
    let (guard, mine, _) = two();
    let lower = mine.as_str().to_lowercase();
    let each = mine.as_str().bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let some = mine.as_str().replacen('g', "%67", 1);
    let twice = some.replace('%', "%25");
    for text in [mine.as_str(), &lower, &each, &some, &twice] {
        let at = |target: String| judged(&guard, &target, &[], None).expect_err("it is refused").place;
        assert_eq!(at(format!("/a/{text}/b")), Place::Path, "{text}");
        assert_eq!(at(format!("/?a={text}")), Place::Query, "{text}");
        assert_eq!(at(format!("/?{text}")), Place::Query, "{text}");
    }
    let (left, right) = lower.split_at(20);
    let dotted = format!("{left}.{right}.example.com");
    assert_eq!(guard.host(&dotted).expect_err("it is refused").place, Place::Host);
    assert_eq!(guard.host(&format!("{lower}.example.com")).expect_err("it is refused").place, Place::Host);
    assert_eq!(guard.host("api.github.com"), Ok(()));
    let host = judged(&guard, "/", &[("host", &format!("{lower}.example.com"))], None);
    assert_eq!(host.expect_err("it is refused").place, Place::Host);
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_str(mine.as_str()).expect("a value"));
    assert_eq!(guard.trailers(&trailers).expect_err("it is refused").place, Place::Body);
    let error = judged(&guard, "/", &[("x-note", mine.as_str())], None).expect_err("it is refused");
    assert_eq!(
        error.to_string(),
        "the placeholder of `MINE` is in the field `x-note`, where no rule puts its value"
    );
}

#[test]
fn pieces_of_a_placeholder_are_found_and_a_users_name_is_not_one() {
    let pair = secret("PAIR", "ci-bot@example.com:correct-horse-battery-staple");
    let placeholder = Placeholder::new(&pair, Shape::Pair, &mut random(1)).expect("a placeholder");
    let guard = Guard::new([(pair.name(), &placeholder)]);
    let pieces: Vec<&str> = placeholder.pieces().collect();
    assert!(guard.body().feed(pieces[0].as_bytes()).is_ok());
    assert!(guard.body().feed(pieces[1].as_bytes()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// In a body it is found in every writing, at any chunking, and before its last byte was sent.
    #[test]
    fn a_body_with_a_placeholder_is_refused(
        way in 0_usize..4,
        before in proptest::collection::vec(any::<u8>(), 0..50),
        after in proptest::collection::vec(any::<u8>(), 0..50),
        sizes in proptest::collection::vec(1_usize..50, 1..6),
    ) {
        let (guard, mine, _) = two();
        let text = mine.as_str().as_bytes();
        let planted = match way {
            0 => text.to_vec(),
            1 => text.iter().flat_map(|byte| format!("%{byte:02X}").into_bytes()).collect(),
            2 => STANDARD.encode([&before, text, &after].concat()).into_bytes(),
            _ => text.iter().rev().copied().collect(),
        };
        let body = if way == 2 { planted } else { [&before, planted.as_slice(), &after].concat() };
        let mut scan = guard.body();
        let (mut rest, mut turn, mut refused) = (body.as_slice(), 0, false);
        while !rest.is_empty() && !refused {
            let (chunk, more) = rest.split_at(sizes[turn % sizes.len()].min(rest.len()));
            refused = scan.feed(chunk).is_err();
            (rest, turn) = (more, turn + 1);
        }
        prop_assert!(refused);
        // And not where there is none.
        let mut scan = guard.body();
        for chunk in before.chunks(sizes[0]).chain(after.chunks(sizes[0])) {
            prop_assert!(scan.feed(chunk).is_ok());
        }
    }
}

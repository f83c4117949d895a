use super::*;
use crate::testing::{random, secret};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;

fn made(value: &str, shape: Shape) -> Placeholder {
    Placeholder::new(&secret("TOKEN", value), shape, &mut random(7)).expect("a placeholder")
}

fn same_classes(real: &str, stand_in: &str) {
    assert_eq!(real.len(), stand_in.len(), "{real} {stand_in}");
    for (a, b) in real.bytes().zip(stand_in.bytes()) {
        let class = |byte: u8| (byte.is_ascii_uppercase(), byte.is_ascii_lowercase(), byte.is_ascii_digit());
        assert_eq!(class(a), class(b), "{real} {stand_in}");
        assert!(a.is_ascii_alphanumeric() || a == b);
    }
}

#[test]
fn known_tokens_keep_their_beginning_and_their_classes() {
    for (prefix, rest) in [
        ("ghp_", "16C7e42F292c6912E7710c838347Ae178B4a"),
        ("github_pat_", "11ABCDEFG0abcdefghijkl_0123456789abcdefghijABCDEFGHIJ"),
        ("sk-ant-api03-", "abcDEF-123_ghiJKL-456xyzXYZ"),
        ("sk-", "abcDEF123ghiJKL456xyzXYZ"),
        ("xoxb-", "123456789012-123456789012-abcdefABCDEF"),
        ("glpat-", "abcdefABCDEF12345678"),
        ("npm_", "abcdefABCDEF123456781234567812345678"),
        ("hf_", "abcdefABCDEFabcdefABCDEF"),
    ] {
        let real = format!("{prefix}{rest}");
        let placeholder = made(&real, Shape::Opaque);
        assert!(placeholder.as_str().starts_with(prefix));
        assert_ne!(placeholder.as_str(), real);
        same_classes(&real, placeholder.as_str());
    }
}

#[test]
fn hexadecimal_stays_so() {
    let placeholder = made("0123456789abcdef0123456789abcdef", Shape::Opaque);
    assert!(placeholder.as_str().bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
    let uuid = made("3F2504E0-4F89-11D3-9A0C-0305E82C3301", Shape::Opaque);
    assert!(uuid.as_str().bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F' | b'-')));
    assert_eq!(uuid.as_str().match_indices('-').map(|(at, _)| at).collect::<Vec<_>>(), [8, 13, 18, 23]);
}

#[test]
fn a_short_value_gets_a_stand_in_that_is_told_from_other_text() {
    for value in ["1234", "hunter2", "!!!!", "-----------", "aaaa:b"] {
        let placeholder = made(value, Shape::Opaque);
        assert!(placeholder.as_str().contains("-fumehood-"), "{placeholder}");
        assert!(!placeholder.as_str().contains(value));
    }
}

#[test]
fn a_pairs_user_is_kept_where_it_is_a_name() {
    let pair = made("ci-bot@example.com:correcthorsebattery", Shape::Pair);
    assert!(pair.as_str().starts_with("ci-bot@example.com:"));
    assert_eq!(pair.pieces().count(), 2);
    same_classes("ci-bot@example.com:correcthorsebattery", pair.as_str());
    let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    for value in [
        format!("{token}:x-oauth-basic"),
        format!("{token}:correcthorsebattery"),
        format!("{token}:"),
        "0123456789abcdef0123456789abcdef:x-oauth-basic".to_owned(),
        "0123456789abcdef0123456789abcdef:".to_owned(),
    ] {
        let user = value.split(':').next().expect("a user");
        assert!(!made(&value, Shape::Pair).as_str().contains(user), "{value}");
    }
}

#[test]
fn keys_are_shaped_one_by_one() {
    let value = "AKIDEXAMPLEAKIDEXAMP:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY:IQoJb3JpZ2luX2VjEXAMPLE==";
    let keys = made(value, Shape::AwsKeys);
    same_classes(value, keys.as_str());
    let pieces: Vec<&str> = keys.pieces().collect();
    assert_eq!(pieces.iter().map(|one| one.len()).collect::<Vec<_>>(), [20, 40, 25]);
    let refused = Placeholder::new(&secret("KEYS", "AKIAEXAMPLE"), Shape::AwsKeys, &mut random(1));
    assert_eq!(refused, Err(PlaceholderError::NotKeys));
}

#[test]
fn a_json_web_token_can_still_be_read() {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let real = format!(
        "{}.{}.{}",
        part(r#"{"alg":"RS256","kid":"k1"}"#),
        part(r#"{"exp":1700000000,"sub":"somebody@example.com","scope":"all of it"}"#),
        "c2lnbmF0dXJlc2lnbmF0dXJlc2lnbmF0dXJl"
    );
    let placeholder = made(&real, Shape::Opaque);
    assert_eq!(placeholder.as_str().len(), real.len());
    let fields: Vec<&str> = placeholder.as_str().split('.').collect();
    assert_eq!(fields[0], real.split('.').next().expect("a head"));
    let claims: serde_json::Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(fields[1]).expect("base64")).expect("JSON");
    assert_eq!(claims["exp"], 4_102_444_800_u64);
    assert!(!placeholder.as_str().contains(real.split('.').nth(2).expect("a signature")));
}

#[test]
fn a_stuck_source_of_randomness_is_an_error() {
    let mut stuck = |bytes: &mut [u8]| bytes.fill(0);
    let result = Placeholder::new(&secret("T", "zzzzaaaaaaaaaaaaaaaaaaaa"), Shape::Opaque, &mut stuck);
    assert_eq!(result, Err(PlaceholderError::NotRandom));
    // The highest value is never a fair choice; the making ends all the same.
    let mut stuck = |bytes: &mut [u8]| bytes.fill(255);
    let _ = Placeholder::new(&secret("T", "abcdefghabcdefghabcdefgh"), Shape::Opaque, &mut stuck);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever the value and its shape: not equal, no run of eight that was chosen at random in both,
    /// plain ASCII, and another for every sandbox.
    #[test]
    fn a_placeholder_is_apart_from_the_value(value in "[ -~é]{4,120}", seed in 0_u64..u64::MAX, pair in any::<bool>()) {
        let secret = secret("T", &value);
        let shape = if pair { Shape::Pair } else { Shape::Opaque };
        let one = Placeholder::new(&secret, shape, &mut random(seed)).expect("a placeholder");
        let two = Placeholder::new(&secret, shape, &mut random(seed ^ 1)).expect("a placeholder");
        prop_assert_ne!(&one, &two);
        prop_assert!(one.as_str().is_ascii());
        prop_assert!(!one.as_str().contains(&value));
        prop_assert!(one.as_str().len() >= value.len());
        if !one.as_str().contains("-fumehood-") {
            prop_assert_eq!(one.as_str().len(), value.len());
        }
        let kept = if one.parts().get(1).is_some_and(|part| part.kept) { one.parts()[1].stand_in.end } else { 0 };
        let start = kept.max(prefixes::known(value.as_bytes()));
        for window in one.as_str().as_bytes()[start..].windows(SHARED_RUN) {
            if window.iter().all(u8::is_ascii_alphanumeric) {
                prop_assert!(!value.as_bytes().windows(SHARED_RUN).any(|other| other == window));
            }
        }
    }
}

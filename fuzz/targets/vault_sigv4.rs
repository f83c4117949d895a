//! Any head as one that a client signed for AWS: it is signed again or refused; signing twice is signing
//! once; and no refusal holds the key.
//!
//! The input is a method, a target and fields, one a line.

#![no_main]

use fumehood_vault::inject::{Head, Injection, Payload, inject};
use fumehood_vault::secret::{Secret, SecretName};
use http::{HeaderName, HeaderValue, Request};
use libfuzzer_sys::fuzz_target;

const KEY: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

fuzz_target!(|text: &str| {
    let mut lines = text.split('\n');
    let (method, target) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let Ok(request) = Request::builder().method(method).uri(target).body(()) else { return };
    let mut parts = request.into_parts().0;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        let (name, value) = (HeaderName::try_from(name), HeaderValue::try_from(value));
        if let (Ok(name), Ok(value)) = (name, value) {
            parts.headers.append(name, value);
        }
    }
    for (token, bound) in [("", None), (":a/session+token=", Some("us-east-1".to_owned()))] {
        let name = SecretName::parse("KEYS").expect("a name");
        let value = format!("AKIDEXAMPLE:{KEY}{token}").into_bytes();
        let keys = Secret::new(name, value.into(), None).expect("a value");
        let injection = Injection::SigV4 { region: bound, service: None };
        let mut once = parts.clone();
        match inject(&mut Head::from(&mut once), &injection, &keys, Payload::Empty, 0) {
            Ok(_) => {
                let mut twice = once.clone();
                inject(&mut Head::from(&mut twice), &injection, &keys, Payload::Empty, 0)
                    .expect("what we signed can be signed");
                assert_eq!(once.headers, twice.headers);
                assert_eq!(once.headers.get_all("authorization").iter().count(), 1);
            }
            Err(error) => {
                let said = format!("{error} {error:?} {}", error.remedy());
                assert!(!said.contains(KEY) && !said.chars().any(char::is_control), "{said:?}");
            }
        }
    }
});

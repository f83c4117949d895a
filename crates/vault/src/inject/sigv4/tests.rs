use super::*;
use crate::testing::secret;
use http::Request;

const SUITE: &str = "AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const S3: &str = "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

struct Case<'a> {
    method: &'a str,
    target: &'a str,
    fields: &'a [(&'a str, &'a str)],
    scope: &'a str,
    signed: &'a str,
}

fn parts(case: &Case<'_>) -> http::request::Parts {
    let mut request = Request::builder().method(case.method).uri(case.target);
    for (name, value) in case.fields {
        request = request.header(*name, *value);
    }
    let (scope, signed) = (case.scope, case.signed);
    let value =
        format!("AWS4-HMAC-SHA256 Credential=PLACEHOLDER/{scope}, SignedHeaders={signed}, Signature=00");
    request.header("authorization", value).body(()).expect("a request").into_parts().0
}

fn signed_as(case: &Case<'_>, keys: &str, payload: Payload<'_>) -> Result<String, InjectError> {
    let mut parts = parts(case);
    let bound = Bound { region: None, service: None };
    sign(&mut Head::from(&mut parts), &bound, &secret("AWS", keys), payload)?;
    let value = parts.headers.get("authorization").expect("it is set").to_str().expect("text").to_owned();
    assert!(value.starts_with(&format!(
        "AWS4-HMAC-SHA256 Credential={}/{}",
        keys.split(':').next().expect("an id"),
        case.scope
    )));
    Ok(value.rsplit('=').next().expect("a signature").to_owned())
}

/// Cases of the suite that the service's owner published.
#[test]
fn the_published_suite_comes_out() {
    let fields = [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")];
    let scope = "20150830/us-east-1/service/aws4_request";
    let cases = [
        ("GET", "/", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "/", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "GET",
            "/?Param2=value2&Param1=value1",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        // Paths that are the same once they are cleaned are signed the same.
        ("GET", "//", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("GET", "/example/..", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("GET", "/./", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
    ];
    for (method, target, expected) in cases {
        let case = Case { method, target, fields: &fields, scope, signed: "host;x-amz-date" };
        assert_eq!(signed_as(&case, SUITE, Payload::Empty).as_deref(), Ok(expected), "{method} {target}");
    }
}

#[test]
fn the_documented_examples_come_out() {
    let iam = Case {
        method: "GET",
        target: "/?Action=ListUsers&Version=2010-05-08",
        fields: &[
            ("host", "iam.amazonaws.com"),
            ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
            ("x-amz-date", "20150830T123600Z"),
        ],
        scope: "20150830/us-east-1/iam/aws4_request",
        signed: "content-type;host;x-amz-date",
    };
    let expected = "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7";
    assert_eq!(signed_as(&iam, SUITE, Payload::Bytes(b"")).as_deref(), Ok(expected));

    let host = ("host", "examplebucket.s3.amazonaws.com");
    let (date, empty) = (("x-amz-date", "20130524T000000Z"), (CONTENT_HASH, EMPTY));
    let scope = "20130524/us-east-1/s3/aws4_request";
    let body = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
    let cases = [
        (
            "GET",
            "/test.txt",
            vec![host, ("range", "bytes=0-9"), empty, date],
            "host;range;x-amz-content-sha256;x-amz-date",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test$file.text",
            vec![
                host,
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                date,
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                (CONTENT_HASH, body),
            ],
            "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET",
            "/?lifecycle",
            vec![host, date, empty],
            "host;x-amz-content-sha256;x-amz-date",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET",
            "/?max-keys=2&prefix=J",
            vec![host, date, empty],
            "host;x-amz-content-sha256;x-amz-date",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ];
    for (method, target, fields, signed, expected) in cases {
        let case = Case { method, target, fields: &fields, scope, signed };
        assert_eq!(signed_as(&case, S3, Payload::Unread).as_deref(), Ok(expected), "{method} {target}");
    }
}

#[test]
fn a_path_is_encoded_once_for_s3_and_twice_elsewhere() {
    let same = |target: &str, service: &str| {
        let scope = format!("20150830/us-east-1/{service}/aws4_request");
        let fields = [("host", "example.com"), ("x-amz-date", "20150830T123600Z"), (CONTENT_HASH, EMPTY)];
        let case = Case { method: "GET", target, fields: &fields, scope: &scope, signed: "host;x-amz-date" };
        signed_as(&case, SUITE, Payload::Empty).expect("it is signed")
    };
    assert_eq!(same("/a%2db", "s3"), same("/a-b", "s3"));
    assert_ne!(same("/a%2db", "iam"), same("/a-b", "iam"));
    assert_ne!(same("/a/../b", "s3"), same("/b", "s3"));
    assert_eq!(same("/a/../b", "iam"), same("/b", "iam"));
}

#[test]
fn a_session_token_is_set_and_covered_or_removed() {
    let fields = [
        ("host", "example.com"),
        ("x-amz-date", "20150830T123600Z"),
        ("x-amz-security-token", "the-clients-own"),
    ];
    let case = Case {
        method: "GET",
        target: "/",
        fields: &fields,
        scope: "20150830/us-east-1/sts/aws4_request",
        signed: "host;x-amz-date;x-amz-security-token",
    };
    for (keys, token) in [(SUITE.to_owned(), None), (format!("{SUITE}:a+token/=="), Some("a+token/=="))] {
        let mut parts = parts(&case);
        let bound = Bound { region: Some("us-east-1"), service: Some("sts") };
        sign(&mut Head::from(&mut parts), &bound, &secret("AWS", &keys), Payload::Empty)
            .expect("it is signed");
        let set = parts
            .headers
            .get_all(TOKEN)
            .iter()
            .map(|value| value.to_str().expect("text"))
            .collect::<Vec<_>>();
        assert_eq!(set, token.into_iter().collect::<Vec<_>>());
        let value = parts.headers.get(AUTHORIZATION).expect("it is set");
        assert!(value.is_sensitive());
        assert_eq!(value.to_str().expect("text").contains("x-amz-security-token"), token.is_some());
    }
}

type Change<'a> = &'a dyn Fn(&mut http::request::Parts);

#[test]
fn what_can_not_be_signed_again_is_refused_with_its_reason() {
    let fields = [("host", "example.com"), ("x-amz-date", "20150830T123600Z")];
    let good = Case {
        method: "GET",
        target: "/",
        fields: &fields,
        scope: "20150830/us-east-1/s3/aws4_request",
        signed: "host;x-amz-date",
    };
    let why = |change: Change<'_>, payload: Payload<'_>| {
        let mut parts = parts(&good);
        change(&mut parts);
        let bound = Bound { region: Some("us-east-1"), service: None };
        let result = sign(&mut Head::from(&mut parts), &bound, &secret("AWS", SUITE), payload);
        result.expect_err("it is refused").to_string()
    };
    let field = |name: &'static str, value: &'static str| {
        move |parts: &mut http::request::Parts| {
            parts.headers.insert(name, http::HeaderValue::from_static(value));
        }
    };
    let target =
        |text: &'static str| move |parts: &mut http::request::Parts| parts.uri = http::Uri::from_static(text);
    let auth = "authorization";
    let cases: [(Change<'_>, &str); 14] = [
        (
            &|parts| {
                parts.headers.remove(auth);
            },
            "not signed",
        ),
        (&field(auth, "Bearer x"), "not `AWS4-HMAC-SHA256`"),
        (&field(auth, "AWS AKID:sig"), "version 2"),
        (&field(auth, "AWS4-ECDSA-P256-SHA256 Credential=a/20150830/s3/aws4_request"), "asymmetric"),
        (&field(auth, "AWS4-HMAC-SHA256 Credential=a/b/c, SignedHeaders=host"), "names no credential"),
        (
            &field(
                auth,
                "AWS4-HMAC-SHA256 Credential=a/20150830/eu-west-1/s3/aws4_request, SignedHeaders=host",
            ),
            "region `eu-west-1`",
        ),
        (
            &field(
                auth,
                "AWS4-HMAC-SHA256 Credential=a/20150830/us-east-1/s3/aws4_request, SignedHeaders=x-amz-date",
            ),
            "cover `host`",
        ),
        (
            &field(
                auth,
                "AWS4-HMAC-SHA256 Credential=a/20150830/us-east-1/s3/aws4_request, SignedHeaders=host;x-none",
            ),
            "does not have",
        ),
        (&field("x-amz-date", "20150831T000000Z"), "not a time of the day"),
        (&field("x-amz-date", "20150830T0000000"), "not a time of the day"),
        (
            &|parts| {
                parts.headers.remove("x-amz-date");
            },
            "no `x-amz-date`",
        ),
        (&field(CONTENT_HASH, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), "each chunk"),
        (&field(CONTENT_HASH, "abc"), "not a hash"),
        (&target("/?X-Amz-Signature=abc&a=b"), "presigned"),
    ];
    for (change, expected) in cases {
        let message = why(change, Payload::Empty);
        assert!(message.contains(expected), "{message} has no `{expected}`");
    }
    assert!(why(&|_| {}, Payload::Unread).contains("too large"));
    for keys in ["AKIAEXAMPLE", "AKIA EXAMPLE:key", ":keykey", "AKIA:"] {
        let mut parts = parts(&good);
        let bound = Bound { region: None, service: None };
        let result = sign(&mut Head::from(&mut parts), &bound, &secret("AWS", keys), Payload::Empty);
        assert!(matches!(result, Err(InjectError::Shape { .. })), "{keys}");
    }
}

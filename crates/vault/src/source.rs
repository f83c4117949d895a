//! What is made of the bytes that a secret's source gives.
//!
//! Words only: which source that is, and reading it, is the keeper's work.
//!
//! A file's or a command's bytes lose one line break at their end. A command may print
//!
//! - the value, as plain text;
//! - `{"value": "…", "expires_in": SECONDS}`, where the second field may be absent;
//! - what AWS tools call a credential process: `{"Version": 1, "AccessKeyId": …, "SecretAccessKey": …,
//!   "SessionToken": …, "Expiration": "2026-01-01T00:00:00Z"}`, which becomes the value that the kind `sigv4`
//!   takes.

use crate::secret::{Secret, SecretError, SecretName};
use serde::Deserialize;
use zeroize::Zeroizing;

/// A command's output beyond this is refused unread; the value may be 64 KiB.
pub const OUTPUT_LIMIT_BYTES: usize = 256 * 1024;

/// What gave the bytes, as far as it matters to what they mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// A variable: the value as it is.
    Variable,
    /// A file: the value, and one line break that editors add.
    File,
    /// A command: the same, or JSON that says until when.
    Command,
}

/// Why what a source gave is no secret. Holds nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The value breaks a rule.
    #[error(transparent)]
    Value(#[from] SecretError),
    /// JSON with a `value` that is not text, or an `expires_in` that is not a number of seconds.
    #[error("the command's JSON is not `{{\"value\": TEXT, \"expires_in\": SECONDS}}`")]
    Json,
    /// The AWS form with a time that can not be read.
    #[error("the command's `Expiration` is not a time like `2026-01-01T00:00:00Z`")]
    Expiration,
    /// More than a command may print.
    #[error("it gave {bytes} bytes, of {OUTPUT_LIMIT_BYTES}")]
    TooLong {
        /// How many.
        bytes: usize,
    },
}

#[derive(Deserialize)]
struct Plain {
    value: Zeroizing<String>,
    expires_in: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Process {
    access_key_id: Zeroizing<String>,
    secret_access_key: Zeroizing<String>,
    session_token: Option<Zeroizing<String>>,
    expiration: Option<String>,
}

/// Which of the forms a JSON text is.
#[derive(Deserialize)]
struct Fields {
    value: Option<serde::de::IgnoredAny>,
    #[serde(rename = "AccessKeyId")]
    access_key_id: Option<serde::de::IgnoredAny>,
}

// === impl Given ===

impl Given {
    /// Makes a secret of the bytes.
    ///
    /// # Errors
    /// They are too many, or no value.
    pub fn secret(
        self,
        name: SecretName,
        bytes: Zeroizing<Vec<u8>>,
        now_unix_millis: u64,
    ) -> Result<Secret, SourceError> {
        if bytes.len() > OUTPUT_LIMIT_BYTES {
            return Err(SourceError::TooLong { bytes: bytes.len() });
        }
        let (value, expires) = match self {
            Self::Variable => (bytes, None),
            Self::File => (one_line_break_less(bytes), None),
            Self::Command => printed(one_line_break_less(bytes), now_unix_millis)?,
        };
        Ok(Secret::new(name, value, expires)?)
    }
}

// === impl SourceError ===

impl SourceError {
    /// What the operator can do.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Value(error) => error.remedy(),
            Self::Json => "print the value alone, or that JSON on one line",
            Self::Expiration => "print the time in UTC, or leave it out",
            Self::TooLong { .. } => "print the value alone",
        }
    }
}

/// Without one `\n` or `\r\n` at the end, which editors and `echo` add. A second one is the value's own,
/// and is refused with it.
fn one_line_break_less(mut given: Zeroizing<Vec<u8>>) -> Zeroizing<Vec<u8>> {
    if given.ends_with(b"\n") {
        given.pop();
        if given.ends_with(b"\r") {
            given.pop();
        }
    }
    given
}

fn printed(
    text: Zeroizing<Vec<u8>>,
    now_unix_millis: u64,
) -> Result<(Zeroizing<Vec<u8>>, Option<u64>), SourceError> {
    // A value that happens to be JSON of another form is plain text.
    let fields: Option<Fields> =
        text.trim_ascii().starts_with(b"{").then(|| serde_json::from_slice(&text).ok()).flatten();
    match fields {
        Some(Fields { value: Some(_), .. }) => {
            let plain: Plain = serde_json::from_slice(&text).map_err(|_| SourceError::Json)?;
            let after = |seconds: u64| now_unix_millis.saturating_add(seconds.saturating_mul(1000));
            Ok((Zeroizing::new(plain.value.as_bytes().to_vec()), plain.expires_in.map(after)))
        }
        Some(Fields { access_key_id: Some(_), .. }) => {
            let keys: Process = serde_json::from_slice(&text).map_err(|_| SourceError::Json)?;
            let token = keys.session_token.as_ref().map_or("", |token| token.as_str());
            let parts = [keys.access_key_id.as_str(), &keys.secret_access_key, token];
            let count = if token.is_empty() { 2 } else { 3 };
            let value = Zeroizing::new(parts.get(..count).unwrap_or_default().join(":").into_bytes());
            let end = keys.expiration.map(|time| unix_millis(&time).ok_or(SourceError::Expiration));
            Ok((value, end.transpose()?))
        }
        Some(Fields { .. }) | None => Ok((text, None)),
    }
}

/// Reads `2026-01-01T00:00:00Z`, also with a fraction, and with `+00:00` or another offset for the `Z`.
fn unix_millis(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T')?;
    let number = |text: &str, length: usize| {
        let plain = text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse::<i64>().ok()).flatten()
    };
    let mut parts = date.split('-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let zone_at = time.find(['Z', '+', '-'])?;
    let (clock, zone) = time.split_at_checked(zone_at)?;
    let mut parts = clock.split('.').next()?.split(':');
    let (hour, minute, second) =
        (number(parts.next()?, 2)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let offset_minutes = match zone.split_at_checked(1)? {
        ("Z", "") => 0,
        (sign, rest) => {
            let (hours, minutes) = rest.split_once(':')?;
            let minutes = number(hours, 2)? * 60 + number(minutes, 2)?;
            if sign == "-" { -minutes } else { minutes }
        }
    };
    let in_range = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !in_range || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days since 1970 of the proleptic Gregorian calendar, with years that begin in March.
    let (shifted, from_march) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (shifted / 400, shifted % 400);
    let day_of_year = (153 * from_march + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468;
    let seconds = days * 86_400 + hour * 3_600 + (minute - offset_minutes) * 60 + second;
    u64::try_from(seconds.checked_mul(1000)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn made(given: Given, bytes: &str) -> Result<(String, Option<u64>), SourceError> {
        let name = SecretName::parse("T").expect("a name");
        let secret = given.secret(name, Zeroizing::new(bytes.into()), 5_000)?;
        let value = String::from_utf8(secret.expose().to_vec()).expect("text");
        Ok((value, secret.expires_unix_millis()))
    }

    #[test]
    fn one_line_break_is_cut_and_no_more() {
        assert_eq!(made(Given::File, "value\n"), Ok(("value".into(), None)));
        assert_eq!(made(Given::File, "value\r\n"), Ok(("value".into(), None)));
        assert_eq!(made(Given::Command, "value \n"), Ok(("value ".into(), None)));
        let refused = SourceError::Value(SecretError::LineBreak { at: 5 });
        assert_eq!(made(Given::File, "value\n\n"), Err(refused));
        assert_eq!(made(Given::Variable, "value\n"), Err(refused));
        assert_eq!(made(Given::File, "\n"), Err(SourceError::Value(SecretError::Empty)));
        let long = "x".repeat(OUTPUT_LIMIT_BYTES + 1);
        assert_eq!(made(Given::Command, &long), Err(SourceError::TooLong { bytes: OUTPUT_LIMIT_BYTES + 1 }));
    }

    #[test]
    fn a_command_may_say_until_when() {
        let json = r#"{"value": "abcd", "expires_in": 60, "more": [1]}"#;
        assert_eq!(made(Given::Command, json), Ok(("abcd".into(), Some(65_000))));
        assert_eq!(made(Given::Command, "{\n\"value\":\"abcd\"\n}\n"), Ok(("abcd".into(), None)));
        // From a file it is the value itself.
        assert_eq!(made(Given::File, json), Ok((json.into(), None)));
        assert_eq!(made(Given::Command, r#"{"token":"abcd"}"#), Ok((r#"{"token":"abcd"}"#.into(), None)));
        for bad in
            [r#"{"value": 5}"#, r#"{"value": "abcd", "expires_in": -1}"#, r#"{"value":"a","expires_in":"9"}"#]
        {
            assert_eq!(made(Given::Command, bad), Err(SourceError::Json), "{bad}");
        }
        assert_eq!(
            made(Given::Command, r#"{"value": "ab\ncd"}"#),
            Err(SourceError::Value(SecretError::LineBreak { at: 2 }))
        );
    }

    #[test]
    fn an_aws_credential_process_gives_keys() {
        let json = r#"{"Version":1,"AccessKeyId":"AKIA","SecretAccessKey":"s/k","SessionToken":"t=","Expiration":"1970-01-02T00:00:01Z"}"#;
        assert_eq!(made(Given::Command, json), Ok(("AKIA:s/k:t=".into(), Some(86_401_000))));
        let json = r#"{"Version":1,"AccessKeyId":"AKIA","SecretAccessKey":"s/k","SessionToken":null}"#;
        assert_eq!(made(Given::Command, json), Ok(("AKIA:s/k".into(), None)));
        let json = r#"{"AccessKeyId":"AKIA","SecretAccessKey":"s/k","Expiration":"soon"}"#;
        assert_eq!(made(Given::Command, json), Err(SourceError::Expiration));
    }

    #[test]
    fn times_are_read() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2015-08-30T12:36:00+00:00", 1_440_938_160),
            ("2015-08-30T14:36:00.123+02:00", 1_440_938_160),
            ("2024-12-31T23:59:59Z", 1_735_689_599),
        ] {
            assert_eq!(unix_millis(text), Some(seconds * 1000), "{text}");
        }
        for text in
            ["", "T", "2015-08-30", "2015-8-30T00:00:00Z", "2015-13-30T00:00:00Z", "2015-08-30T00:00:00"]
        {
            assert_eq!(unix_millis(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,60}", bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = unix_millis(&text);
            let name = SecretName::parse("T").expect("a name");
            let _ = Given::Command.secret(name, Zeroizing::new(bytes), u64::MAX);
        }
    }
}

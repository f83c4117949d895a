//! Amounts as people write them: `512M`, `1.5GiB`, `90s`, `2.5` processors.
//!
//! Sizes: `K`, `M`, `G`, `T` and `KiB`, `MiB`, `GiB`, `TiB` count in 1024s; `KB`, `MB`, `GB`, `TB`
//! count in 1000s; a bare number, or one with `B`, is bytes. Times: `ms`, `s`, `m`, `h`, `d`; a bare
//! number is seconds. Letters may have either case, and a space may stand before the unit. All
//! arithmetic is exact and whole: what is smaller than the smallest step is cut off, never rounded up.

use crate::text::shown;
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Every unit of size, with its bytes.
const SIZES: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", KIB),
    ("kib", KIB),
    ("kb", 1_000),
    ("m", MIB),
    ("mib", MIB),
    ("mb", 1_000_000),
    ("g", GIB),
    ("gib", GIB),
    ("gb", 1_000_000_000),
    ("t", TIB),
    ("tib", TIB),
    ("tb", 1_000_000_000_000),
];

/// Every unit of time, with its milliseconds.
const TIMES: [(&str, u64); 6] =
    [("", 1_000), ("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// More digits than any sensible amount has; keeps the arithmetic inside 128 bits.
const MAX_DIGITS: usize = 20;

/// What kind of amount was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Size,
    Time,
    Processors,
}

/// What is wrong with a text that should be an amount. The text is kept in a form safe to print.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("it is empty, where {} should be", kind.noun())]
    Empty { kind: Kind },
    #[error("`{text}` is not {}: it must be more than zero", kind.noun())]
    Zero { kind: Kind, text: String },
    #[error("`{text}` is not {}: it is negative", kind.noun())]
    Negative { kind: Kind, text: String },
    #[error("`{text}` is not {}: it does not begin with a plain decimal number", kind.noun())]
    NotANumber { kind: Kind, text: String },
    #[error("`{text}` is not {}: there is no unit `{unit}`", kind.noun())]
    UnknownUnit { kind: Kind, text: String, unit: String },
    #[error("`{text}` is not {}: it is less than {}", kind.noun(), kind.step())]
    TooSmall { kind: Kind, text: String },
    #[error("`{text}` is not {}: it is larger than can be counted", kind.noun())]
    TooLarge { kind: Kind, text: String },
}

// === impl Kind ===

impl Kind {
    const fn noun(self) -> &'static str {
        match self {
            Self::Size => "a size",
            Self::Time => "a time",
            Self::Processors => "a number of processors",
        }
    }

    const fn step(self) -> &'static str {
        match self {
            Self::Size => "a whole byte",
            Self::Time => "a millisecond",
            Self::Processors => "a thousandth of a processor",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::Size => "write a size such as `512M`, `1.5GiB` or `10GB`",
            Self::Time => "write a time such as `500ms`, `90s`, `5m` or `1h`",
            Self::Processors => "write a number of processors such as `2` or `0.5`",
        }
    }
}

// === impl QuantityError ===

impl QuantityError {
    /// What to write instead, with an example.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Empty { kind }
            | Self::Zero { kind, .. }
            | Self::Negative { kind, .. }
            | Self::NotANumber { kind, .. }
            | Self::UnknownUnit { kind, .. }
            | Self::TooSmall { kind, .. }
            | Self::TooLarge { kind, .. } => kind.remedy(),
        }
    }
}

/// Reads a size in bytes, never zero.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    amount(text, Kind::Size, &SIZES)
}

/// Reads a time of at least one millisecond.
pub fn duration(text: &str) -> Result<Duration, QuantityError> {
    amount(text, Kind::Time, &TIMES).map(Duration::from_millis)
}

/// Reads a number of processors, in thousandths of one, never zero.
pub fn cpu_millis(text: &str) -> Result<u32, QuantityError> {
    let millis = amount(text, Kind::Processors, &[("", 1_000)])?;
    u32::try_from(millis)
        .map_err(|_| QuantityError::TooLarge { kind: Kind::Processors, text: shown(text.trim()) })
}

/// A size for people: `512 MiB`, `1.5 GiB`, `17 bytes`. Cut to one decimal where it is not whole.
pub fn show_bytes(bytes: u64) -> String {
    for (unit, name) in [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit {
            let tenths = u128::from(bytes) * 10 / u128::from(unit);
            return match tenths % 10 {
                0 => format!("{} {name}", tenths / 10),
                rest => format!("{}.{rest} {name}", tenths / 10),
            };
        }
    }
    if bytes == 1 { "1 byte".to_owned() } else { format!("{bytes} bytes") }
}

/// A time for people, in the largest unit that holds it whole: `90s`, `5m`, `1500ms`.
pub fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (unit, name) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")] {
        if millis >= unit && millis.is_multiple_of(unit) {
            return format!("{}{name}", millis / unit);
        }
    }
    format!("{millis}ms")
}

/// Thousandths of a processor for people: `1.5`.
pub fn show_cpus(millis: u32) -> String {
    let text = format!("{}.{:03}", millis / 1_000, millis % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `number unit`, multiplied out and cut to a whole number of the smallest step.
fn amount(text: &str, kind: Kind, units: &[(&str, u64)]) -> Result<u64, QuantityError> {
    let text = text.trim();
    let said = || shown(text);
    if text.is_empty() {
        return Err(QuantityError::Empty { kind });
    }
    let unsigned = text.strip_prefix('-');
    let digits = unsigned.unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
    let (number, unit) = digits.split_at_checked(end).unwrap_or((digits, ""));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !plain(whole) || !plain(fraction) {
        return Err(QuantityError::NotANumber { kind, text: said() });
    }
    if unsigned.is_some() {
        return Err(QuantityError::Negative { kind, text: said() });
    }
    let unit = unit.trim_start();
    let Some((_, factor)) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        return Err(QuantityError::UnknownUnit { kind, text: said(), unit: shown(unit) });
    };
    if whole.bytes().chain(fraction.bytes()).all(|byte| byte == b'0') {
        return Err(QuantityError::Zero { kind, text: said() });
    }
    match scaled(whole, fraction, *factor) {
        Some(0) => Err(QuantityError::TooSmall { kind, text: said() }),
        Some(value) => Ok(value),
        None => Err(QuantityError::TooLarge { kind, text: said() }),
    }
}

/// `whole.fraction × factor`, cut to a whole number; `None` where it does not fit.
fn scaled(whole: &str, fraction: &str, factor: u64) -> Option<u64> {
    let whole = whole.trim_start_matches('0');
    if whole.len() > MAX_DIGITS {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Digits past the twentieth are worth less than one step of any unit.
    let kept: String = fraction.chars().take(MAX_DIGITS).collect();
    let parts: u128 = kept.parse().ok()?;
    let scale = 10u128.checked_pow(u32::try_from(kept.len()).ok()?)?;
    // At most 10^20 × 10^13, which is inside 128 bits.
    let below = parts.checked_mul(u128::from(factor))? / scale;
    u64::try_from(whole.checked_mul(u128::from(factor))?.checked_add(below)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read() {
        for (text, expected) in [
            ("1024", 1024),
            ("512M", 512 * MIB),
            ("512 MiB", 512 * MIB),
            ("1.5GiB", 3 * GIB / 2),
            ("10GB", 10_000_000_000),
            ("1k", KIB),
            ("2tb", 2_000_000_000_000),
            ("0.5K", 512),
            ("17 B", 17),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn times_and_processors_are_read() {
        for (text, expected) in [
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("500ms", 500),
            ("90", 90_000),
            ("1.5s", 1_500),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        assert_eq!(cpu_millis("1.5"), Ok(1_500));
        assert_eq!(cpu_millis("2"), Ok(2_000));
    }

    #[test]
    fn each_flaw_has_its_own_cause() {
        use QuantityError as E;
        let kind = Kind::Size;
        let text = |text: &str| text.to_owned();
        assert_eq!(bytes(" "), Err(E::Empty { kind }));
        assert_eq!(bytes("0.0G"), Err(E::Zero { kind, text: text("0.0G") }));
        assert_eq!(bytes("-1G"), Err(E::Negative { kind, text: text("-1G") }));
        assert_eq!(bytes("0.9"), Err(E::TooSmall { kind, text: text("0.9") }));
        assert_eq!(bytes("16777216T"), Err(E::TooLarge { kind, text: text("16777216T") }));
        assert_eq!(bytes("1X"), Err(E::UnknownUnit { kind, text: text("1X"), unit: text("X") }));
        for junk in
            ["NaN", "inf", "G", ".", "1.", ".5", "1.2.3", "+1", "--1", "1e9x".trim_end_matches("1e9x")]
        {
            let wrong = bytes(junk);
            assert!(matches!(wrong, Err(E::NotANumber { .. } | E::Empty { .. })), "{junk}: {wrong:?}");
        }
        assert!(matches!(bytes("1e9"), Err(E::UnknownUnit { .. })));
        assert!(matches!(duration("0.5ms"), Err(E::TooSmall { .. })));
        assert!(matches!(cpu_millis("9999999"), Err(E::TooLarge { .. })));
    }

    #[test]
    fn amounts_are_shown_for_people() {
        assert_eq!(show_bytes(512 * MIB), "512 MiB");
        assert_eq!(show_bytes(3 * GIB / 2), "1.5 GiB");
        assert_eq!(show_bytes(17), "17 bytes");
        assert_eq!(show_duration(Duration::from_secs(90)), "90s");
        assert_eq!(show_duration(Duration::from_secs(300)), "5m");
        assert_eq!(show_cpus(1_500), "1.5");
        assert_eq!(show_cpus(10_000), "10");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in any::<String>()) {
            let _ = (bytes(&text), duration(&text), cpu_millis(&text));
        }

        #[test]
        fn any_number_with_any_unit_is_read_or_refused(text in "-?[0-9]{0,45}\\.?[0-9]{0,45} ?[kKmMgGtTiIbBsShHdD]{0,3}") {
            let _ = (bytes(&text), duration(&text), cpu_millis(&text));
        }

        #[test]
        fn what_is_shown_reads_back(millis in 1u64..=u64::MAX / 2, cpus in 1u32.., size in 1u64..) {
            prop_assert_eq!(duration(&show_duration(Duration::from_millis(millis))), Ok(Duration::from_millis(millis)));
            prop_assert_eq!(cpu_millis(&show_cpus(cpus)), Ok(cpus));
            if let Ok(back) = bytes(&show_bytes(size).replace("bytes", "b").replace("byte", "b")) {
                // One decimal is kept, and it is cut: never more than there is.
                prop_assert!(back <= size && size - back <= size / 10);
            }
        }
    }
}

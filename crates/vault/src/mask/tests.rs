use super::*;
use crate::placeholder::Shape;
use crate::testing::{random, secret};
use proptest::prelude::*;

const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";

fn one(value: &str, shape: Shape) -> (Secret, Placeholder, Masker) {
    let secret = secret("TOKEN", value);
    let placeholder = Placeholder::new(&secret, shape, &mut random(3)).expect("a placeholder");
    let masker = Masker::new([(&secret, &placeholder)]);
    (secret, placeholder, masker)
}

fn collect(stream: &mut MaskStream, chunk: &[u8], out: &mut Vec<u8>) {
    stream.feed(chunk, &mut |piece| match piece {
        Piece::Chunk(range) => out.extend_from_slice(&chunk[range]),
        Piece::Bytes(bytes) => out.extend_from_slice(bytes),
    });
}

fn bytes(out: &mut Vec<u8>) -> impl FnMut(Piece<'_>) {
    |piece| match piece {
        Piece::Chunk(_) => panic!("there is no chunk"),
        Piece::Bytes(bytes) => out.extend_from_slice(bytes),
    }
}

fn in_chunks(masker: &Masker, text: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut stream = masker.stream();
    let (mut out, mut rest, mut turn) = (Vec::new(), text, 0);
    while !rest.is_empty() {
        let size = sizes.get(turn % sizes.len().max(1)).copied().unwrap_or(1).clamp(1, rest.len());
        let (chunk, more) = rest.split_at(size);
        collect(&mut stream, chunk, &mut out);
        (rest, turn) = (more, turn + 1);
    }
    stream.finish(&mut bytes(&mut out));
    assert_eq!(stream.held_bytes(), 0);
    out
}

#[test]
fn an_echo_becomes_the_placeholder_at_any_chunking() {
    let (_, placeholder, masker) = one(TOKEN, Shape::Opaque);
    let text = format!("x-echo: Bearer {TOKEN}\nghp_16C7e and {TOKEN}{TOKEN} ghp_");
    let expected = text.replace(TOKEN, placeholder.as_str());
    for size in 1..text.len() + 1 {
        assert_eq!(in_chunks(&masker, text.as_bytes(), &[size]), expected.as_bytes(), "chunks of {size}");
    }
    assert_eq!(masker.whole(text.as_bytes()).as_deref(), Some(expected.as_bytes()));
    assert_eq!(masker.whole(b"nothing here"), None);
}

#[test]
fn a_chunk_without_a_find_is_handed_on_as_itself() {
    let (_, _, masker) = one(TOKEN, Shape::Opaque);
    let mut stream = masker.stream();
    let mut pieces = Vec::new();
    stream.feed(b"data: an event\n\n", &mut |piece| {
        pieces.push(match piece {
            Piece::Chunk(range) => (range.start, range.end),
            Piece::Bytes(_) => panic!("a copy"),
        });
    });
    assert_eq!(pieces, [(0, 16)]);
    assert_eq!(stream.held_bytes(), 0);
}

#[test]
fn a_pause_lets_a_short_end_go_and_the_rest_is_masked_all_the_same() {
    let (_, placeholder, masker) = one(TOKEN, Shape::Opaque);
    let mut stream = masker.stream();
    let mut out = Vec::new();
    collect(&mut stream, b"ends with gh", &mut out);
    assert_eq!(out, b"ends with ");
    stream.release(&mut bytes(&mut out));
    assert_eq!(out, b"ends with gh");
    stream.release(&mut bytes(&mut out));
    assert_eq!(out, b"ends with gh");
    // It was the beginning after all.
    collect(&mut stream, &TOKEN.as_bytes()[2..20], &mut out);
    stream.release(&mut bytes(&mut out));
    assert_eq!(out, b"ends with gh", "more than a few bytes are not let go");
    collect(&mut stream, &TOKEN.as_bytes()[20..], &mut out);
    assert_eq!(out, [b"ends with gh", &placeholder.as_str().as_bytes()[2..]].concat());
    assert_eq!(
        stream.found().map(|(name, count)| (name.as_str(), count)).collect::<Vec<_>>(),
        [("TOKEN", 1)]
    );
    // It was not.
    collect(&mut stream, b"gh", &mut out);
    stream.release(&mut bytes(&mut out));
    collect(&mut stream, b"osts", &mut out);
    assert!(out.ends_with(b"ghosts"));
    collect(&mut stream, b"ghp_", &mut out);
    stream.release(&mut bytes(&mut out));
    stream.finish(&mut bytes(&mut out));
    assert!(out.ends_with(b"ghostsghp_"));
}

#[test]
fn pieces_of_a_value_are_masked_alone() {
    let (_, placeholder, masker) = one("ci@example.com:correct-horse-battery", Shape::Pair);
    let mine = masker.whole(b"user ci@example.com password correct-horse-battery").expect("a find");
    let text = String::from_utf8(mine).expect("text");
    let password = placeholder.pieces().nth(1).expect("a password");
    assert_eq!(text, format!("user ci@example.com password {password}"));

    let keys = "AKIDEXAMPLEAKIDEXAMP:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY:FQoGZXIvYXdzEXAMPLE";
    let (_, _, masker) = one(keys, Shape::AwsKeys);
    for piece in keys.split(':') {
        let masked = masker.whole(format!("<{piece}>").as_bytes()).expect("a find");
        assert!(!String::from_utf8(masked).expect("text").contains(piece));
    }
}

#[test]
fn a_renewed_value_of_another_length_is_masked_too() {
    let (first, placeholder, _) = one(TOKEN, Shape::Opaque);
    let next = secret("TOKEN", "ghs_quite-another-value-and-longer-than-the-first-one-was");
    let masker = Masker::new([(&first, &placeholder), (&next, &placeholder)]);
    let text = [first.expose(), b" ", next.expose()].concat();
    let masked = masker.whole(&text).expect("a find");
    assert_eq!(masked.len(), text.len());
    assert!(masked.starts_with(placeholder.as_str().as_bytes()));
    assert!(masked.ends_with(&vec![b'x'; next.expose().len()]));
}

#[test]
fn pieces_of_a_renewed_value_are_found_by_their_colons() {
    let first = secret("KEYS", "AKIDEXAMPLEAKIDEXAMP:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
    let placeholder = Placeholder::new(&first, Shape::AwsKeys, &mut random(3)).expect("a placeholder");
    let next = "ASIDEXAMPLE2:another/Key/of/another/length:FQoGZXIvYXdzEXAMPLEofAToken";
    let masker = Masker::new([(&secret("KEYS", next), &placeholder)]);
    for piece in next.split(':') {
        let masked = masker.whole(format!("<{piece}>").as_bytes()).expect("a find");
        assert_eq!(masked.len(), piece.len() + 2);
        assert!(masked.starts_with(b"<xx") && masked.ends_with(b"xx>"));
    }
}

#[test]
fn a_short_piece_is_a_word_and_stays() {
    let (_, _, masker) = one("admin:admin", Shape::Pair);
    assert_eq!(masker.whole(b"user admin"), None);
    assert!(masker.whole(b"YWRtaW46YWRtaW4=").is_some());
}

#[test]
fn fields_are_masked_and_a_name_goes() {
    let (_, placeholder, masker) = one("abcdefgh-1234-ijklmnop", Shape::Opaque);
    let mut fields = HeaderMap::new();
    fields.insert("location", HeaderValue::from_static("https://example.com/?t=abcdefgh-1234-ijklmnop"));
    fields.append("set-cookie", HeaderValue::from_static("a=abcdefgh-1234-ijklmnop"));
    fields.append("set-cookie", HeaderValue::from_static("b=c"));
    fields.insert("abcdefgh-1234-ijklmnop", HeaderValue::from_static("1"));
    let found = masker.fields(&mut fields);
    assert_eq!(found.iter().map(SecretName::as_str).collect::<Vec<_>>(), ["TOKEN"]);
    assert!(masker.fields(&mut fields).is_empty());
    assert_eq!(fields.len(), 3);
    let location = fields.get("location").expect("it is still there");
    assert_eq!(location, &format!("https://example.com/?t={placeholder}"));
}

#[test]
fn a_very_long_value_is_masked() {
    let value: String = (0..60_000_u32).map(|n| char::from(b'a' + (n * n % 26) as u8)).collect();
    let (_, placeholder, masker) = one(&value, Shape::Opaque);
    let text = format!("<{value}>");
    let out = in_chunks(&masker, text.as_bytes(), &[4096]);
    assert_eq!(out, format!("<{placeholder}>").as_bytes());
}

/// How others write a value down, made without the code under test.
fn written(value: &[u8], way: usize, before: &[u8], after: &[u8]) -> (Vec<u8>, Option<String>) {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
    let each = |format: &dyn Fn(u8) -> String| value.iter().map(|byte| format(*byte)).collect::<String>();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let whole = [before, value, after].concat();
    let text = match way {
        0 => return (value.to_vec(), None),
        1 => each(&|b| if plain(&b) { char::from(b).to_string() } else { format!("%{b:02X}") }),
        2 => each(&|b| if plain(&b) { char::from(b).to_string() } else { format!("%{b:02x}") }),
        3 => each(&|b| format!("%{b:02X}")),
        4 => each(&|b| format!("%{b:02x}")),
        5 => each(&|b| format!("{b:02x}")),
        6 => each(&|b| format!("{b:02X}")),
        7 => each(&|b| format!("\\u{b:04x}")),
        8 => each(&|b| format!("\\u{b:04X}")),
        9 => serde_json::to_string(std::str::from_utf8(value).expect("text"))
            .expect("JSON")
            .trim_matches('"')
            .replace('/', "\\/"),
        10 => return (value.iter().rev().copied().collect(), None),
        11 => STANDARD.encode(whole),
        12 => URL_SAFE.encode(whole),
        _ => URL_SAFE_NO_PAD.encode(whole),
    };
    let decoded = (way >= 11).then(|| text.clone());
    (text.into_bytes(), decoded)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// A value, planted in any way and cut anywhere, is gone; length and the rest are as before.
    #[test]
    fn every_planted_value_is_found(
        value in "[A-Za-z0-9_/+=.:-]{8,48}",
        way in 0_usize..14,
        before in proptest::collection::vec(any::<u8>(), 0..6),
        after in proptest::collection::vec(any::<u8>(), 0..6),
        head in "[ \n<>\\[\\]{}]{0,40}",
        tail in "[ \n<>\\[\\]{}]{0,40}",
        sizes in proptest::collection::vec(1_usize..60, 1..8),
        seed in any::<u64>(),
    ) {
        let secret = secret("T", &value);
        let placeholder = Placeholder::new(&secret, Shape::Opaque, &mut random(seed)).expect("a placeholder");
        let masker = Masker::new([(&secret, &placeholder)]);
        let (planted, encoded) = written(value.as_bytes(), way, &before, &after);
        let text = [head.as_bytes(), &planted, tail.as_bytes()].concat();
        let out = in_chunks(&masker, &text, &sizes);
        prop_assert_eq!(out.len(), text.len());
        prop_assert!(out.starts_with(head.as_bytes()) && out.ends_with(tail.as_bytes()));
        let middle = &out[head.len()..text.len() - tail.len()];
        if encoded.is_some() {
            use base64::Engine;
            use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
            let decoded = match way {
                11 => STANDARD.decode(middle),
                12 => URL_SAFE.decode(middle),
                _ => URL_SAFE_NO_PAD.decode(middle),
            }.expect("it is still base64");
            prop_assert_eq!(&decoded[..before.len()], &before[..]);
            // A byte at either end shares a character with its neighbour.
            let inner = &value.as_bytes()[1..value.len() - 1];
            prop_assert!(!decoded.windows(inner.len()).any(|window| window == inner));
        } else {
            let same_shape = placeholder.as_str().len() == value.len();
            let expected = if same_shape { placeholder.as_str().to_owned() } else { "x".repeat(value.len()) };
            let expected = written(expected.as_bytes(), way, &before, &after).0;
            if expected.len() == middle.len() {
                prop_assert_eq!(middle, &expected[..]);
            } else {
                prop_assert!(middle.iter().all(|byte| *byte == b'x'));
            }
        }
    }

    /// Chunking changes nothing, and what holds no value comes out as it went in.
    #[test]
    fn output_does_not_depend_on_chunks(
        text in proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(b'%'), Just(b'6'), Just(b'1')], 0..200),
        values in proptest::collection::vec("[ab]{4,9}", 1..4),
        sizes in proptest::collection::vec(1_usize..20, 1..6),
        releases in any::<bool>(),
    ) {
        let secrets: Vec<Secret> = values.iter().map(|value| secret("T", value)).collect();
        let placeholders: Vec<Placeholder> = secrets
            .iter()
            .map(|one| Placeholder::new(one, Shape::Opaque, &mut random(9)).expect("a placeholder"))
            .collect();
        let masker = Masker::new(secrets.iter().zip(&placeholders));
        let expected = masker.whole(&text).unwrap_or_else(|| text.clone());
        prop_assert_eq!(&in_chunks(&masker, &text, &sizes), &expected);
        if releases {
            let mut stream = masker.stream();
            let mut out = Vec::new();
            for chunk in text.chunks(sizes[0]) {
                collect(&mut stream, chunk, &mut out);
                stream.release(&mut bytes(&mut out));
            }
            stream.finish(&mut bytes(&mut out));
            prop_assert_eq!(out.len(), expected.len());
            for (mine, (masked, plain)) in out.iter().zip(expected.iter().zip(&text)) {
                prop_assert!(mine == masked || mine == plain);
            }
        }
    }
}

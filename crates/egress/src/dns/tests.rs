//! Questions and answers, byte by byte.

use super::*;
use fumehood_model::egress::{Egress, Reach, Rule};
use message::MOST_ANSWER_BYTES;
use proptest::prelude::*;

fn table(reach: Reach, rules: &[&str]) -> Table {
    Table::new(Egress {
        reach,
        rules: rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect(),
        ranges: Vec::new(),
        resolutions: Vec::new(),
        ceilings: Vec::new(),
        upstream: None,
        authorities: Vec::new(),
    })
}

fn name(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in text.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

fn header(flags: u16, counts: [u16; 4]) -> Vec<u8> {
    [0xabcd, flags].into_iter().chain(counts).flat_map(u16::to_be_bytes).collect()
}

fn ask(text: &str, kind: u16) -> Vec<u8> {
    [header(0x0100, [1, 0, 0, 0]), name(text), kind.to_be_bytes().to_vec(), vec![0, 1]].concat()
}

fn code(answer: &[u8]) -> u8 {
    answer[3] & 0xf
}

fn answered(table: &Table, names: &mut Names, bytes: &[u8]) -> Vec<u8> {
    let question = Question::parse(bytes).unwrap();
    question.answer(&respond(table, names, &question))
}

fn wrong(bytes: &[u8]) -> u8 {
    match Question::parse(bytes) {
        Err(Unread::Wrong(answer)) => {
            assert_eq!(answer[..2], [0xab, 0xcd]);
            assert_eq!(answer[2] & 0x80, 0x80);
            code(&answer)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_name_of_a_rule_gets_its_addresses() {
    let (table, mut names) =
        (table(Reach::Rules, &["api.example.com", "*.cdn.example.com"]), Names::default());
    let answer = answered(&table, &mut names, &ask("API.Example.com", 1));
    let expected = [
        header(0x8180, [1, 1, 0, 0]),
        name("API.Example.com"),
        vec![0, 1, 0, 1],
        vec![0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 198, 18, 0, 2],
    ]
    .concat();
    assert_eq!(answer, expected);
    let answer = answered(&table, &mut names, &ask("a.b.cdn.example.com", 255));
    assert_eq!((code(&answer), answer[7]), (0, 2));
    let answer = answered(&table, &mut names, &ask("api.example.com", 28));
    assert!(answer.ends_with(&[0xfd, 0x66, 0x75, 0x6d, 0x65, 0x68, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]));
}

#[test]
fn other_types_of_it_are_empty_and_other_names_do_not_exist() {
    let (table, mut names) = (table(Reach::Rules, &["api.example.com"]), Names::default());
    for kind in [2, 5, 6, 15, 16, 33, 64, 65, 10, 12] {
        let answer = answered(&table, &mut names, &ask("api.example.com", kind));
        // Nothing, and an authority that says how long.
        assert_eq!((code(&answer), answer[7], answer[9]), (0, 0, 1), "{kind}");
    }
    for other in
        ["example.com", "x.api.example.com", "data.evil.example", "a b.example.com", "1.2.3.4", "localhost"]
    {
        let answer = answered(&table, &mut names, &ask(other, 1));
        assert_eq!((code(&answer), answer[7], answer[9]), (3, 0, 1), "{other}");
    }
    assert_eq!(code(&answered(&table, &mut names, &ask("", 2))), 0);
    // One label with a dot in it is not two.
    let mut odd = header(0x0100, [1, 0, 0, 0]);
    odd.extend(b"\x0bapi.example\x03com\0\0\x01\0\x01");
    assert_eq!(code(&answered(&table, &mut names, &odd)), 3);
}

#[test]
fn an_address_inside_leads_back_to_its_name() {
    let (table, mut names) = (table(Reach::Rules, &["api.example.com"]), Names::default());
    answered(&table, &mut names, &ask("api.example.com", 1));
    let v6 = "2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.8.6.5.6.d.6.5.7.6.6.d.f.ip6.arpa";
    for reverse in ["2.0.18.198.in-addr.arpa", v6] {
        let answer = answered(&table, &mut names, &ask(reverse, 12));
        assert!(answer.ends_with(&name("api.example.com")), "{reverse}");
        assert_eq!(code(&answered(&table, &mut names, &ask(reverse, 16))), 0);
    }
    for reverse in ["3.0.18.198.in-addr.arpa", "4.3.2.1.in-addr.arpa", "02.0.18.198.in-addr.arpa"] {
        assert_eq!(code(&answered(&table, &mut names, &ask(reverse, 12))), 3, "{reverse}");
    }
}

#[test]
fn public_names_are_answered_where_that_was_asked_for() {
    for reach in [Reach::Names, Reach::Public] {
        let (table, mut names) = (table(reach, &[]), Names::default());
        assert_eq!(code(&answered(&table, &mut names, &ask("anything.example.org", 1))), 0);
        for internal in ["metadata.google.internal", "printer.local", "intranet", "db.corp"] {
            assert_eq!(code(&answered(&table, &mut names, &ask(internal, 1))), 3, "{internal}");
        }
    }
}

#[test]
fn when_all_addresses_are_given_the_server_fails() {
    let (table, mut names) = (table(Reach::Rules, &["*.example.com"]), Names::default());
    for number in 0..crate::names::MOST_NAMES {
        answered(&table, &mut names, &ask(&format!("n{number}.example.com"), 1));
    }
    assert_eq!(code(&answered(&table, &mut names, &ask("more.example.com", 1))), 2);
    assert_eq!(code(&answered(&table, &mut names, &ask("n1.example.com", 28))), 0);
}

#[test]
fn odd_messages_have_their_own_errors() {
    let good = ask("api.example.com", 1);
    assert_eq!(Question::parse(&good[..11]), Err(Unread::Dropped));
    let mut reply = good.clone();
    reply[2] |= 0x80;
    assert_eq!(Question::parse(&reply), Err(Unread::Dropped));
    let mut update = good.clone();
    update[2] |= 0x28;
    assert_eq!(wrong(&update), 4);
    for counts in [[0, 0, 0, 0], [2, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]] {
        let mut odd = good.clone();
        odd[4..12].copy_from_slice(&counts.map(u16::to_be_bytes).concat());
        assert_eq!(wrong(&odd), 1, "{counts:?}");
    }
    assert_eq!(wrong(&good[..good.len() - 1]), 1);
    assert_eq!(wrong(&[good.as_slice(), &[0]].concat()), 1);
    let mut chaos = good;
    *chaos.last_mut().unwrap() = 3;
    assert_eq!(wrong(&chaos), 5);
    let pointer = [header(0x0100, [1, 0, 0, 0]), vec![0xc0, 0x0c, 0, 1, 0, 1]].concat();
    assert_eq!(wrong(&pointer), 1);
    let long = (0..10).map(|_| "a".repeat(30)).collect::<Vec<_>>().join(".");
    assert_eq!(wrong(&ask(&long, 1)), 1);
}

#[test]
fn edns_is_spoken_back() {
    let with = |opt: &[u8], count: u16| {
        let mut bytes = ask("api.example.com", 1);
        bytes[10..12].copy_from_slice(&count.to_be_bytes());
        [bytes, opt.to_vec()].concat()
    };
    let opt = [0, 0, 41, 0x10, 0, 0, 0, 0x80, 0, 0, 4, 0, 3, 0, 0];
    let (table, mut names) = (table(Reach::Rules, &["api.example.com"]), Names::default());
    let answer = answered(&table, &mut names, &with(&opt, 1));
    assert!(answer.ends_with(&[0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(answer[11], 1);
    assert_eq!(wrong(&with(&[opt, opt].concat(), 2)), 1);
    let mut later = opt;
    later[6] = 1;
    match Question::parse(&with(&later, 1)) {
        Err(Unread::Wrong(answer)) => {
            assert_eq!(code(&answer), 0);
            assert!(answer.ends_with(&[0, 0, 41, 0x04, 0xd0, 1, 0, 0, 0, 0, 0]));
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn any_message_is_read_and_every_answer_is_short(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        text in "[a-z]{1,63}(\\.[a-z]{1,63}){0,3}",
        kind in any::<u16>(),
    ) {
        let _ = Question::parse(&bytes);
        if bytes.len() > 12 {
            bytes[2..12].copy_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
            let _ = Question::parse(&bytes);
        }
        let (table, mut names) = (table(Reach::Public, &[]), Names::default());
        if let Ok(question) = Question::parse(&ask(&text, kind)) {
            let answer = question.answer(&respond(&table, &mut names, &question));
            prop_assert!(answer.len() <= MOST_ANSWER_BYTES);
        }
    }
}

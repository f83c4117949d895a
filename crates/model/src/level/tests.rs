use super::*;
use crate::envelope::{Defaults, EnvelopeSpec};

const TRUSTS: [Trust; 3] = [Trust::High, Trust::Medium, Trust::Low];
const BLASTS: [Blast; 3] = [Blast::Low, Blast::Medium, Blast::High];
const SENDINGS: [Sending; 3] = [Sending::Nothing, Sending::Bound, Sending::Open];

/// Every question, without a floor.
fn questions() -> impl Iterator<Item = Question> {
    let stakes =
        || SENDINGS.into_iter().flat_map(|egress| [true, false].map(|private| Stake { private, egress }));
    TRUSTS.into_iter().flat_map(move |trust| {
        BLASTS.into_iter().flat_map(move |blast| {
            stakes().map(move |stake| Question { asked: None, floor: None, trust, blast, stake })
        })
    })
}

fn usual() -> Question {
    let stake = Stake { private: true, egress: Sending::Open };
    Question { asked: None, floor: None, trust: Trust::Medium, blast: Blast::Medium, stake }
}

fn chosen(question: &Question) -> Choice {
    choose(question).unwrap()
}

#[test]
fn less_trust_or_more_blast_never_weakens_the_level() {
    for (t, trust) in TRUSTS.iter().enumerate() {
        for (b, blast) in BLASTS.iter().enumerate() {
            let here = required(*trust, *blast);
            assert!(TRUSTS.iter().skip(t).all(|less| required(*less, *blast) >= here));
            assert!(BLASTS.iter().skip(b).all(|more| required(*trust, *more) >= here));
        }
    }
}

#[test]
fn more_at_stake_never_weakens_the_level() {
    for question in questions() {
        let here = chosen(&question).level;
        let Stake { egress, .. } = question.stake;
        let private = Question { stake: Stake { private: true, ..question.stake }, ..question };
        assert!(chosen(&private).level >= here);
        for further in SENDINGS.into_iter().filter(|further| *further >= egress) {
            let further = Question { stake: Stake { egress: further, ..question.stake }, ..question };
            assert!(chosen(&further).level >= here);
        }
    }
}

#[test]
fn the_default_of_run_is_the_container() {
    assert_eq!(chosen(&usual()).level, Level::Container);
}

#[test]
fn the_three_together_need_a_kernel_of_their_own() {
    let question = Question { trust: Trust::Low, blast: Blast::Low, ..usual() };
    let choice = chosen(&question);
    assert_eq!(choice.level, Level::Gvisor);
    assert!(matches!(choice.reason, Reason::Trifecta { .. }), "{choice:?}");
    let without = |stake| chosen(&Question { stake, ..question }).level;
    assert_eq!(without(Stake { private: false, egress: Sending::Open }), Level::Container);
    assert_eq!(without(Stake { private: true, egress: Sending::Bound }), Level::Container);
    assert_eq!(without(Stake { private: true, egress: Sending::Nothing }), Level::Container);
    assert_eq!(chosen(&Question { trust: Trust::Medium, ..question }).level, Level::Container);
    assert_eq!(
        chosen(&Question { blast: Blast::High, ..question }).level,
        Level::Microvm,
        "the table asks for more"
    );
}

#[test]
fn nothing_is_chosen_below_the_floor_and_nothing_is_weakened_by_it() {
    for question in questions() {
        for floor in Level::ALL {
            let choice = chosen(&Question { floor: Some(floor), ..question });
            let without = chosen(&question);
            assert_eq!(choice.level, without.level.max(floor));
            assert_eq!(matches!(choice.reason, Reason::Floor { .. }), without.level < floor);
        }
    }
}

#[test]
fn a_level_that_is_named_is_taken_or_refused_and_never_replaced() {
    for asked in Level::ALL {
        for floor in Level::ALL {
            let answer = choose(&Question { asked: Some(asked), floor: Some(floor), ..usual() });
            match answer {
                Ok(choice) => {
                    assert!(asked >= floor && choice.level == asked && choice.reason == Reason::Asked)
                }
                Err(refused) => assert!(asked < floor && refused == BelowFloor { asked, floor }),
            }
        }
    }
}

#[test]
fn an_emulated_machine_stands_for_nothing_but_itself() {
    let rungs =
        [Rung { level: Level::Container, emulated: false }, Rung { level: Level::Microvm, emulated: true }];
    let table = chosen(&Question { trust: Trust::Low, blast: Blast::High, ..usual() });
    assert_eq!(table.level, Level::Microvm);
    assert_eq!(standing(&rungs, &table), None);
    let asked = chosen(&Question { asked: Some(Level::Microvm), ..usual() });
    assert_eq!(standing(&rungs, &asked), Some(Level::Microvm));
    let real = [Rung { level: Level::Microvm, emulated: false }];
    assert_eq!(standing(&real, &table), Some(Level::Microvm));
    assert_eq!(
        standing(&real, &chosen(&usual())),
        Some(Level::Microvm),
        "the stronger stands for the weaker"
    );
    assert_eq!(standing(&rungs, &chosen(&Question { asked: Some(Level::Process), ..usual() })), None);
}

#[test]
fn what_is_at_stake_is_read_from_the_envelope() {
    let stake = |text: &str| {
        let spec: EnvelopeSpec = toml::from_str(text).unwrap();
        Stake::of(&Envelope::check(&spec, &Defaults::for_tests()).unwrap())
    };
    assert_eq!(stake(""), Stake { private: false, egress: Sending::Nothing });
    assert!(stake("[filesystem]\nread-only = [\"/srv/data\"]").private);
    let egress = |allow: &str| stake(&format!("[network]\nallow = [{allow}]")).egress;
    assert_eq!(egress("\"example.com\""), Sending::Open);
    assert_eq!(egress("\"GET https://example.com/v1/**\""), Sending::Bound);
    assert_eq!(egress("\"https://example.com/v1/**\""), Sending::Open, "any method");
    assert_eq!(egress("\"GET https://example.com/**\""), Sending::Open, "any path");
    assert_eq!(egress("\"GET https://example.com/v1/**\", \"example.com:22\""), Sending::Open);
}

//! The filter of a kernel that asks nobody.

use super::{ENOSYS, SetId, Shared, refusal, table};
use fumehood_model::envelope::Syscalls;
use fumehood_sys::bpf::{Action, Filter, Rule};

/// The same filter where there is nobody to be asked: what would be put to the keeper fails at once, as the keeper
/// would answer.
#[must_use]
pub fn filter_alone(profile: Syscalls, set_id: SetId) -> Filter {
    let mut table = table(profile, set_id, Shared::Nothing);
    for (number, rule) in &mut table {
        let (_, errno) = refusal(i32::try_from(*number).unwrap_or(-1));
        let answer = Action::Errno(u16::try_from(errno).unwrap_or(1));
        let settle = |action: &mut Action| {
            if *action == Action::Ask {
                *action = answer;
            }
        };
        match rule {
            Rule::Always(action) => settle(action),
            Rule::Cases { cases, otherwise } => {
                cases.iter_mut().for_each(|(_, action)| settle(action));
                settle(otherwise);
            }
        }
    }
    Filter::compile(&table, ENOSYS)
}

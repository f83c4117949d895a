//! The shortest edit between two lists of lines, and its hunks.
//!
//! The greedy search by the number of edits: for each count the furthest point on every diagonal is
//! kept, and the way is traced back from the end. Its cost grows with the square of the edits, so both
//! are capped; past the cap there is no answer, and the caller says "differs".

use std::ops::Range;

/// Edits after which the search gives up. Its traces take about 32 MiB then.
const EDITS: usize = 2_000;
/// Lines that are shown around a change.
const AROUND: usize = 3;

/// One line of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    /// In both: index in the old list, index in the new list.
    Keep(usize, usize),
    Delete(usize),
    Insert(usize),
}

/// A part of a script to be shown together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hunk {
    pub(super) edits: Vec<Edit>,
    /// Lines of the old list, from zero.
    pub(super) old: Range<usize>,
    pub(super) new: Range<usize>,
}

/// The furthest points of one count of edits, by diagonal.
struct Front(Vec<usize>);

// === impl Front ===

impl Front {
    /// Where the diagonal `k` of the search with `edits` edits is kept: diagonals run from `-edits - 1`.
    fn slot(k: isize, edits: usize) -> usize {
        usize::try_from(k.saturating_add_unsigned(edits + 1)).unwrap_or(0)
    }

    fn at(&self, k: isize, edits: usize) -> usize {
        self.0.get(Self::slot(k, edits)).copied().unwrap_or(0)
    }
}

/// The script that turns `old` into `new`; `None` when it is longer than the cap.
pub(super) fn edits(old: &[&[u8]], new: &[&[u8]]) -> Option<Vec<Edit>> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old_rest, new_rest) = (old.get(head..)?, new.get(head..)?);
    let tail = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    let a = old_rest.get(..old_rest.len() - tail)?;
    let b = new_rest.get(..new_rest.len() - tail)?;
    let mut script: Vec<Edit> = (0..head).map(|line| Edit::Keep(line, line)).collect();
    script.extend(middle(a, b)?.into_iter().map(|edit| match edit {
        Edit::Keep(x, y) => Edit::Keep(x + head, y + head),
        Edit::Delete(x) => Edit::Delete(x + head),
        Edit::Insert(y) => Edit::Insert(y + head),
    }));
    script.extend((0..tail).map(|line| Edit::Keep(head + a.len() + line, head + b.len() + line)));
    Some(script)
}

fn middle(a: &[&[u8]], b: &[&[u8]]) -> Option<Vec<Edit>> {
    let goal = diagonal(a.len(), b.len());
    let mut fronts: Vec<Front> = Vec::new();
    for count in 0..=EDITS.min(a.len() + b.len()) {
        let before = fronts.last();
        let mut front = Front(vec![0; 2 * count + 3]);
        let reach = isize::try_from(count).ok()?;
        for k in (-reach..=reach).step_by(2) {
            let mut x = before.map_or(0, |before| start(before, k, count));
            let mut y = x.checked_add_signed(-k).unwrap_or(usize::MAX);
            while x < a.len() && y < b.len() && a.get(x) == b.get(y) {
                x += 1;
                y += 1;
            }
            if let Some(slot) = front.0.get_mut(Front::slot(k, count)) {
                *slot = x;
            }
            if k == goal && x >= a.len() && y >= b.len() {
                return Some(trace(&fronts, a.len(), b.len()));
            }
        }
        fronts.push(front);
    }
    None
}

/// Whether the best way to diagonal `k` with `count` edits is an insertion (from `k + 1`).
fn comes_down(before: &Front, k: isize, count: usize) -> bool {
    let reach = isize::try_from(count).unwrap_or(isize::MAX);
    k == -reach || (k != reach && before.at(k - 1, count - 1) < before.at(k + 1, count - 1))
}

fn start(before: &Front, k: isize, count: usize) -> usize {
    if comes_down(before, k, count) { before.at(k + 1, count - 1) } else { before.at(k - 1, count - 1) + 1 }
}

/// Walks back from the end through the fronts.
fn trace(fronts: &[Front], mut x: usize, mut y: usize) -> Vec<Edit> {
    let mut script = Vec::new();
    for (at, before) in fronts.iter().enumerate().rev() {
        let k = diagonal(x, y);
        let down = comes_down(before, k, at + 1);
        let start_x = start(before, k, at + 1);
        while x > start_x && x > 0 && y > 0 {
            (x, y) = (x - 1, y - 1);
            script.push(Edit::Keep(x, y));
        }
        if down {
            y = y.saturating_sub(1);
            script.push(Edit::Insert(y));
        } else {
            x = x.saturating_sub(1);
            script.push(Edit::Delete(x));
        }
    }
    while x > 0 && y > 0 {
        (x, y) = (x - 1, y - 1);
        script.push(Edit::Keep(x, y));
    }
    script.reverse();
    script
}

fn diagonal(x: usize, y: usize) -> isize {
    isize::try_from(x).unwrap_or(isize::MAX) - isize::try_from(y).unwrap_or(isize::MAX)
}

/// Cuts a script into the parts that changed, with a few lines around each.
pub(super) fn hunks(script: &[Edit]) -> Vec<Hunk> {
    let changed = script.iter().enumerate().filter(|(_, edit)| !matches!(edit, Edit::Keep(..)));
    let mut spans: Vec<Range<usize>> = Vec::new();
    for (at, _) in changed {
        let span = at.saturating_sub(AROUND)..(at + AROUND + 1).min(script.len());
        match spans.last_mut() {
            Some(last) if span.start <= last.end => last.end = span.end,
            Some(_) | None => spans.push(span),
        }
    }
    let counts = |edits: &[Edit]| {
        let old = edits.iter().filter(|edit| !matches!(edit, Edit::Insert(_))).count();
        (old, edits.iter().filter(|edit| !matches!(edit, Edit::Delete(_))).count())
    };
    let hunk = |span: Range<usize>| {
        let (old_start, new_start) = counts(script.get(..span.start).unwrap_or_default());
        let edits = script.get(span).unwrap_or_default().to_vec();
        let (old, new) = counts(&edits);
        Hunk { edits, old: old_start..old_start + old, new: new_start..new_start + new }
    };
    spans.into_iter().map(hunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(text: &str) -> Vec<&[u8]> {
        text.split_terminator(',').map(str::as_bytes).collect()
    }

    fn length(script: &[Edit]) -> usize {
        script.iter().filter(|edit| !matches!(edit, Edit::Keep(..))).count()
    }

    #[test]
    fn the_script_is_the_shortest() {
        for (old, new, expected) in [
            ("", "", 0),
            ("a", "a", 0),
            ("", "a,b", 2),
            ("a,b", "", 2),
            ("a,b,c,a,b,b,a", "c,b,a,b,a,c", 5),
            ("x", "y", 2),
        ] {
            assert_eq!(length(&edits(&lines(old), &lines(new)).unwrap()), expected, "{old} {new}");
        }
    }

    #[test]
    fn a_script_past_the_cap_is_no_script() {
        let numbers: Vec<String> = (0..9_000).map(|n| n.to_string()).collect();
        let old: Vec<&[u8]> = numbers.iter().take(4_500).map(String::as_bytes).collect();
        let new: Vec<&[u8]> = numbers.iter().skip(4_500).map(String::as_bytes).collect();
        assert_eq!(edits(&old, &new), None);
    }

    #[test]
    fn hunks_keep_changes_apart_that_are_far_apart() {
        let old: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        let mut new = old.clone();
        new[5] = "x".to_owned();
        new.remove(30);
        let (old, new): (Vec<&[u8]>, Vec<&[u8]>) =
            (old.iter().map(String::as_bytes).collect(), new.iter().map(String::as_bytes).collect());
        let hunks = hunks(&edits(&old, &new).unwrap());
        let ranges: Vec<_> = hunks.iter().map(|hunk| (hunk.old.clone(), hunk.new.clone())).collect();
        assert_eq!(ranges, [(2..9, 2..9), (27..34, 27..33)]);
    }

    proptest! {
        #[test]
        fn a_script_turns_one_into_the_other(
            old in proptest::collection::vec(0_u8..4, 0..40),
            new in proptest::collection::vec(0_u8..4, 0..40),
        ) {
            let old: Vec<&[u8]> = old.chunks(1).collect();
            let new: Vec<&[u8]> = new.chunks(1).collect();
            let script = edits(&old, &new).unwrap();
            let (mut from, mut made) = (Vec::new(), Vec::new());
            for edit in &script {
                match edit {
                    Edit::Keep(x, y) => { prop_assert_eq!(old[*x], new[*y]); from.push(old[*x]); made.push(new[*y]); }
                    Edit::Delete(x) => from.push(old[*x]),
                    Edit::Insert(y) => made.push(new[*y]),
                }
            }
            prop_assert_eq!(from, old);
            prop_assert_eq!(made, new);
            let all = hunks(&script).iter().map(|hunk| length(&hunk.edits)).sum::<usize>();
            prop_assert_eq!(all, length(&script));
        }
    }
}

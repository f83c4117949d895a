//! System call filters: from a table of rules to a search tree in the kernel's filter language.
//!
//! A linear filter costs every call of every program a walk through the table; the tree costs some
//! nine comparisons. The default is refusal: a number that is not in the table gets `otherwise`.

use crate::raw::{self, Result, syscall};
use std::collections::BTreeMap;
use std::os::fd::RawFd;

/// What the kernel does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allow,
    /// Fail with this error number.
    Errno(u16),
    /// Ask whoever holds the filter's [`crate::notify::Listener`], and wait for the answer.
    Ask,
    /// End the process with SIGSYS.
    Kill,
}

/// A condition on the low 32 bits of one argument, where the kernel itself reads 32 bits, or on all
/// 64 where it reads 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// `argument & mask == value`, low half only.
    Low { argument: u8, mask: u32, value: u32 },
    /// The upper half is zero and `low & mask == value`.
    Whole { argument: u8, mask: u32, value: u32 },
}

/// What becomes of one system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    Always(Action),
    /// The first case whose tests all hold decides; else `otherwise`.
    Cases {
        cases: Vec<(Vec<Test>, Action)>,
        otherwise: Action,
    },
}

/// A compiled filter.
#[derive(Clone, Debug)]
pub struct Filter {
    program: Vec<Instruction>,
}

/// `struct sock_filter`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    value: u32,
}

/// `struct sock_fprog`
#[repr(C)]
struct ProgramHeader {
    length: u16,
    instructions: *const Instruction,
}

// `include/uapi/linux/bpf_common.h`, `seccomp.h`, `audit.h`
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;
const ARCHITECTURE: u32 = 0xC000_003E;
/// Set in the number of a call made by the x32 convention.
const X32_BIT: u32 = 0x4000_0000;

// === impl Filter ===

impl Filter {
    /// Compiles `rules`; calls of another architecture, or by the x32 convention, are killed.
    ///
    /// Small and shallow on purpose: when it is installed, the kernel translates it to machine code and
    /// walks it once for every call there is, so each instruction costs every start of a sandbox.
    pub fn compile(rules: &BTreeMap<u32, Rule>, otherwise: Action) -> Self {
        let mut program = vec![
            Instruction::load(OFFSET_ARCHITECTURE),
            Instruction::jump(JUMP_EQUAL, ARCHITECTURE, 1, 0),
            Instruction::ret(Action::Kill),
            Instruction::load(OFFSET_NUMBER),
        ];
        let mut writer = Writer::default();
        let first = writer.tree(&ranges(rules, otherwise));
        debug_assert_eq!(first + 1, writer.reversed.len(), "control must fall into the tree");
        program.extend(writer.reversed.into_iter().rev());
        Self { program }
    }

    /// The program as a kernel takes it: `struct sock_filter` one after the other.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let one = |step: &Instruction| {
            let [code_0, code_1] = step.code.to_ne_bytes();
            let [a, b, c, d] = step.value.to_ne_bytes();
            [code_0, code_1, step.yes, step.no, a, b, c, d]
        };
        self.program.iter().flat_map(one).collect()
    }

    /// How many instructions it has.
    pub fn len(&self) -> usize {
        self.program.len()
    }

    /// Whether it has none; it never does.
    pub fn is_empty(&self) -> bool {
        self.program.is_empty()
    }

    /// Installs it on the calling thread, for good. Nobody is asked.
    ///
    /// Preconditions: `no_new_privs`, and no rule with [`Action::Ask`], which would then be a refusal.
    pub(crate) fn install(&self) -> Result<()> {
        self.set(0).map(drop)
    }

    /// Installs it on the calling thread and gives the descriptor of its listener. Kernel calls only.
    pub(crate) fn enforce(&self) -> Result<RawFd> {
        const NEW_LISTENER: usize = 8;
        self.set(NEW_LISTENER).map(raw::to_fd)
    }

    fn set(&self, flags: usize) -> Result<usize> {
        const SECCOMP_SET_MODE_FILTER: usize = 1;
        let header = ProgramHeader { length: self.program.len() as u16, instructions: self.program.as_ptr() };
        let pointer = std::ptr::from_ref(&header) as usize;
        // SAFETY: the header and the instructions are live; the kernel copies and checks them.
        unsafe { syscall(libc::SYS_seccomp, [SECCOMP_SET_MODE_FILTER, flags, pointer, 0, 0, 0]) }
    }
}

// === impl Action ===

impl Action {
    const fn value(self) -> u32 {
        match self {
            Self::Allow => 0x7fff_0000,
            Self::Errno(number) => 0x0005_0000 | number as u32,
            Self::Ask => 0x7fc0_0000,
            Self::Kill => 0x8000_0000,
        }
    }
}

// === impl Instruction ===

impl Instruction {
    const fn load(offset: u32) -> Self {
        Self { code: LOAD, yes: 0, no: 0, value: offset }
    }

    const fn jump(code: u16, value: u32, yes: u8, no: u8) -> Self {
        Self { code, yes, no, value }
    }

    const fn ret(action: Action) -> Self {
        Self { code: RETURN, yes: 0, no: 0, value: action.value() }
    }
}

/// Neighbouring numbers with the same rule share a leaf: (first number, leaf code).
fn ranges(rules: &BTreeMap<u32, Rule>, otherwise: Action) -> Vec<(u32, Vec<Instruction>)> {
    let (otherwise, x32) = (Rule::Always(otherwise), Rule::Always(Action::Kill));
    let mut ranges: Vec<(u32, &Rule)> = Vec::new();
    let mut next = 0;
    for (number, rule) in rules.range(..X32_BIT) {
        if *number > next {
            ranges.push((next, &otherwise));
        }
        ranges.push((*number, rule));
        next = number + 1;
    }
    ranges.extend([(next, &otherwise), (X32_BIT, &x32)]);
    ranges.dedup_by(|later, earlier| later.1 == earlier.1);
    ranges.into_iter().map(|(first, rule)| (first, leaf(rule))).collect()
}

fn leaf(rule: &Rule) -> Vec<Instruction> {
    match rule {
        Rule::Always(action) => vec![Instruction::ret(*action)],
        Rule::Cases { cases, otherwise } => {
            let mut code = Vec::new();
            for (tests, action) in cases {
                let mut case: Vec<Instruction> =
                    tests.iter().rev().fold(vec![Instruction::ret(*action)], |rest, test| {
                        let mut here = checks(*test, rest.len());
                        here.extend(rest);
                        here
                    });
                code.append(&mut case);
            }
            code.push(Instruction::ret(*otherwise));
            code
        }
    }
}

/// Code that falls through when `test` holds and else jumps over the `rest` instructions after it.
fn checks(test: Test, rest: usize) -> Vec<Instruction> {
    let over = |more: usize| u8::try_from(rest + more).unwrap_or(u8::MAX);
    let low = |argument: u8| OFFSET_ARGUMENTS + 8 * u32::from(argument);
    let masked = |argument: u8, mask: u32, value: u32| {
        vec![
            Instruction::load(low(argument)),
            Instruction { code: AND, yes: 0, no: 0, value: mask },
            Instruction::jump(JUMP_EQUAL, value, 0, over(0)),
        ]
    };
    match test {
        Test::Low { argument, mask, value } => masked(argument, mask, value),
        Test::Whole { argument, mask, value } => {
            let mut code =
                vec![Instruction::load(low(argument) + 4), Instruction::jump(JUMP_EQUAL, 0, 0, over(3))];
            code.extend(masked(argument, mask, value));
            code
        }
    }
}

/// Writes a balanced search tree from its end to its beginning, so that what is jumped to is there already
/// and leaves that only return are shared.
#[derive(Default)]
struct Writer {
    /// Last instruction first.
    reversed: Vec<Instruction>,
    /// Where each plain return was written last.
    returns: Vec<(Instruction, usize)>,
}

/// The farthest that a conditional jump reaches.
const REACH: usize = 255;

// === impl Writer ===

impl Writer {
    /// Writes the tree of `ranges` and gives the place of its first instruction.
    fn tree(&mut self, ranges: &[(u32, Vec<Instruction>)]) -> usize {
        match ranges {
            [] => self.leaf(&[Instruction::ret(Action::Kill)]),
            [(_, code)] => self.leaf(code),
            _ => {
                let (left, right) = ranges.split_at(ranges.len() / 2);
                let first_right = right.first().map_or(0, |(first, _)| *first);
                let (right, left) = (self.tree(right), self.tree(left));
                let (right, left) = (self.near(right), self.near(left));
                let (yes, no) = (self.distance(right), self.distance(left));
                self.push(Instruction::jump(JUMP_AT_LEAST, first_right, yes, no))
            }
        }
    }

    fn leaf(&mut self, code: &[Instruction]) -> usize {
        if let [only] = code {
            // Four more than needed may be written before the jump to it.
            let near = |place: usize| self.reversed.len() - place + 4 < REACH;
            let known = self.returns.iter().find(|(known, place)| known == only && near(*place));
            if let Some((_, place)) = known {
                return *place;
            }
            let place = self.push(*only);
            self.returns.retain(|(known, _)| known != only);
            self.returns.push((*only, place));
            return place;
        }
        code.iter().rev().fold(0, |_, instruction| self.push(*instruction))
    }

    /// A place that the next conditional jumps reach and that leads to `place`.
    fn near(&mut self, place: usize) -> usize {
        if self.reversed.len() - place + 1 < REACH {
            return place;
        }
        let distance = u32::try_from(self.reversed.len() - place - 1).unwrap_or(u32::MAX);
        self.push(Instruction { code: JUMP, yes: 0, no: 0, value: distance })
    }

    /// From the next instruction to `place`.
    fn distance(&self, place: usize) -> u8 {
        u8::try_from(self.reversed.len() - place - 1).unwrap_or(u8::MAX)
    }

    fn push(&mut self, instruction: Instruction) -> usize {
        self.reversed.push(instruction);
        self.reversed.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter answers to a call, by the kernel's own semantics.
    fn run(filter: &Filter, architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let load = |offset: u32| match offset {
            OFFSET_NUMBER => number,
            OFFSET_ARCHITECTURE => architecture,
            _ => {
                let at = offset - OFFSET_ARGUMENTS;
                let whole = arguments[(at / 8) as usize];
                if at.is_multiple_of(8) { whole as u32 } else { (whole >> 32) as u32 }
            }
        };
        let (mut at, mut accumulator) = (0_usize, 0_u32);
        loop {
            let instruction = filter.program[at];
            at += 1;
            let jump = |yes: bool| usize::from(if yes { instruction.yes } else { instruction.no });
            match instruction.code {
                LOAD => accumulator = load(instruction.value),
                AND => accumulator &= instruction.value,
                JUMP => at += instruction.value as usize,
                JUMP_EQUAL => at += jump(accumulator == instruction.value),
                JUMP_AT_LEAST => at += jump(accumulator >= instruction.value),
                RETURN => return instruction.value,
                other => panic!("code {other:#x}"),
            }
        }
    }

    fn rules() -> BTreeMap<u32, Rule> {
        // Every third number allowed, so that the tree is deep and its jumps are long.
        let mut rules: BTreeMap<u32, Rule> =
            (0..460).step_by(3).map(|number| (number, Rule::Always(Action::Allow))).collect();
        let socket = [1, 2, 10]
            .map(|family| (vec![Test::Low { argument: 0, mask: u32::MAX, value: family }], Action::Allow));
        rules.insert(41, Rule::Cases { cases: socket.to_vec(), otherwise: Action::Errno(97) });
        let flags = vec![Test::Whole { argument: 0, mask: 0x7E02_0080, value: 0 }];
        rules.insert(56, Rule::Cases { cases: vec![(flags, Action::Allow)], otherwise: Action::Errno(1) });
        rules
    }

    #[test]
    fn the_tree_answers_as_the_table_does() {
        let table = rules();
        let filter = Filter::compile(&table, Action::Errno(38));
        for number in 0..500 {
            let expected = match table.get(&number) {
                Some(Rule::Always(action)) => action.value(),
                Some(Rule::Cases { .. }) => continue,
                None => Action::Errno(38).value(),
            };
            assert_eq!(run(&filter, ARCHITECTURE, number, [0; 6]), expected, "call {number}");
        }
    }

    #[test]
    fn arguments_are_judged_as_the_kernel_reads_them() {
        let filter = Filter::compile(&rules(), Action::Errno(38));
        let socket = |family: u64| run(&filter, ARCHITECTURE, 41, [family, 0, 0, 0, 0, 0]);
        for family in [1, 2, 10, (7 << 32) | 2] {
            assert_eq!(socket(family), Action::Allow.value(), "{family:#x}");
        }
        for family in [0, 3, 16, 17, 40, (2 << 32) | 40] {
            assert_eq!(socket(family), Action::Errno(97).value(), "{family:#x}");
        }
        let clone = |flags: u64| run(&filter, ARCHITECTURE, 56, [flags, 0, 0, 0, 0, 0]);
        assert_eq!(clone(0x0011), Action::Allow.value());
        assert_eq!(clone(0x1000_0000), Action::Errno(1).value());
        assert_eq!(clone(0x1_0000_0000), Action::Errno(1).value());
    }

    #[test]
    fn other_architectures_and_x32_are_killed() {
        let filter = Filter::compile(&rules(), Action::Errno(38));
        assert_eq!(run(&filter, 0x4000_0003, 0, [0; 6]), Action::Kill.value());
        assert_eq!(run(&filter, ARCHITECTURE, X32_BIT, [0; 6]), Action::Kill.value());
    }
}

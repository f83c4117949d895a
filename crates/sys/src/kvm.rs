//! Whether this host's KVM can run an operating system: asked by a guest of some forty instructions' bytes.
//!
//! That `/dev/kvm` opens says little: some hosts answer every request and then run no kernel. So the guest does
//! what a kernel's first process does: it starts in user mode, reads the processor's features, meets a breakpoint,
//! and makes a system call that returns and one that does not. Each must go as on a processor.
//!
//! ```text
//! 0x1000  system call and breakpoint handlers (kernel)     0x5000  task state: the kernel's stack is at 0x7000
//! 0x2000  the program (user)                               0x8000  four levels of page tables, 64 KiB mapped
//! 0x3000  interrupt table      0x4000  segments
//! ```

use crate::process::{self, Forked};
use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, Msrs, kvm_msr_entry, kvm_segment, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::time::Duration;

/// A guest that loops is ended; one that works takes some milliseconds.
const LIMIT: Duration = Duration::from_secs(2);
const MEMORY_BYTES: usize = 0x1_0000;

const SYSTEM_CALL: usize = 0x1000;
const BREAKPOINT: usize = 0x1100;
const PROGRAM: usize = 0x2000;
const INTERRUPTS: usize = 0x3000;
const SEGMENTS: usize = 0x4000;
const TASK: usize = 0x5000;
const STACK: u64 = 0x7000;
const TABLES: [usize; 4] = [0x8000, 0x9000, 0xA000, 0xB000];

/// Where the guest says what it saw.
const FEATURES_PORT: u16 = 0x10;
const BREAKPOINTS_PORT: u16 = 0x11;
/// A feature bit (`popcnt`) that is taken from it.
const MASKED: u32 = 1 << 23;

/// Kernel mode: checks that it is, returns from the first call, and tells what was seen at the second.
#[rustfmt::skip]
const SYSTEM_CALL_CODE: &[u8] = &[
    0x8C, 0xC8,                   // mov eax, cs
    0xA8, 0x03,                   // test al, 3
    0x75, 0x14,                   // jnz end
    0x85, 0xED,                   // test ebp, ebp
    0x75, 0x08,                   // jnz tell
    0xBD, 0x01, 0x00, 0x00, 0x00, // mov ebp, 1
    0x48, 0x0F, 0x07,             // sysretq
    0x89, 0xF0,                   // tell: mov eax, esi
    0xE7, FEATURES_PORT as u8,    // out FEATURES_PORT, eax
    0x89, 0xF8,                   // mov eax, edi
    0xE7, BREAKPOINTS_PORT as u8, // out BREAKPOINTS_PORT, eax
    0xF4,                         // end: hlt
];
#[rustfmt::skip]
const BREAKPOINT_CODE: &[u8] = &[
    0xFF, 0xC7, // inc edi
    0x48, 0xCF, // iretq
];
#[rustfmt::skip]
const PROGRAM_CODE: &[u8] = &[
    0xB8, 0x01, 0x00, 0x00, 0x00, // mov eax, 1
    0x31, 0xC9,                   // xor ecx, ecx
    0x0F, 0xA2,                   // cpuid
    0x89, 0xCE,                   // mov esi, ecx
    0xCC,                         // int3
    0x0F, 0x05,                   // syscall
    0x0F, 0x05,                   // syscall
];

/// Whether a guest kernel would run here.
///
/// # Errors
/// Why not, as a phrase.
///
/// Preconditions: the caller has one thread.
pub fn try_guest() -> Result<(), String> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/kvm") {
        return Err(format!("/dev/kvm can not be opened: {error}"));
    }
    // In a child: what KVM does with a guest that it can not run may last for ever.
    let (read, write) = process::pipe(false).map_err(|error| error.to_string())?;
    match process::fork().map_err(|error| error.to_string())? {
        Forked::Child => {
            drop(read);
            let said = guest().err().unwrap_or_else(|| "works".to_owned());
            let _ = File::from(write).write_all(said.as_bytes());
            process::exit_now(0)
        }
        Forked::Parent { pid } => {
            drop(write);
            let pidfd = process::open_pidfd(pid).map_err(|error| error.to_string())?;
            let gone = process::wait_gone(std::os::fd::AsFd::as_fd(&pidfd), LIMIT).unwrap_or(false);
            if !gone {
                let _ = process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), 9);
            }
            process::reap(&pidfd);
            let mut said = String::new();
            let _ = File::from(read).read_to_string(&mut said);
            match said.as_str() {
                "works" => Ok(()),
                "" => Err("its guest did not end in two seconds".to_owned()),
                why => Err(why.to_owned()),
            }
        }
    }
}

/// Runs it in this process.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other exit is one that a plain guest does not make"
)]
fn guest() -> Result<(), String> {
    let step = |what: &'static str| move |error: kvm_ioctls::Error| format!("KVM can not {what}: {error}");
    let kvm = Kvm::new().map_err(step("be opened"))?;
    let machine = kvm.create_vm().map_err(step("make a machine"))?;
    let memory = memory();
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY_BYTES as u64,
        userspace_addr: memory.as_ptr().addr() as u64,
    };
    // SAFETY: the region is that of `memory`, which outlives the machine: it is leaked, and this process ends.
    unsafe { machine.set_user_memory_region(region) }.map_err(step("give a machine memory"))?;
    let mut processor = machine.create_vcpu(0).map_err(step("make a processor"))?;
    let mut features = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(step("say its features"))?;
    mask(&mut features);
    processor.set_cpuid2(&features).map_err(step("set a processor's features"))?;
    prepare(&processor).map_err(step("set a processor's registers"))?;
    let (mut seen, mut breakpoints) = (None, None);
    loop {
        match processor.run().map_err(step("run a processor"))? {
            VcpuExit::IoOut(FEATURES_PORT, data) => seen = number(data),
            VcpuExit::IoOut(BREAKPOINTS_PORT, data) => breakpoints = number(data),
            VcpuExit::Hlt => break,
            VcpuExit::Shutdown => {
                return Err(
                    "a system call or breakpoint from user mode does not reach the guest's kernel".to_owned()
                );
            }
            other => return Err(format!("KVM gave up on a plain guest: {other:?}")),
        }
    }
    match (seen, breakpoints) {
        (Some(seen), _) if seen & MASKED != 0 => {
            Err("a guest sees processor features that were taken from it".to_owned())
        }
        (Some(_), Some(1)) => Ok(()),
        (Some(_), other) => Err(format!("a guest met {other:?} breakpoints, not one")),
        (None, _) => Err("a system call from user mode does not become the kernel's".to_owned()),
    }
}

/// The guest's memory, for the life of this process.
fn memory() -> &'static [u8] {
    let mut bytes = vec![0_u8; MEMORY_BYTES + 0x1000].leak();
    // The kernel wants whole pages.
    let skip = bytes.as_ptr().align_offset(0x1000);
    bytes = bytes.get_mut(skip..skip + MEMORY_BYTES).unwrap_or_default();
    let mut put = |at: usize, content: &[u8]| {
        bytes.iter_mut().skip(at).zip(content).for_each(|(place, byte)| *place = *byte);
    };
    put(SYSTEM_CALL, SYSTEM_CALL_CODE);
    put(BREAKPOINT, BREAKPOINT_CODE);
    put(PROGRAM, PROGRAM_CODE);
    // An interrupt gate that user mode may use, for vector 3.
    let gate = [BREAKPOINT as u16, 0x08, 0xEE00, 0];
    gate.iter().zip(0..).for_each(|(half, place)| put(INTERRUPTS + 3 * 16 + place * 2, &half.to_le_bytes()));
    for (place, segment) in [
        0_u64,
        0x00AF_9B00_0000_FFFF, // kernel code
        0x00CF_9300_0000_FFFF, // kernel data
        0x00CF_F300_0000_FFFF, // user data
        0x00AF_FB00_0000_FFFF, // user code
        0x0000_8B00_5000_0067, // task
        0,
    ]
    .iter()
    .enumerate()
    {
        put(SEGMENTS + place * 8, &segment.to_le_bytes());
    }
    put(TASK + 4, &STACK.to_le_bytes());
    // Present, writable, for user mode too; what a page really allows is said by the last level.
    let [top, second, third, last] = TABLES;
    for (at, next) in [(top, second), (second, third), (third, last)] {
        put(at, &(next as u64 | 7).to_le_bytes());
    }
    for page in 0..MEMORY_BYTES / 0x1000 {
        let user = if page * 0x1000 == PROGRAM { 4 } else { 0 };
        put(last + page * 8, &((page * 0x1000) as u64 | 3 | user).to_le_bytes());
    }
    bytes
}

fn mask(features: &mut CpuId) {
    for entry in features.as_mut_slice().iter_mut().filter(|entry| entry.function == 1) {
        entry.ecx &= !MASKED;
    }
}

/// Sixty-four bit user mode, at the program.
fn prepare(processor: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let segment = |selector, kind, ring, long| kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector,
        type_: kind,
        present: 1,
        dpl: ring,
        db: 1 - long,
        s: 1,
        l: long,
        g: 1,
        ..kvm_segment::default()
    };
    let mut special = processor.get_sregs()?;
    special.cs = segment(0x23, 0xB, 3, 1);
    for data in [&mut special.ss, &mut special.ds, &mut special.es, &mut special.fs, &mut special.gs] {
        *data = segment(0x1B, 0x3, 3, 0);
    }
    special.tr = kvm_segment {
        base: TASK as u64,
        limit: 0x67,
        selector: 0x28,
        type_: 0xB,
        present: 1,
        ..kvm_segment::default()
    };
    (special.gdt.base, special.gdt.limit) = (SEGMENTS as u64, 7 * 8 - 1);
    (special.idt.base, special.idt.limit) = (INTERRUPTS as u64, 4 * 16 - 1);
    special.cr0 = 0x8000_0031;
    special.cr3 = TABLES.first().copied().unwrap_or_default() as u64;
    special.cr4 = 0x20;
    special.efer = 0x501;
    processor.set_sregs(&special)?;
    let mut registers = processor.get_regs()?;
    (registers.rip, registers.rsp, registers.rflags) = (PROGRAM as u64, STACK, 2);
    (registers.rdi, registers.rbp) = (0, 0);
    processor.set_regs(&registers)?;
    // STAR, LSTAR and the mask of flags.
    let entries = [(0xC000_0081, 0x0013_0008_0000_0000), (0xC000_0082, SYSTEM_CALL as u64), (0xC000_0084, 0)]
        .map(|(index, data)| kvm_msr_entry { index, data, ..kvm_msr_entry::default() });
    let wanted = Msrs::from_entries(&entries).map_err(|_| kvm_ioctls::Error::new(libc::EINVAL))?;
    match processor.set_msrs(&wanted)? {
        3 => Ok(()),
        _ => Err(kvm_ioctls::Error::new(libc::ENXIO)),
    }
}

fn number(data: &[u8]) -> Option<u32> {
    data.first_chunk().copied().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_jumps_lead_where_they_should() {
        let at = |place: usize| usize::from(SYSTEM_CALL_CODE[place]);
        assert_eq!(SYSTEM_CALL_CODE[6 + at(5)], 0xF4, "the end");
        assert_eq!(SYSTEM_CALL_CODE[10 + at(9)..][..2], [0x89, 0xF0], "where it tells");
    }

    #[test]
    fn the_answer_comes_in_time_and_is_the_same_each_time() {
        let began = std::time::Instant::now();
        let first = guest();
        assert!(began.elapsed() < LIMIT, "{first:?}");
        assert_eq!(guest().is_ok(), first.is_ok());
    }
}

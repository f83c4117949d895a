//! Memory for one thread: blocks of powers of two, given back to a list of their size.
//!
//! What is larger than a page run comes from the kernel by itself, and goes back to it.

use crate::call;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;

/// Below this blocks are cut from a run of pages.
const LARGEST: usize = 64 * 1024;
const SMALLEST: usize = 32;
/// Sizes from the smallest to the largest.
const CLASSES: usize = 12;
const RUN_BYTES: usize = 256 * 1024;

struct Heap(UnsafeCell<State>);

struct State {
    /// Of each size, the first free block; it holds the address of the next.
    free: [*mut u8; CLASSES],
    at: *mut u8,
    left: usize,
}

// SAFETY: this program has one thread. A process that is being started shares its memory, stands in for it
// meanwhile, and allocates nothing.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap =
    Heap(UnsafeCell::new(State { free: [ptr::null_mut(); CLASSES], at: ptr::null_mut(), left: 0 }));

// SAFETY: a block is handed out once until it is given back, is as large as its class, and is aligned to its
// size up to a page, which covers every layout that is taken.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size().max(layout.align());
        if bytes > LARGEST {
            return pages(bytes);
        }
        // SAFETY: one thread (see `Sync`), and no reference to the state is kept.
        let state = unsafe { &mut *self.0.get() };
        let class = class(bytes);
        let Some(first) = state.free.get_mut(class) else { return ptr::null_mut() };
        if !first.is_null() {
            let block = *first;
            // SAFETY: a free block holds the address of the next one.
            *first = unsafe { block.cast::<*mut u8>().read() };
            return block;
        }
        state.cut(SMALLEST << class)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let bytes = layout.size().max(layout.align());
        if bytes > LARGEST {
            // SAFETY: `alloc` mapped it for this size, and nobody uses it any more.
            let _ = unsafe { call::raw(11, [call::address(block), bytes as u64, 0, 0, 0, 0]) };
            return;
        }
        // SAFETY: as in `alloc`.
        let state = unsafe { &mut *self.0.get() };
        if let Some(first) = state.free.get_mut(class(bytes)) {
            // SAFETY: the block is ours again, and at least as large as an address.
            unsafe { block.cast::<*mut u8>().write(*first) };
            *first = block;
        }
    }
}

// === impl State ===

impl State {
    /// A fresh block. What is left of a run that is too small for it stays unused.
    fn cut(&mut self, bytes: usize) -> *mut u8 {
        if self.left < bytes {
            self.at = pages(RUN_BYTES);
            if self.at.is_null() {
                self.left = 0;
                return ptr::null_mut();
            }
            self.left = RUN_BYTES;
        }
        // Runs are cut from the end, where a block of any size up to a page is aligned to it if the larger
        // ones came first; so the place is rounded down.
        let place = (self.left - bytes) & !(bytes.min(4096) - 1);
        self.left = place;
        self.at.wrapping_add(place)
    }
}

fn class(bytes: usize) -> usize {
    let size = bytes.max(SMALLEST).next_power_of_two();
    (size.trailing_zeros() - SMALLEST.trailing_zeros()) as usize
}

/// Fresh pages of the kernel's, or null.
fn pages(bytes: usize) -> *mut u8 {
    // PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS.
    // SAFETY: without MAP_FIXED the kernel picks free addresses, so no memory in use is touched.
    let at = unsafe { call::raw(9, [0, bytes as u64, 3, 0x22, call::word(-1), 0]) };
    at.map_or(ptr::null_mut(), |at| ptr::with_exposed_provenance_mut(at as usize))
}

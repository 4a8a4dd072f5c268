//! An allocator that overwrites memory with zeros before it is freed. Secrets pass through buffers of TLS and HTTP that nothing else
//! overwrites.

#![deny(unreachable_pub)]

use std::alloc::{GlobalAlloc, Layout};
use std::mem::MaybeUninit;
use std::slice;

/// An allocator that zeroes memory before it returns it to the allocator `A`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ZeroOnFree<A>(pub A);

#[allow(
    unsafe_code,
    reason = "an allocator can be written in no other way; no other crate of the workspace has unsafe code"
)]
// SAFETY: `A` allocates and frees. What is written to in between is memory that its owner has given up.
unsafe impl<A: GlobalAlloc> GlobalAlloc for ZeroOnFree<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: by the contract, `memory` is an allocation of this size, and nobody else uses it from here on.
        let bytes = unsafe { slice::from_raw_parts_mut(memory.cast::<MaybeUninit<u8>>(), layout.size()) };
        bytes.fill(MaybeUninit::new(0));
        // Compilers leave out writes to memory that is freed next and that nothing reads in between.
        zeroize::optimization_barrier(&*bytes);
        // SAFETY: the caller keeps the same contract.
        unsafe { self.0.dealloc(memory, layout) }
    }

    // `realloc` is the trait's own: it allocates, copies, and frees by the method above. That of `A` could move the memory and leave a copy.
}

#[cfg(test)]
#[allow(unsafe_code, reason = "what is freed can be looked at by the allocator below only")]
mod tests {
    use std::alloc::System;
    use std::sync::Mutex;

    use super::*;

    /// A test allocator that inspects freed memory.
    #[derive(Default)]
    struct Inspector(Mutex<Vec<Freed>>);

    #[derive(Debug, PartialEq, Eq)]
    struct Freed {
        bytes: usize,
        others_than_zero: usize,
    }

    // SAFETY: it is the system's allocator, and reads what was written to.
    unsafe impl GlobalAlloc for Inspector {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller keeps the same contract.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
            // SAFETY: it is an allocation of this size, and the tests have written to all of it.
            let bytes = unsafe { slice::from_raw_parts(memory, layout.size()) };
            let freed = Freed {
                bytes: layout.size(),
                others_than_zero: bytes.iter().filter(|byte| **byte != 0).count(),
            };
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(freed);
            // SAFETY: the caller keeps the same contract.
            unsafe { System.dealloc(memory, layout) }
        }
    }

    impl ZeroOnFree<Inspector> {
        /// Returns memory in which no byte is zero.
        fn filled(&self, layout: Layout) -> *mut u8 {
            // SAFETY: no layout of these tests is of size zero; the memory is written to within its size.
            unsafe {
                let memory = self.alloc(layout);
                assert!(!memory.is_null());
                memory.write_bytes(0xa5, layout.size());
                memory
            }
        }

        /// Returns the allocations that were freed since the last call.
        fn freed(&self) -> Vec<Freed> {
            std::mem::take(&mut self.0.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
        }
    }

    fn zeros(bytes: usize) -> Vec<Freed> {
        vec![Freed {
            bytes,
            others_than_zero: 0,
        }]
    }

    /// Sizes of a byte, of whole words and of parts of them, and large ones, which the system maps by themselves.
    const SIZES: [usize; 12] = [1, 2, 7, 8, 9, 15, 64, 1000, 4097, 65_536, 1_048_579, 4_194_304];

    fn layouts() -> impl Iterator<Item = Layout> {
        let aligned = |align| SIZES.into_iter().filter_map(move |size| Layout::from_size_align(size, align).ok());
        [1, 8, 64, 4096].into_iter().flat_map(aligned)
    }

    #[test]
    fn dealloc_zeroes_memory() {
        let allocator = ZeroOnFree(Inspector::default());
        for layout in layouts() {
            let memory = allocator.filled(layout);
            // SAFETY: it was allocated with this layout, and is not used again.
            unsafe { allocator.dealloc(memory, layout) };
            assert_eq!(allocator.freed(), zeros(layout.size()), "{layout:?}");
        }
    }

    #[test]
    fn realloc_zeroes_old_memory_and_keeps_content() {
        let allocator = ZeroOnFree(Inspector::default());
        for layout in layouts() {
            for size in [layout.size() * 2, layout.size().div_ceil(2), layout.size()] {
                let memory = allocator.filled(layout);
                // SAFETY: it was allocated with this layout; the new size is not zero, and far from the largest.
                let moved = unsafe { allocator.realloc(memory, layout, size) };
                assert!(!moved.is_null());
                assert_eq!(allocator.freed(), zeros(layout.size()), "{layout:?} {size}");
                let kept = size.min(layout.size());
                // SAFETY: that much was written to before, and copied.
                let bytes = unsafe { slice::from_raw_parts(moved, kept) };
                assert!(bytes.iter().all(|byte| *byte == 0xa5), "{layout:?} {size}");
                // SAFETY: it is of this size; all of it is written to before it is looked at.
                unsafe {
                    moved.write_bytes(0xa5, size);
                    allocator.dealloc(moved, Layout::from_size_align_unchecked(size, layout.align()));
                }
                assert_eq!(allocator.freed(), zeros(size), "{layout:?} {size}");
            }
        }
    }

    #[test]
    fn alloc_zeroed_returns_zeroed_memory() {
        let allocator = ZeroOnFree(System);
        for layout in layouts() {
            // SAFETY: the size is not zero; the memory is read within it, and freed once.
            unsafe {
                let memory = allocator.alloc_zeroed(layout);
                assert!(!memory.is_null());
                assert!(
                    slice::from_raw_parts(memory, layout.size()).iter().all(|byte| *byte == 0),
                    "{layout:?}"
                );
                allocator.dealloc(memory, layout);
            }
        }
    }
}

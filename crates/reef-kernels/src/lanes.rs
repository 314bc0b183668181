//! Vector registers behind one face.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64 as cpu;

use half::bf16;

/// A vector register. Everything is inlined into functions that enable the instructions.
///
/// Each method needs the processor to have them, and a pointer that is good for a whole register.
#[allow(unsafe_code, reason = "vector instructions work on pointers")]
pub(crate) trait Lanes: Copy {
    const N: usize;
    unsafe fn zero() -> Self;
    unsafe fn load(at: *const f32) -> Self;
    /// The upper half of an f32 is a bf16.
    unsafe fn load_half(at: *const bf16) -> Self;
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self;
    unsafe fn total(self) -> f32;
    unsafe fn all(value: f32) -> Self;
    unsafe fn store(self, at: *mut f32);
    /// Asks for the line of the cache at an address, which need not be valid.
    fn prefetch(at: *const u8);
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vector instructions work on pointers")]
impl Lanes for cpu::__m512 {
    const N: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe { cpu::_mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe { cpu::_mm512_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn load_half(at: *const bf16) -> Self {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe {
            let halves = cpu::_mm512_cvtepu16_epi32(cpu::_mm256_loadu_si256(at.cast()));
            cpu::_mm512_castsi512_ps(cpu::_mm512_slli_epi32::<16>(halves))
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe { cpu::_mm512_fmadd_ps(self, by, plus) }
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe { cpu::_mm512_reduce_add_ps(self) }
    }

    #[inline(always)]
    unsafe fn all(value: f32) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { cpu::_mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe { cpu::_mm512_storeu_ps(at, self) }
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: a prefetch has no effect on what the program sees.
        unsafe { cpu::_mm_prefetch::<{ cpu::_MM_HINT_T0 }>(at.cast()) }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vector instructions work on pointers")]
impl Lanes for cpu::__m256 {
    const N: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe { cpu::_mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe { cpu::_mm256_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn load_half(at: *const bf16) -> Self {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe {
            let halves = cpu::_mm256_cvtepu16_epi32(cpu::_mm_loadu_si128(at.cast()));
            cpu::_mm256_castsi256_ps(cpu::_mm256_slli_epi32::<16>(halves))
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe { cpu::_mm256_fmadd_ps(self, by, plus) }
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe {
            let four = cpu::_mm_add_ps(cpu::_mm256_castps256_ps128(self), cpu::_mm256_extractf128_ps::<1>(self));
            let two = cpu::_mm_add_ps(four, cpu::_mm_movehl_ps(four, four));
            cpu::_mm_cvtss_f32(cpu::_mm_add_ss(two, cpu::_mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    unsafe fn all(value: f32) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { cpu::_mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: the caller has the instructions, and its pointer is good for a whole register.
        unsafe { cpu::_mm256_storeu_ps(at, self) }
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: a prefetch has no effect on what the program sees.
        unsafe { cpu::_mm_prefetch::<{ cpu::_MM_HINT_T0 }>(at.cast()) }
    }
}

#[allow(unsafe_code, reason = "vector instructions work on pointers")]
impl Lanes for [f32; 8] {
    const N: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        [0.0; 8]
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: the pointer is good for eight elements.
        unsafe { at.cast::<Self>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_half(at: *const bf16) -> Self {
        // SAFETY: the pointer is good for eight elements.
        unsafe { at.cast::<[bf16; 8]>().read_unaligned() }.map(bf16::to_f32)
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        std::array::from_fn(|i| self[i].mul_add(by[i], plus[i]))
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self;
        ((a + e) + (b + f)) + ((c + g) + (d + h))
    }

    #[inline(always)]
    unsafe fn all(value: f32) -> Self {
        [value; 8]
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: the pointer is good for eight elements.
        unsafe { at.cast::<Self>().write_unaligned(self) }
    }

    #[inline(always)]
    fn prefetch(_at: *const u8) {}
}

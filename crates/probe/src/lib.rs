//! Static probes for Rust programs (USDT): places that the authors name, with values to look at
//! there.
//!
//! ```
//! let (id, length) = (7_u32, 4096_usize);
//! sidestep_probe::probe!(server, request, id, length);
//! ```
//!
//! A probe that nobody listens to is one long nop, and its arguments are computed. The note that
//! describes it is the one that all tracers read (section `.note.stapsdt`): Sidestep, bpftrace,
//! perf, gdb, SystemTap. The nop has 8 bytes, room for Sidestep's jump. It is not the nop of 5
//! bytes: Linux 6.18 makes a call of that one, which overwrites what a leaf function has below its
//! stack pointer, and kills forked children.
//!
//! Where arguments are expensive, [`lazy_probe!`] has a semaphore, which counts who listens; the
//! arguments are only computed while somebody does. A probe has up to 12 arguments, each an
//! [`Argument`]. On processors other than x86-64 and x86-32 nothing is emitted.
//!
//! A tracer reads floating-point arguments by the `f` in the note. Those that do not know it, gdb
//! 13 and bpftrace 0.17 among them, show no arguments of such a probe: for these, pass
//! `number.to_bits()`.
//!
//! This crate depends on nothing, not even on `std`. The crate `sidestep` has the same macros.

#![no_std]

/// What a probe can have as argument: numbers, `bool`, `char` and pointers.
pub trait Argument: Copy {
    /// Its bytes, negative if it has a sign.
    const SIZE: i32;
    /// 1: a floating-point number. Else 0.
    const FLOAT: i32 = 0;
    /// Its bits, in the lowest [`Argument::SIZE`] bytes.
    fn bits(self) -> u64;
}

macro_rules! integers {
    ($($type:ty: $size:expr),*) => {$(
        impl Argument for $type {
            const SIZE: i32 = $size;

            #[inline(always)]
            fn bits(self) -> u64 {
                self as u64
            }
        }
    )*};
}
const WORD: i32 = size_of::<usize>() as i32;
integers!(u8: 1, u16: 2, u32: 4, u64: 8, usize: WORD, bool: 1, char: 4);
integers!(i8: -1, i16: -2, i32: -4, i64: -8, isize: -WORD);

impl Argument for f32 {
    const SIZE: i32 = 4;
    const FLOAT: i32 = 1;

    #[inline(always)]
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Argument for f64 {
    const SIZE: i32 = 8;
    const FLOAT: i32 = 1;

    #[inline(always)]
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<T> Argument for $pointer {
            const SIZE: i32 = WORD;

            #[inline(always)]
            fn bits(self) -> u64 {
                self as *const T as usize as u64
            }
        }
    )*};
}
pointers!(*const T, *mut T, &T);

/// A static probe: provider, name, and up to 12 arguments, each an [`Argument`].
///
/// ```
/// let text = c"/index.html";
/// sidestep_probe::probe!(server, request, text.as_ptr(), 200_u16, 0.25_f64);
/// ```
#[macro_export]
macro_rules! probe {
    ($provider:ident, $name:ident $(, $argument:expr)* $(,)?) => {
        $crate::__site!(["0"] [] $provider $name [$($argument),*])
    };
}

/// A static probe with a semaphore: its arguments are only computed while somebody listens.
///
/// ```
/// # fn describe() -> u64 { 5 }
/// sidestep_probe::lazy_probe!(server, request, describe());
/// ```
#[macro_export]
macro_rules! lazy_probe {
    ($provider:ident, $name:ident $(, $argument:expr)* $(,)?) => {{
        // Tracers change it from outside.
        #[unsafe(link_section = ".probes")]
        static LISTENERS: ::core::sync::atomic::AtomicU16 = ::core::sync::atomic::AtomicU16::new(0);
        if LISTENERS.load(::core::sync::atomic::Ordering::Relaxed) != 0 {
            $crate::__site!(["{listeners}"] [listeners = sym LISTENERS,] $provider $name [$($argument),*])
        }
    }};
}

/// Gives each argument its names: value, type, operands, what stands before it in the note, and its
/// place in memory.
#[doc(hidden)]
#[macro_export]
macro_rules! __site {
    ($semaphore:tt $operands:tt $provider:ident $name:ident $arguments:tt) => {
        $crate::__name!($semaphore $operands $provider $name $arguments [] [
            (a0 A0 s0 f0 "" "0") (a1 A1 s1 f1 " " "8") (a2 A2 s2 f2 " " "16") (a3 A3 s3 f3 " " "24")
            (a4 A4 s4 f4 " " "32") (a5 A5 s5 f5 " " "40") (a6 A6 s6 f6 " " "48") (a7 A7 s7 f7 " " "56")
            (a8 A8 s8 f8 " " "64") (a9 A9 s9 f9 " " "72") (a10 A10 s10 f10 " " "80") (a11 A11 s11 f11 " " "88")
        ])
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __name {
    ($semaphore:tt $operands:tt $provider:ident $name:ident [$first:expr $(, $rest:expr)*] [$($named:tt)*]
        [($($names:tt)*) $($free:tt)*]) => {
        $crate::__name!($semaphore $operands $provider $name [$($rest),*] [$($named)* ($($names)* $first)] [$($free)*])
    };
    ($semaphore:tt $operands:tt $provider:ident $name:ident [$($more:expr),+] $named:tt []) => {
        ::core::compile_error!("a probe has at most 12 arguments")
    };
    ([$semaphore:literal] [$($operands:tt)*] $provider:ident $name:ident []
        [$(($value:ident $type:ident $size:ident $float:ident $space:literal $at:literal $argument:expr))*] $free:tt) => {{
        // A function, so that the types of the arguments have names. It is a part of its caller, or
        // one site for all of them.
        #[inline(always)]
        #[allow(unsafe_code, clippy::too_many_arguments)]
        fn site<$($type: $crate::Argument),*>($($value: $type),*) {
            // SAFETY: a nop, and data in a section that is not loaded.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                ::core::arch::asm!(
                    $crate::__head!($provider $name $semaphore ".8byte"),
                    $($crate::__text!($space $size $float "{" $value "}"),)*
                    $crate::__tail!(),
                    $($operands)*
                    $($value = in(reg) $crate::Argument::bits($value), $size = const <$type as $crate::Argument>::SIZE,
                    $float = const <$type as $crate::Argument>::FLOAT,)*
                    options(att_syntax, readonly, nostack, preserves_flags)
                );
            }
            // There are not enough registers, and none holds 64 bits.
            // SAFETY: no instruction but nops; the operands are values on the stack, which are read
            // there.
            #[cfg(target_arch = "x86")]
            unsafe {
                let values: &[u64] = &[$($crate::Argument::bits($value)),*];
                ::core::arch::asm!(
                    "/* {values} */",
                    $crate::__head!($provider $name $semaphore ".4byte"),
                    $($crate::__text!($space $size $float $at "({" values "})"),)*
                    $crate::__tail!(),
                    $($operands)*
                    values = in(reg) values.as_ptr(),
                    $($size = const <$type as $crate::Argument>::SIZE, $float = const <$type as $crate::Argument>::FLOAT,)*
                    options(att_syntax, readonly, nostack, preserves_flags)
                );
            }
            #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
            let _ = ($($value,)*);
        }
        site($($argument),*)
    }};
}

/// The nop, and the note up to its arguments.
#[doc(hidden)]
#[macro_export]
macro_rules! __head {
    ($provider:ident $name:ident $semaphore:literal $address:literal) => {
        ::core::concat!(
            "990: .byte 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00\n",
            ".pushsection .note.stapsdt,\"?\",\"note\"\n",
            ".balign 4\n",
            ".4byte 992f-991f, 994f-993f, 3\n",
            "991: .asciz \"stapsdt\"\n",
            "992: .balign 4\n",
            "993: ",
            $address,
            " 990b\n",
            $address,
            " _.stapsdt.base\n",
            $address,
            " ",
            $semaphore,
            "\n.asciz \"",
            ::core::stringify!($provider),
            "\"\n.asciz \"",
            ::core::stringify!($name),
            "\""
        )
    };
}

/// An argument in the note: `-4@%rax`, `8f@8(%eax)`.
#[doc(hidden)]
#[macro_export]
macro_rules! __text {
    ($space:literal $size:ident $float:ident $($place:tt)*) => {
        ::core::concat!(
            ".ascii \"", $space, "{", ::core::stringify!($size), "}\"\n",
            ".if {", ::core::stringify!($float), "}\n",
            ".ascii \"f\"\n",
            ".endif\n",
            ".ascii \"@", $($crate::__word!($place),)* "\""
        )
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __word {
    ($word:literal) => {
        $word
    };
    ($word:ident) => {
        ::core::stringify!($word)
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tail {
    () => {
        ".byte 0
        994: .balign 4
        .popsection
        .ifndef _.stapsdt.base
        .pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat
        .weak _.stapsdt.base
        .hidden _.stapsdt.base
        _.stapsdt.base: .space 1
        .size _.stapsdt.base, 1
        .popsection
        .endif"
    };
}

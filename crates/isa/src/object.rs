//! The code facts of an object file: what its reader (`sidestep-symbols`) tells its analysis
//! (`sidestep-plan`). All addresses are link-time.

use crate::insn::{Insn, decode};
use crate::{Isa, Len, Va};

/// A run of bytes at a link-time address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes<'a> {
    /// Section or segment name, for messages.
    pub name: &'a str,
    /// Where it starts.
    pub va: Va,
    /// Its contents as in the file.
    pub data: &'a [u8],
}

/// A function's extent, from a symbol or an FDE of `.eh_frame`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: Va,
    /// Length; 0 = not known (a symbol without a size).
    pub len: Len,
}

/// The code facts of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectCode<'a> {
    /// What its instructions are: the class and machine of its file say it.
    pub isa: Isa,
    /// Executable sections, sorted by address.
    pub text: Vec<Bytes<'a>>,
    /// Other mapped sections with bytes in the file: jump tables and code pointers are here.
    pub data: Vec<Bytes<'a>>,
    /// Extents of all function symbols of all tables, and of all FDEs. Any order, with duplicates.
    pub extents: Vec<Extent>,
    /// Starts of extents, sorted, where the unwind information has a frame already: parts that the
    /// compiler has moved away from their functions, and code that is not reached by a call at all.
    /// A symbol of a function makes no part of it.
    pub parts: Vec<Va>,
    /// All starts of extents, sorted, with or without a symbol, where the unwind information does
    /// not have the stack as a call leaves it: what is on top of the stack there is no return
    /// address.
    pub odd_frames: Vec<Va>,
    /// Starts of extents, sorted, that the unwind information knows, `odd_frames` among them.
    pub frames: Vec<Va>,
    /// Starts of extents, sorted, that only the unwind information knows: no symbol of a function
    /// has them. (The symbol of a part that the compiler has moved away, `.cold`, is none.)
    pub nameless: Vec<Va>,
    /// The address of every symbol in text, of every type and size, and of the entry point,
    /// `DT_INIT` and `DT_FINI`.
    pub labels: Vec<Va>,
    /// Where the kernel and the loader begin: the entry point, `DT_INIT`, `DT_FINI`, and what the
    /// arrays of such functions hold, as far as they are in text.
    pub beginnings: Vec<Va>,
    /// Values in text that dynamic relocations store. A program at a fixed address has no
    /// relocations: there, every aligned word of its data that is an address in text.
    pub pointers: Vec<Va>,
    /// Landing pads of all LSDAs.
    pub landing_pads: Vec<Va>,
    /// Code whose exceptions land at one of those: call sites of all LSDAs. Sorted. Some compilers
    /// have instructions there that may fault (`-fnon-call-exceptions`).
    pub protected: Vec<Extent>,
    /// Restartable sequences (`rseq(2)`): the kernel sends a thread that it interrupts there to the
    /// abort handler, which it knows by the instruction pointer. And the signatures in front of
    /// abort handlers.
    pub restartable: Vec<Extent>,
    /// Places whose bytes the program changes itself, sorted.
    pub rewritten: Vec<Rewritten>,
    /// `_GLOBAL_OFFSET_TABLE_` of 32-bit code: position-independent code names everything by its
    /// distance from there.
    pub got: Option<Va>,
    /// Numbers in its instructions may be addresses. Not in code that can be anywhere: there they
    /// would need relocations.
    pub fixed: bool,
    /// The object was compiled by the Go toolchain.
    pub go: bool,
    /// The object was compiled ahead of time by Mono. The runtime reads its calls, and the jumps
    /// through slots that they lead to, to find out what was called
    /// (`mono/mini/tramp-amd64.c`: `mono_arch_get_call_target`, `mono_arch_patch_plt_entry`).
    pub mono: bool,
}

/// A place whose bytes the program changes itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rewritten {
    /// The place. Control flow that begins at its start goes on behind its end.
    pub extent: Extent,
    /// What changes the bytes.
    pub by: Rewriter,
}

/// What a program changes its own code with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rewriter {
    /// LLVM's XRay (the section `xray_instr_map`).
    XRay,
    /// Something for which the compiler leaves nops at the start of each function
    /// (`-fpatchable-function-entry`), such as live patching.
    Patchable,
}

impl core::fmt::Display for Rewriter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Rewriter::XRay => "XRay",
            Rewriter::Patchable => "-fpatchable-function-entry",
        })
    }
}

impl<'a> ObjectCode<'a> {
    /// An object without any code yet.
    #[must_use]
    pub fn new(isa: Isa) -> ObjectCode<'a> {
        ObjectCode {
            isa,
            text: Vec::new(),
            data: Vec::new(),
            extents: Vec::new(),
            labels: Vec::new(),
            beginnings: Vec::new(),
            pointers: Vec::new(),
            landing_pads: Vec::new(),
            protected: Vec::new(),
            restartable: Vec::new(),
            rewritten: Vec::new(),
            parts: Vec::new(),
            odd_frames: Vec::new(),
            frames: Vec::new(),
            nameless: Vec::new(),
            got: None,
            fixed: true,
            go: false,
            mono: false,
        }
    }

    /// Whether an address is in an executable section.
    #[must_use]
    pub fn is_text(&self, va: Va) -> bool {
        self.section(va).is_some()
    }

    fn section(&self, va: Va) -> Option<&Bytes<'a>> {
        let after = self.text.partition_point(|s| s.va <= va);
        self.text[..after].last().filter(|s| va.since(s.va) < s.data.len() as i64)
    }

    /// The text from `start` to `end`, which must be in one section.
    #[must_use]
    pub fn text_at(&self, start: Va, end: Va) -> Option<&'a [u8]> {
        let section = self.section(start)?;
        let from = usize::try_from(start.since(section.va)).ok()?;
        let to = usize::try_from(end.since(section.va)).ok()?;
        section.data.get(from..to)
    }

    /// The text from `start` to the end of its section.
    #[must_use]
    pub fn text_from(&self, start: Va) -> Option<&'a [u8]> {
        let section = self.section(start)?;
        section.data.get(usize::try_from(start.since(section.va)).ok()?..)
    }

    /// The bytes from `start` to the end of their section, in data or text.
    #[must_use]
    pub fn bytes_at(&self, start: Va) -> Option<&'a [u8]> {
        self.data.iter().chain(&self.text).find_map(|section| {
            let from = usize::try_from(start.since(section.va)).ok()?;
            section.data.get(from..).filter(|rest| !rest.is_empty())
        })
    }

    /// The instruction at an address.
    #[must_use]
    pub fn insn_at(&self, va: Va) -> Option<Insn> {
        decode(self.isa, self.text_from(va)?, va).ok()
    }
}

//! Encoding classes of A64 (section C4.1).
//!
//! What is unallocated there is no instruction. Three groups are taken as a whole, since their
//! words differ in nothing that is asked here: Advanced SIMD and floating-point data processing,
//! SVE and SME. A word of them that no processor has faults wherever it lies.
//!
//! Refused although they have a meaning: transactions (they are withdrawn from the architecture),
//! instructions that compilers do not write for programs (`rcwcas` and its like for translation
//! tables, `gcsstr`, the unprivileged atomics of `FEAT_LSUI`), and loads and stores of extensions
//! after 2023.

mod branch;
mod memory;

use super::bits;

/// What kind of instruction a word is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// `udf`: defined to be undefined.
    Udf,
    /// SVE, SVE2.
    Sve,
    /// SME.
    Sme,
    /// Advanced SIMD and floating-point data processing.
    Vector,
    /// `adr`.
    Adr,
    /// `adrp`.
    Adrp,
    /// `add`, `adds`, `sub`, `subs` of an immediate.
    AddImmediate,
    /// `addg`, `subg`.
    AddTag,
    /// `smax`, `umax`, `smin`, `umin` of an immediate.
    MinMaxImmediate,
    /// `and`, `orr`, `eor`, `ands` of an immediate.
    LogicImmediate,
    /// `movn`, `movz`, `movk`.
    MoveWide,
    /// `sbfm`, `bfm`, `ubfm`.
    Bitfield,
    /// `extr`.
    Extract,
    /// `autiasppc`, `autibsppc`: authenticates the link register with an address near here.
    AuthenticateHere,
    /// `paciasppc`, `pacnbiasppc` and their like: sign the link register with their own address.
    SignHere,
    /// `autiasppcr`, `pacia171615` and their like: the link register, with registers alone.
    AuthenticateLink,
    /// `b`.
    Branch,
    /// `bl`.
    BranchLink,
    /// `b.cond`, `bc.cond`.
    BranchCondition,
    /// `cbz`, `cbnz`.
    CompareZero,
    /// `tbz`, `tbnz`.
    TestBit,
    /// `cbgt` and its like, `cbb…`, `cbh…` of two registers (`FEAT_CMPBR`).
    CompareRegisters,
    /// `cbgt` and its like of a register and an immediate (`FEAT_CMPBR`).
    CompareImmediate,
    /// `br`, `braa`, `braaz` and their like.
    BranchRegister,
    /// `blr`, `blraa`, `blraaz` and their like.
    BranchLinkRegister,
    /// `ret`.
    Return,
    /// `retaa`, `retab`, `retaasppcr`, `retabsppcr`.
    ReturnAuthenticated,
    /// `retaasppc`, `retabsppc`: with an address near here.
    ReturnHere,
    /// `eret`, `eretaa`, `eretab`, `drps`: not for programs.
    ExceptionReturn,
    /// `svc`.
    SupervisorCall,
    /// `hvc`, `smc`, `dcps1` to `dcps3`: not for programs.
    HigherCall,
    /// `brk`.
    Breakpoint,
    /// `hlt`.
    Halt,
    /// `nop`, `bti`, `paciasp`, `yield` and all other hints.
    Hint,
    /// `wfet`, `wfit`.
    WaitTime,
    /// `clrex`.
    ClearExclusive,
    /// `dsb`, `dmb`, `sb`.
    Barrier,
    /// `isb`.
    InstructionBarrier,
    /// `msr` of an immediate; `cfinv`, `xaflag`, `axflag`.
    MoveToState,
    /// `sys`, `sysp`: cache maintenance and such.
    System,
    /// `sysl`.
    SystemResult,
    /// `msr`, `msrr`.
    MoveToSystem,
    /// `mrs`, `mrrs`.
    MoveFromSystem,
    /// `ldr`, `ldrsw` of a general-purpose register, relative to the program counter.
    LoadLiteral,
    /// `ldr` of a vector register, relative to the program counter.
    LoadLiteralVector,
    /// `prfm`, relative to the program counter.
    PrefetchLiteral,
    /// `ldp`, `stp`, `ldnp`, `stnp`, `ldpsw` of general-purpose registers.
    Pair,
    /// `ldp`, `stp`, `ldnp`, `stnp` of vector registers.
    PairVector,
    /// `stgp`.
    PairTag,
    /// One general-purpose register: all forms of `ldr`, `str` and their narrow kinds, with an
    /// immediate or a register as offset, unprivileged ones, `ldapur`, `stlur`.
    Single,
    /// One vector register.
    SingleVector,
    /// `prfm`, `prfum`.
    Prefetch,
    /// `ldraa`, `ldrab`.
    LoadAuthenticated,
    /// `ldxr`, `ldaxr` and their narrow kinds.
    LoadExclusive,
    /// `ldxp`, `ldaxp`.
    LoadExclusivePair,
    /// `stxr`, `stlxr` and their narrow kinds.
    StoreExclusive,
    /// `stxp`, `stlxp`.
    StoreExclusivePair,
    /// `ldar`, `ldlar`, `ldapr` and their narrow kinds.
    LoadAcquire,
    /// `stlr`, `stllr` and their narrow kinds.
    StoreRelease,
    /// `ldapr` that adds to its base afterwards, `stlr` that subtracts from it before
    /// (`FEAT_LRCPC3`).
    OrderedWriteBack,
    /// `ldiapp`, `stilp` (`FEAT_LRCPC3`).
    OrderedPair,
    /// `cas` and its kinds.
    CompareSwap,
    /// `casp` and its kinds.
    CompareSwapPair,
    /// `ldadd`, `ldclr`, `swp` and their kinds.
    Atomic,
    /// `ldclrp`, `ldsetp`, `swpp` and their kinds.
    AtomicPair,
    /// `ld64b`.
    Load64Bytes,
    /// `st64b`, `st64bv`, `st64bv0`.
    Store64Bytes,
    /// `stg`, `stzg`, `st2g`, `stz2g`.
    StoreTag,
    /// `ldg`.
    LoadTag,
    /// `ldgm`, `stgm`, `stzgm`: not for programs.
    TagBlock,
    /// `cpyp`, `cpym`, `cpye`, `setp` and their kinds: a part of a copy of memory.
    MemoryCopy,
    /// `ld1` to `ld4`, `st1` to `st4`, `ld1r` and so on.
    Structures,
    /// `ldap1`, `stl1` (`FEAT_LRCPC3`).
    StructureOrdered,
    /// `and`, `bic`, `orr`, `orn`, `eor`, `eon`, `ands`, `bics` of registers.
    Logic,
    /// `add`, `adds`, `sub`, `subs` of a shifted register.
    AddShifted,
    /// `add`, `adds`, `sub`, `subs` of an extended register.
    AddExtended,
    /// `adc`, `adcs`, `sbc`, `sbcs`.
    AddCarry,
    /// `addpt`, `subpt`.
    AddPointer,
    /// `rmif`.
    RotateToFlags,
    /// `setf8`, `setf16`.
    SetFlags,
    /// `ccmp`, `ccmn`.
    ConditionalCompare,
    /// `csel`, `csinc`, `csinv`, `csneg`.
    ConditionalSelect,
    /// `udiv`, `lslv`, `crc32b` and all others of two registers.
    TwoSources,
    /// `subps`.
    SubtractPointersFlags,
    /// `rbit`, `clz` and all others of one register.
    OneSource,
    /// `pacia`, `autia` and their like, `xpaci`, `xpacd`: change their destination.
    Authenticate,
    /// `madd`, `smulh` and all others of three registers.
    ThreeSources,
}

/// The class of a word; `None`: it is no instruction, or not known.
pub(crate) fn classify(word: u32) -> Option<Class> {
    match bits(word, 28, 25) {
        0b0000 if word >> 31 == 1 => Some(Class::Sme),
        0b0000 => (word >> 16 == 0).then_some(Class::Udf),
        0b0010 => Some(Class::Sve),
        0b1000 | 0b1001 => immediate(word),
        0b1010 | 0b1011 => branch::classify(word),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => memory::classify(word),
        0b0101 | 0b1101 => register(word),
        0b0111 | 0b1111 => Some(Class::Vector),
        _ => None,
    }
}

/// Data processing with an immediate (section C4.1.93).
fn immediate(word: u32) -> Option<Class> {
    let wide = word >> 31 == 1;
    let opc = bits(word, 30, 29);
    // Bits that have to be as `sf` says.
    let n = bits(word, 22, 22) == 1;
    match bits(word, 25, 23) {
        0b000 | 0b001 => Some(if wide { Class::Adrp } else { Class::Adr }),
        0b010 => Some(Class::AddImmediate),
        0b011 if n => (opc == 0 && bits(word, 21, 18) < 4).then_some(Class::MinMaxImmediate),
        0b011 => (wide && opc & 1 == 0 && bits(word, 15, 14) == 0).then_some(Class::AddTag),
        0b100 => bit_mask(word).map(|_| Class::LogicImmediate),
        0b101 => (opc != 1 && (wide || bits(word, 22, 22) == 0)).then_some(Class::MoveWide),
        0b110 => {
            let fits = wide || bits(word, 21, 21) == 0 && bits(word, 15, 15) == 0;
            (opc != 3 && n == wide && fits).then_some(Class::Bitfield)
        }
        _ => {
            let here = word & 0xffc0_001f == 0xf380_001f;
            let fits = wide || bits(word, 15, 15) == 0;
            let extract = opc == 0 && bits(word, 21, 21) == 0 && n == wide && fits;
            here.then_some(Class::AuthenticateHere).or(extract.then_some(Class::Extract))
        }
    }
}

/// The number that a logical immediate stands for (`DecodeBitMasks` in section J1.3), if there is
/// one.
pub(crate) fn bit_mask(word: u32) -> Option<u64> {
    let wide = word >> 31 == 1;
    let (n, immr, imms) = (bits(word, 22, 22), bits(word, 21, 16), bits(word, 15, 10));
    if !wide && n == 1 {
        return None;
    }
    let len = 31_u32.checked_sub((n << 6 | (!imms & 0x3f)).leading_zeros())?;
    let levels = (1 << len) - 1;
    if len == 0 || imms & levels == levels {
        return None;
    }
    let (size, ones, turn) = (1 << len, (imms & levels) + 1, immr & levels);
    let element = u64::MAX >> (64 - ones);
    let turned = if turn == 0 { element } else { element >> turn | element << (size - turn) };
    let element = turned & (u64::MAX >> (64 - size));
    let mask = (0..64 / size).fold(0, |mask, i| mask | element << (i * size));
    Some(if wide { mask } else { mask & 0xffff_ffff })
}

/// Data processing with registers (section C4.1.95).
fn register(word: u32) -> Option<Class> {
    let wide = word >> 31 == 1;
    let narrow_shift = wide || bits(word, 15, 15) == 0;
    let (op, s) = (bits(word, 30, 30), bits(word, 29, 29));
    match bits(word, 28, 24) {
        0b01010 => narrow_shift.then_some(Class::Logic),
        0b01011 if bits(word, 21, 21) == 0 => (bits(word, 23, 22) != 3 && narrow_shift).then_some(Class::AddShifted),
        0b01011 => (bits(word, 23, 22) == 0 && bits(word, 12, 10) <= 4).then_some(Class::AddExtended),
        0b11011 => three_sources(word, wide),
        _ => match bits(word, 24, 21) {
            0b0000 => carry(word, wide),
            0b0010 => (s == 1 && bits(word, 10, 10) == 0 && bits(word, 4, 4) == 0).then_some(Class::ConditionalCompare),
            0b0100 => (s == 0 && bits(word, 11, 11) == 0).then_some(Class::ConditionalSelect),
            0b0110 if op == 0 => two_sources(word, wide, s == 1),
            0b0110 => (s == 0).then(|| one_source(word, wide)).flatten(),
            _ => None,
        },
    }
}

fn carry(word: u32, wide: bool) -> Option<Class> {
    let (op, s) = (bits(word, 30, 30), bits(word, 29, 29));
    match bits(word, 15, 10) {
        0 => Some(Class::AddCarry),
        opcode if opcode >> 3 == 1 => (wide && s == 0).then_some(Class::AddPointer),
        opcode if opcode & 0x1f == 1 => {
            (wide && op == 0 && s == 1 && bits(word, 4, 4) == 0).then_some(Class::RotateToFlags)
        }
        0b00_0010 | 0b01_0010 => {
            let fits = !wide && op == 0 && s == 1 && bits(word, 20, 16) == 0 && bits(word, 4, 0) == 0b01101;
            fits.then_some(Class::SetFlags)
        }
        _ => None,
    }
}

fn two_sources(word: u32, wide: bool, s: bool) -> Option<Class> {
    let opcode = bits(word, 15, 10);
    if s {
        return (wide && opcode == 0).then_some(Class::SubtractPointersFlags);
    }
    let is_known = match opcode {
        // subp, irg, gmi, pacga
        0b00_0000 | 0b00_0100 | 0b00_0101 | 0b00_1100 => wide,
        // udiv, sdiv, shifts, smax, umax, smin, umin
        0b00_0010 | 0b00_0011 | 0b00_1000..=0b00_1011 | 0b01_1000..=0b01_1011 => true,
        // crc32b to crc32cx: the last ones take 64 bits
        0b01_0000..=0b01_0111 => wide == (opcode & 3 == 3),
        _ => false,
    };
    is_known.then_some(Class::TwoSources)
}

fn one_source(word: u32, wide: bool) -> Option<Class> {
    let (opcode, from, to) = (bits(word, 15, 10), bits(word, 9, 5), bits(word, 4, 0));
    match bits(word, 20, 16) {
        0 => (opcode <= 8 && (wide || opcode != 3)).then_some(Class::OneSource),
        1 if wide => match opcode {
            0b00_0000..=0b00_0111 => Some(Class::Authenticate),
            0b00_1000..=0b01_0001 => (from == 31).then_some(Class::Authenticate),
            0b10_0000 | 0b10_0001 | 0b10_1000 | 0b10_1001 => (from == 31 && to == 30).then_some(Class::SignHere),
            0b10_0100 | 0b10_0101 => (to == 30).then_some(Class::AuthenticateLink),
            0b10_0010 | 0b10_0011 | 0b10_1110 | 0b10_1111 => {
                (from == 31 && to == 30).then_some(Class::AuthenticateLink)
            }
            _ => None,
        },
        _ => None,
    }
}

fn three_sources(word: u32, wide: bool) -> Option<Class> {
    let is_known = bits(word, 30, 29) == 0
        && match (bits(word, 23, 21), bits(word, 15, 15)) {
            (0b000, _) => true,
            // smaddl, umaddl, maddpt and their negative kinds; smulh, umulh
            (0b001 | 0b011 | 0b101, _) | (0b010 | 0b110, 0) => wide,
            _ => false,
        };
    is_known.then_some(Class::ThreeSources)
}

//! What a CPU lacks, by its own feature bits: not every signal at an instruction means that the CPU
//! has none.

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv, CpuidResult};
use std::collections::{BTreeMap, HashSet};

use iced_x86::{CpuidFeature as F, Instruction};

/// Gives one register of a leaf.
type OfLeaf = fn(&CpuidResult) -> u32;

/// Leaf, subleaf, register, and the features by bit.
type Leaf = (u32, u32, OfLeaf, &'static [(u32, F)]);

/// Features of the system alone are left out: their instructions are
/// privileged.
#[rustfmt::skip]
const BITS: &[Leaf] = &[
    (0x1, 0, |r| r.ecx, &[(0, F::SSE3), (1, F::PCLMULQDQ), (3, F::MONITOR), (9, F::SSSE3), (12, F::FMA), (13, F::CMPXCHG16B), (19, F::SSE4_1), (20, F::SSE4_2), (22, F::MOVBE), (23, F::POPCNT), (25, F::AES), (26, F::XSAVE), (28, F::AVX), (29, F::F16C), (30, F::RDRAND)]),
    (0x1, 0, |r| r.edx, &[(4, F::TSC), (8, F::CX8), (15, F::CMOV), (19, F::CLFSH), (23, F::MMX), (24, F::FXSR), (25, F::SSE), (26, F::SSE2)]),
    (0x7, 0, |r| r.ebx, &[(0, F::FSGSBASE), (3, F::BMI1), (4, F::HLE), (5, F::AVX2), (8, F::BMI2), (11, F::RTM), (14, F::MPX), (16, F::AVX512F), (17, F::AVX512DQ), (18, F::RDSEED), (19, F::ADX), (21, F::AVX512_IFMA), (22, F::PCOMMIT), (23, F::CLFLUSHOPT), (24, F::CLWB), (26, F::AVX512PF), (27, F::AVX512ER), (28, F::AVX512CD), (29, F::SHA), (30, F::AVX512BW), (31, F::AVX512VL)]),
    (0x7, 0, |r| r.ecx, &[(0, F::PREFETCHWT1), (1, F::AVX512_VBMI), (3, F::PKU), (5, F::WAITPKG), (6, F::AVX512_VBMI2), (7, F::CET_SS), (8, F::GFNI), (9, F::VAES), (10, F::VPCLMULQDQ), (11, F::AVX512_VNNI), (12, F::AVX512_BITALG), (14, F::AVX512_VPOPCNTDQ), (22, F::RDPID), (23, F::KL), (25, F::CLDEMOTE), (27, F::MOVDIRI), (28, F::MOVDIR64B), (29, F::ENQCMD)]),
    (0x7, 0, |r| r.edx, &[(2, F::AVX512_4VNNIW), (3, F::AVX512_4FMAPS), (5, F::UINTR), (8, F::AVX512_VP2INTERSECT), (14, F::SERIALIZE), (16, F::TSXLDTRK), (20, F::CET_IBT), (22, F::AMX_BF16), (23, F::AVX512_FP16), (24, F::AMX_TILE), (25, F::AMX_INT8)]),
    (0x7, 1, |r| r.eax, &[(0, F::SHA512), (1, F::SM3), (2, F::SM4), (3, F::RAO_INT), (4, F::AVX_VNNI), (5, F::AVX512_BF16), (7, F::CMPCCXADD), (21, F::AMX_FP16), (23, F::AVX_IFMA)]),
    (0x7, 1, |r| r.edx, &[(4, F::AVX_VNNI_INT8), (5, F::AVX_NE_CONVERT), (8, F::AMX_COMPLEX), (10, F::AVX_VNNI_INT16), (14, F::PREFETCHITI)]),
    (0xd, 1, |r| r.eax, &[(0, F::XSAVEOPT), (1, F::XSAVEC), (3, F::XSAVES)]),
    (0x14, 0, |r| r.ebx, &[(4, F::PTWRITE)]),
    (0x19, 0, |r| r.ebx, &[(0, F::AESKLE), (2, F::WIDE_KL)]),
    (0x8000_0001, 0, |r| r.ecx, &[(5, F::LZCNT), (6, F::SSE4A), (8, F::PREFETCHW), (11, F::XOP), (15, F::LWP), (16, F::FMA4), (21, F::TBM), (29, F::MONITORX)]),
    (0x8000_0001, 0, |r| r.edx, &[(27, F::RDTSCP), (30, F::D3NOWEXT), (31, F::D3NOW)]),
    (0x8000_0008, 0, |r| r.ebx, &[(0, F::CLZERO), (4, F::RDPRU), (8, F::MCOMMIT)]),
];
const FEATURES: (u32, u32) = (1, 0);
/// In `ecx` of leaf 1: the system has enabled `XSAVE`, and `XCR0` can be read.
const OSXSAVE: u32 = 1 << 27;
/// State components of `XCR0`: SSE and AVX; with masks, upper halves of `zmm0` to `zmm15`, and
/// `zmm16` to `zmm31`.
const AVX_STATE: u64 = 0b110;
const AVX512_STATE: u64 = 0b1110_0110;

/// The features of a CPU, as far as the system lets programs use them.
pub struct Features {
    there: HashSet<F>,
}

impl Features {
    /// Those of the CPU that this runs on.
    pub fn of_this_cpu() -> Features {
        // SAFETY: every x86-64 CPU has the instruction; a leaf is asked for only if the CPU says
        // that it has it.
        #[allow(unused_unsafe)]
        let leaves = unsafe {
            let highest = |leaf: u32| __cpuid(leaf & 0x8000_0000).eax;
            let known = BITS.iter().map(|(leaf, sub, ..)| (*leaf, *sub)).filter(|(leaf, _)| *leaf <= highest(*leaf));
            known.map(|(leaf, sub)| ((leaf, sub), __cpuid_count(leaf, sub))).collect::<BTreeMap<_, _>>()
        };
        let xcr0 = if leaves[&FEATURES].ecx & OSXSAVE != 0 { enabled_state() } else { 0 };
        Features::new(&leaves, xcr0)
    }

    /// Those of a CPU with these leaves, by leaf and subleaf, and this `XCR0`.
    pub fn new(leaves: &BTreeMap<(u32, u32), CpuidResult>, xcr0: u64) -> Features {
        let mut there = HashSet::new();
        for (leaf, sub, register, bits) in BITS {
            let value = leaves.get(&(*leaf, *sub)).map_or(0, register);
            there.extend(bits.iter().filter(|(bit, _)| value >> bit & 1 == 1).map(|(_, feature)| *feature));
        }
        there.retain(|feature| xcr0 & state(*feature) == state(*feature));
        Features { there }
    }

    /// The same without some.
    pub fn without(mut self, lacking: &[F]) -> Features {
        self.there.retain(|feature| !lacking.contains(feature));
        self
    }

    /// The first feature that an instruction needs and this CPU lacks.
    pub fn lacking(&self, insn: &Instruction) -> Option<F> {
        insn.cpuid_features().iter().copied().find(|feature| !self.has(*feature))
    }

    fn has(&self, feature: F) -> bool {
        match feature {
            F::HLE_or_RTM => self.there.contains(&F::HLE) || self.there.contains(&F::RTM),
            // Tiles need a permission that a process has to ask for (`ARCH_REQ_XCOMP_PERM`).
            F::AMX_TILE | F::AMX_INT8 | F::AMX_BF16 | F::AMX_FP16 | F::AMX_COMPLEX => false,
            // What no bit tells is older than x86-64, or no CPU of today has it and the decoder
            // does not know it by default.
            _ => self.there.contains(&feature) || !has_bit(feature),
        }
    }
}

fn enabled_state() -> u64 {
    // SAFETY: `enabled_state` is called where CPUID has OSXSAVE, which the system has set then.
    unsafe { read_xcr0() }
}

/// # Safety
/// The system has enabled `XSAVE`.
#[target_feature(enable = "xsave")]
unsafe fn read_xcr0() -> u64 {
    // SAFETY: the system has enabled XSAVE, which is what the instruction needs.
    #[allow(unused_unsafe)]
    unsafe {
        _xgetbv(0)
    }
}

fn has_bit(feature: F) -> bool {
    BITS.iter().any(|(.., bits)| bits.iter().any(|(_, one)| *one == feature))
}

/// The state components without which an instruction of a feature is undefined.
fn state(feature: F) -> u64 {
    let name = format!("{feature:?}");
    match &name[..] {
        "FMA" | "FMA4" | "F16C" | "XOP" => AVX_STATE,
        _ if name.starts_with("AVX512") => AVX512_STATE,
        _ if name.starts_with("AVX") => AVX_STATE,
        _ => 0,
    }
}

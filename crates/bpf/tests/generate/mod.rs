//! Random instructions, each of which exists.

use proptest::prelude::*;
use sidestep_bpf::{AluOp, AtomicOp, Cond, Imm64, Insn, Operand, Reg, Size, Swap, Width};

/// A register below this number.
pub fn reg(below: u8) -> impl Strategy<Value = Reg> + Clone {
    (0..below).prop_map(|n| Reg::new(n).unwrap())
}

pub fn width() -> impl Strategy<Value = Width> + Clone {
    prop_oneof![Just(Width::W32), Just(Width::W64)]
}

pub fn size() -> impl Strategy<Value = Size> + Clone {
    prop_oneof![Just(Size::B), Just(Size::H), Just(Size::W), Just(Size::Dw)]
}

/// Immediates, the telling ones more often.
pub fn imm() -> impl Strategy<Value = i32> + Clone {
    let edges = [0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 127, 128, 255, 256, 65535, 65536, i32::MAX];
    prop_oneof![any::<i32>(), prop::sample::select(edges.to_vec()), prop::sample::select(edges.map(|i| -i).to_vec())]
}

/// Values of registers, the telling ones more often.
pub fn value() -> impl Strategy<Value = u64> + Clone {
    let edges = vec![i64::MIN as u64, i64::MAX as u64, 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 32) - 1, !0 << 31];
    prop_oneof![any::<u64>(), imm().prop_map(|i| i64::from(i) as u64), prop::sample::select(edges)]
}

pub fn operand(below: u8) -> impl Strategy<Value = Operand> + Clone {
    prop_oneof![reg(below).prop_map(Operand::Reg), imm().prop_map(Operand::Imm)]
}

pub fn alu_op() -> impl Strategy<Value = AluOp> + Clone {
    use AluOp::*;
    prop::sample::select(vec![Add, Sub, Mul, Div, Sdiv, Or, And, Lsh, Rsh, Arsh, Mod, Smod, Xor, Mov])
}

pub fn cond() -> impl Strategy<Value = Cond> + Clone {
    use Cond::*;
    prop::sample::select(vec![Eq, Ne, Gt, Ge, Lt, Le, Sgt, Sge, Slt, Sle, Set])
}

pub fn atomic_op() -> impl Strategy<Value = AtomicOp> + Clone {
    any::<bool>().prop_flat_map(|fetch| {
        prop::sample::select(vec![
            AtomicOp::Add { fetch },
            AtomicOp::Or { fetch },
            AtomicOp::And { fetch },
            AtomicOp::Xor { fetch },
            AtomicOp::Xchg,
            AtomicOp::Cmpxchg,
        ])
    })
}

/// Instructions that touch registers below `below` only, and nothing else.
pub fn arithmetic(below: u8) -> impl Strategy<Value = Insn> + Clone {
    let swap = prop_oneof![Just(Swap::Le), Just(Swap::Be), Just(Swap::Always)];
    let swap_size = prop_oneof![Just(Size::H), Just(Size::W), Just(Size::Dw)];
    let extension = prop::sample::select(vec![
        (Width::W32, Size::B),
        (Width::W32, Size::H),
        (Width::W64, Size::B),
        (Width::W64, Size::H),
        (Width::W64, Size::W),
    ]);
    prop_oneof![
        8 => (width(), alu_op(), reg(below), operand(below))
            .prop_map(|(width, op, dst, src)| Insn::Alu { width, op, dst, src }),
        1 => (width(), reg(below)).prop_map(|(width, dst)| Insn::Neg { width, dst }),
        1 => (extension, reg(below), reg(below))
            .prop_map(|((width, from), dst, src)| Insn::MovSx { width, dst, src, from }),
        1 => (swap, swap_size, reg(below)).prop_map(|(order, size, dst)| Insn::Swap { order, size, dst }),
        2 => (reg(below), value()).prop_map(|(dst, v)| Insn::LoadImm64 { dst, imm: Imm64::Value(v) }),
    ]
}

/// Any instruction at all.
#[allow(dead_code)]
pub fn any_insn() -> impl Strategy<Value = Insn> + Clone {
    let load = (size(), any::<bool>(), reg(11), reg(11), any::<i16>()).prop_map(|(size, signed, dst, base, off)| {
        Insn::Load { size, signed: signed && size != Size::Dw, dst, base, off }
    });
    let store = (size(), reg(11), any::<i16>(), operand(11)).prop_map(|(size, base, off, src)| Insn::Store {
        size,
        base,
        off,
        src,
    });
    let atomic = (width(), atomic_op(), reg(11), any::<i16>(), reg(11))
        .prop_map(|(width, op, base, off, src)| Insn::Atomic { width, op, base, off, src });
    let branch = (width(), cond(), reg(11), operand(11), any::<i16>())
        .prop_map(|(width, cond, dst, src, off)| Insn::Branch { width, cond, dst, src, off });
    let reference = prop_oneof![
        any::<u32>().prop_map(Imm64::MapFd),
        any::<(u32, u32)>().prop_map(|(map, offset)| Imm64::MapFdValue { map, offset }),
        any::<(u32, u32)>().prop_map(|(id, module)| Imm64::BtfId { id, module }),
        any::<i32>().prop_map(Imm64::Func),
        any::<u32>().prop_map(Imm64::Map),
        any::<(u32, u32)>().prop_map(|(map, offset)| Imm64::MapValue { map, offset }),
        any::<u32>().prop_map(Imm64::Thread),
    ];
    prop_oneof![
        6 => arithmetic(11),
        2 => load,
        2 => store,
        2 => atomic,
        2 => branch,
        1 => (reg(11), reference).prop_map(|(dst, imm)| Insn::LoadImm64 { dst, imm }),
        1 => any::<i16>().prop_map(|off| Insn::Goto { off: off.into(), long: false }),
        1 => any::<i32>().prop_map(|off| Insn::Goto { off, long: true }),
        1 => any::<u32>().prop_map(Insn::CallHelper),
        1 => any::<i32>().prop_map(Insn::CallLocal),
        1 => Just(Insn::Exit),
    ]
}

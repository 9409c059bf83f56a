//! What is emitted is what the assembler would write.

use sidestep_isa::a32::emit::{Asm, Cond, list, switch};
use sidestep_isa::{Isa, Va};

use crate::oracle::{assemble, has_llvm};

const AT: u64 = 0x4010_0000;

fn emitted(isa: Isa, emit: impl FnOnce(&mut Asm)) -> Vec<u8> {
    let mut asm = Asm::new(isa, Va(AT));
    emit(&mut asm);
    asm.finish().expect("an encoding")
}

/// All registers of each kind, and borders of numbers.
#[test]
fn instructions_are_those_of_the_assembler() {
    if !has_llvm(2) {
        return;
    }
    for isa in [Isa::A32, Isa::T32] {
        let wide = if isa == Isa::T32 { ".w" } else { "" };
        let mut text = String::new();
        let code = emitted(isa, |asm| {
            let mut line = |asm: &mut Asm, emit: &dyn Fn(&mut Asm), line: String| {
                emit(asm);
                text += &(line + "\n");
            };
            for (d, n, m) in [(0, 1, 2), (12, 11, 10), (8, 3, 14), (14, 7, 0)] {
                line(asm, &|a| a.movw(d, 0xa5c3), format!("movw r{d}, #0xa5c3"));
                line(asm, &|a| a.movt(d, 0x5a3c), format!("movt r{d}, #0x5a3c"));
                line(asm, &|a| a.mov(d, m), format!("mov{wide} r{d}, r{m}"));
                line(asm, &|a| a.add(d, n, m, 0), format!("add{wide} r{d}, r{n}, r{m}"));
                line(asm, &|a| a.add(d, n, m, 5), format!("add{wide} r{d}, r{n}, r{m}, lsl #5"));
                line(asm, &|a| a.sub(d, n, m), format!("sub{wide} r{d}, r{n}, r{m}"));
                line(asm, &|a| a.orr(d, n, m, 27), format!("orr{wide} r{d}, r{n}, r{m}, lsl #27"));
                line(asm, &|a| a.mul(d, n, m), format!("mul r{d}, r{n}, r{m}"));
                line(asm, &|a| a.umull(d, n, m, n), format!("umull r{d}, r{n}, r{m}, r{n}"));
                line(asm, &|a| a.ubfx(d, n, 27, 5), format!("ubfx r{d}, r{n}, #27, #5"));
                line(asm, &|a| a.ubfx(d, n, 0, 13), format!("ubfx r{d}, r{n}, #0, #13"));
                line(asm, &|a| a.and_imm(d, n, 0xa5), format!("and r{d}, r{n}, #0xa5"));
                line(asm, &|a| a.bic_imm(d, n, 7), format!("bic r{d}, r{n}, #7"));
                line(asm, &|a| a.orr_imm(d, n, 0x10), format!("orr r{d}, r{n}, #0x10"));
                line(asm, &|a| a.cmp_imm(n, 0xff), format!("cmp{wide} r{n}, #0xff"));
                line(asm, &|a| a.cmp(n, m), format!("cmp{wide} r{n}, r{m}"));
                line(asm, &|a| a.ldr(d, n, 4092), format!("ldr{wide} r{d}, [r{n}, #4092]"));
                line(asm, &|a| a.str(d, n, 8), format!("str{wide} r{d}, [r{n}, #8]"));
                line(asm, &|a| a.ldrex(d, n), format!("ldrex r{d}, [r{n}]"));
                line(asm, &|a| a.strex(d, m, n), format!("strex r{d}, r{m}, [r{n}]"));
                line(asm, &|a| a.mrs(d), format!("mrs r{d}, apsr"));
                line(asm, &|a| a.msr(n), format!("msr apsr_nzcvqg, r{n}"));
                line(asm, &|a| a.thread_pointer(d), format!("mrc p15, #0, r{d}, c13, c0, #3"));
                line(asm, &|a| a.vmrs(d), format!("vmrs r{d}, fpscr"));
                line(asm, &|a| a.vmsr(d), format!("vmsr fpscr, r{d}"));
                line(asm, &|a| a.push(list(&[d])), format!("str r{d}, [sp, #-4]!"));
                line(asm, &|a| a.pop(list(&[d])), format!("ldr r{d}, [sp], #4"));
                line(asm, &|a| a.bx(m), format!("bx r{m}"));
                line(asm, &|a| a.blx(m), format!("blx r{m}"));
                let (op, sub) = if isa == Isa::T32 { ("addw", "subw") } else { ("add", "sub") };
                for value in [0, 1, 0xff, 0x100] {
                    line(asm, &|a| a.add_imm(d, n, value), format!("{op} r{d}, r{n}, #{value}"));
                    line(asm, &|a| a.sub_imm(13, 13, value), format!("{sub} sp, sp, #{value}"));
                }
            }
            for d in [0, 7, 15, 16, 31] {
                line(asm, &|a| a.vstr(d, 4, 1020), format!("vstr d{d}, [r4, #1020]"));
                line(asm, &|a| a.vldr(d, 13, 0), format!("vldr d{d}, [sp]"));
            }
            line(asm, &|a| a.stm(13, list(&[12, 14])), format!("stm{wide} sp, {{r12, lr}}"));
            line(asm, &|a| a.ldm(13, list(&[12, 14])), format!("ldm{wide} sp, {{r12, lr}}"));
            line(asm, &|a| a.push(list(&[0, 12])), format!("push{wide} {{r0, r12}}"));
            line(asm, &|a| a.pop(list(&[4, 15])), format!("pop{wide} {{r4, pc}}"));
            line(asm, &|a| a.svc(), "svc #0".to_owned());
            line(asm, &|a| a.nop(), "nop".to_owned());
        });
        let expected = assemble(isa, &text, AT);
        let line = code.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        assert!(
            code == expected,
            "{isa:?}: at {line}: {:02x?}, not {:02x?}",
            &code[line & !3..][..4],
            &expected[line & !3..][..4]
        );
    }
}

#[test]
fn branches_lead_where_the_assembler_has_them() {
    if !has_llvm(2) {
        return;
    }
    for isa in [Isa::A32, Isa::T32] {
        let wide = if isa == Isa::T32 { ".w" } else { "" };
        let code = emitted(isa, |asm| {
            let [back, ahead, value] = [asm.label(), asm.label(), asm.label()];
            asm.bind(back);
            asm.b(ahead);
            asm.b_cond(Cond::Ne, back);
            asm.b_cond(Cond::Eq, ahead);
            asm.b_numbered(8, ahead);
            asm.ldr_literal(12, value);
            asm.b(back);
            asm.bind(ahead);
            asm.bind(value);
            asm.quad(0x1122_3344_5566_7788);
        });
        let text = format!(
            "1: b{wide} 2f\nbne{wide} 1b\nbeq{wide} 2f\nbhi{wide} 2f\nldr{wide} r12, 2f\nb{wide} 1b\n2: .word 0x55667788, 0x11223344"
        );
        assert_eq!(code, assemble(isa, &text, AT), "{isa:?}");
    }
    // To A32, from each place of T32.
    for (isa, before, to) in [(Isa::A32, 0, 0x100_0000_i64), (Isa::T32, 0, 0xff_f000), (Isa::T32, 2, -0xff_f000)] {
        let target = AT.wrapping_add_signed(to);
        let code = emitted(isa, |asm| {
            (0..before / 2).for_each(|_| asm.nop());
            asm.call_a32(Va(target)).expect("near");
        });
        let (nop, op) = (if before > 0 { "nop\n" } else { "" }, if isa == Isa::T32 { "blx" } else { "bl" });
        let expected = assemble(isa, &format!("{nop}{op} #{}", to - if isa == Isa::T32 { 4 } else { 8 }), AT);
        assert_eq!(code, expected, "{isa:?} {before} {to}");
    }
}

#[test]
fn what_has_no_encoding_is_said() {
    for isa in [Isa::A32, Isa::T32] {
        let mut asm = Asm::new(isa, Va(AT));
        let far = 1 << if isa == Isa::T32 { 24 } else { 25 };
        assert!(asm.b_to(Va(AT + far + 8)).is_err() && asm.b_to(Va(AT - far - 8)).is_err());
        assert!(asm.call_a32(Va(AT + far + 8)).is_err() && asm.call_a32(Va(AT + 2)).is_err() && asm.is_empty());
        type Emit = fn(&mut Asm);
        let bad: [Emit; 5] = [
            |asm| asm.ldr(0, 0, 4096),
            |asm| asm.vldr(0, 0, 1024),
            |asm| asm.vldr(0, 0, 2),
            |asm| asm.add_imm(0, 0, 0x1001),
            |asm| asm.ubfx(0, 0, 20, 13),
        ];
        for emit in bad {
            let mut asm = Asm::new(isa, Va(AT));
            emit(&mut asm);
            assert!(asm.finish().is_err(), "{isa:?}");
        }
        assert!(Asm::new(isa, Va(AT)).has_immediate(0x101) == (isa == Isa::T32));
    }
}

/// One instruction changes, and it is one that may change while threads run.
#[test]
fn switches_are_instructions_that_may_replace_each_other() {
    for (isa, len, reach) in [(Isa::A32, 4, 1 << 25), (Isa::T32, 2, 1 << 11)] {
        for over in [8, 64, reach] {
            let [on, off] = switch(isa, Va(AT), Va(AT + over)).expect("near");
            let [on, off] = [on.to_le_bytes(), off.to_le_bytes()];
            assert_eq!(on[len..], off[len..], "{isa:?}");
            assert!(sidestep_isa::patch::is_one_write(isa, &on[..len], &off[..len]), "{isa:?}");
            let insn = sidestep_isa::decode(isa, &off, Va(AT)).expect("an instruction");
            assert_eq!(insn.flow(), sidestep_isa::Flow::Jump(Va(AT + over)), "{isa:?}");
            let insns = sidestep_isa::sweep(isa, &on, Va(AT)).map(|insn| insn.expect("an instruction").is_nop());
            assert_eq!(insns.collect::<Vec<_>>(), vec![true; 8 / len], "{isa:?}");
        }
        assert_eq!(switch(isa, Va(AT), Va(AT + 2 * reach)), None);
    }
}

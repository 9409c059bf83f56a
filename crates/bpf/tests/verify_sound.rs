//! What the verifier accepts does nothing wrong, whatever the target gives it: random programs on
//! random data, in the interpreter, with every access checked.

mod cases;

use cases::random::{Random, program};
use cases::{maps, rules};
use sidestep_bpf::interp::{Machine, Stop, Vm};
use sidestep_bpf::pass::{Link, Values};
use sidestep_bpf::verify::{Rules, Verified, verify};
use sidestep_bpf::{AtomicOp, Imm64, Insn, Size, Width, alu};

const CONTEXT: u64 = 0x10_0000;
const VALUE: u64 = 0x20_0000;
const STACK_END: u64 = 0x30_1000;

/// Memory that exists: context, one map value, the stack. What is read before it was written is an
/// error, too.
#[derive(Clone)]
struct Memory {
    context: [u8; 176],
    value: [u8; 64],
    stack: Vec<Option<u8>>,
    /// Answer of the lookup.
    found: bool,
}

impl Memory {
    fn byte(&self, address: u64) -> Option<u8> {
        let at = |base: u64| address.checked_sub(base).map(|at| at as usize);
        let context = at(CONTEXT).and_then(|at| self.context.get(at).copied());
        let value = || at(VALUE).and_then(|at| self.value.get(at).copied());
        context.or_else(value).or_else(|| self.stack.get((STACK_END.checked_sub(address)?) as usize).copied()?)
    }
}

impl Machine for Memory {
    fn load(&mut self, address: u64, size: Size) -> Result<u64, Stop> {
        let mut value = 0;
        for i in (0..size.bytes() as u64).rev() {
            let byte = self.byte(address.wrapping_add(i)).ok_or(Stop::Fault(address))?;
            value = value << 8 | u64::from(byte);
        }
        Ok(value)
    }

    fn store(&mut self, address: u64, size: Size, value: u64) -> Result<(), Stop> {
        for (i, byte) in value.to_le_bytes().into_iter().take(size.bytes()).enumerate() {
            let address = address.wrapping_add(i as u64);
            let in_value = address.checked_sub(VALUE).and_then(|at| self.value.get_mut(at as usize));
            if let Some(place) = in_value {
                *place = byte;
                continue;
            }
            let in_stack = STACK_END.checked_sub(address).filter(|at| *at > 0);
            let place = in_stack.and_then(|at| self.stack.get_mut(at as usize));
            *place.ok_or(Stop::Fault(address))? = Some(byte);
        }
        Ok(())
    }

    fn atomic(&mut self, address: u64, width: Width, op: AtomicOp, operand: u64, r0: u64) -> Result<u64, Stop> {
        if address % width.size().bytes() as u64 != 0 {
            return Err(Stop::Fault(address));
        }
        let old = self.load(address, width.size())?;
        self.store(address, width.size(), alu::truncate(width.size(), alu::atomic(width, op, old, operand, r0)))?;
        Ok(old)
    }

    fn call(&mut self, _: &mut Vm<'_>, helper: u32, args: [u64; 5]) -> Result<u64, Stop> {
        assert_eq!(helper, 1, "the only helper of these programs");
        let key = self.load(args[1], Size::W)?;
        Ok(if self.found && key == 0 { VALUE } else { 0 })
    }
}

/// Random bytes, with the values that comparisons and sign extension turn on more often.
fn fill(random: &mut Random, bytes: &mut [u8]) {
    for word in bytes.chunks_mut(8) {
        let value = match random.below(6) {
            0 => random.below(70) as u64,
            1 => (random.below(70) as u64).wrapping_neg(),
            2 => 1u64 << random.below(64),
            3 => (1u64 << random.below(64)).wrapping_sub(1),
            4 => random.next() & 0xffff_ffff | (random.below(2) as u64) << 32,
            _ => random.next(),
        };
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

#[test]
fn accepted_programs_stay_within_their_memory() {
    let maps = maps();
    let (mut accepted, mut joined, mut ended) = (0, 0, 0);
    for seed in 0..6000 {
        let program = program(seed);
        // What is proven of joined paths is proven of each path, too.
        let with = |joins| verify(&program, &Rules { joins, ..rules(&maps) }).ok();
        let (each, all) = (with(false), with(true));
        assert!(all.is_none() || each.is_some(), "seed {seed}");
        let differs = |all: &Verified| each.as_ref().is_some_and(|each| each.steps != all.steps);
        joined += u32::from(all.as_ref().is_some_and(differs));
        let Some(verified) = all.or(each) else { continue };
        accepted += 1;
        let values = |entries| Some(Values { base: Imm64::Value(VALUE), stride: 64, entries });
        let simple = [0, 1].map(|entries| verified.link(&[Link { map: 7, values: values(entries) }; 7]).unwrap());
        let mut linked = verified.program;
        for (pc, insn) in program.iter().map(Result::unwrap) {
            if let Insn::LoadImm64 { dst, imm: Imm64::Map(_) } = insn {
                linked.slots[pc] = Insn::LoadImm64 { dst, imm: Imm64::Value(7) }.encode().0;
            }
        }
        let mut random = Random::new(seed ^ 0xabcd);
        for round in 0..12 {
            let stack = vec![None; 4097];
            let mut memory = Memory { context: [0; 176], value: [0; 64], stack, found: round != 0 };
            fill(&mut random, &mut memory.context);
            fill(&mut random, &mut memory.value);
            let mut other = memory.clone();
            let mut vm = Vm::new(&linked.slots, STACK_END, 4096, 100_000);
            let result = vm.call(&mut memory, 0, [CONTEXT, 0, 0, 0, 0]);
            let text: Vec<_> = program.iter().map(|i| i.unwrap()).map(|(pc, i)| format!("{pc}: {i}")).collect();
            assert!(result.is_ok(), "seed {seed}, insn {}: {result:?}\n{}", vm.pc(), text.join("\n"));
            ended += 1;
            // Nor do the passes change what it does.
            let simple = &simple[usize::from(other.found)].program;
            let mut vm = Vm::new(&simple.slots, STACK_END, 4096, 100_000);
            let again = vm.call(&mut other, 0, [CONTEXT, 0, 0, 0, 0]);
            let short: Vec<_> = simple.iter().map(|i| i.unwrap()).map(|(pc, i)| format!("{pc}: {i}")).collect();
            let same = again == result && other.value == memory.value;
            assert!(same, "seed {seed}: {again:?}\n{}\n\n{}", text.join("\n"), short.join("\n"));
        }
    }
    assert!(accepted > 600, "too few programs are accepted to say anything: {accepted}");
    assert!(joined > 100, "too few of them have paths that were joined: {joined}");
    assert_eq!(ended, 12 * accepted);
}

//! A machine for the interpreter: a target with registers and pages, and the helpers that programs
//! of events call.

#![allow(dead_code)]

use std::collections::BTreeMap;

use sidestep_bpf::interp::{FRAME, Machine, Stop, Vm};
use sidestep_bpf::verify::{Helper, Problem, Rules, verify};
use sidestep_bpf::{AtomicOp, Imm64, Insn, Program, Size, Width};
use sidestep_lang::uprobe_events::{Compiled, Event, Filter, Options, Probe, Register, Submit, compile};

const CONTEXT: u64 = 0x10_0000;
const STACK: u64 = 0x20_0000;
const RECORD: u64 = 0x30_0000;
const RING: u64 = 0x40_0000;
const EFAULT: u64 = -14i64 as u64;

/// What a program runs in.
#[derive(Clone, Default)]
pub struct Target {
    pub regs: [u64; 21],
    pages: BTreeMap<u64, Vec<u8>>,
    pub comm: [u8; 16],
    pub pid_tgid: u64,
    pub cpu: u64,
    pub function: u64,
    /// The ring has no room.
    pub full: bool,
}

impl Target {
    /// Process 42, thread 43, `redis-server`, at 0x401136.
    pub fn new() -> Target {
        let mut target = Target { pid_tgid: 42 << 32 | 43, cpu: 3, function: 0x401136, ..Target::default() };
        target.comm[..12].copy_from_slice(b"redis-server");
        target.set("ip", 0x401136)
    }

    pub fn set(mut self, register: &str, value: u64) -> Target {
        self.regs[Register::by_name(register).unwrap().offset() as usize / 8] = value;
        self
    }

    /// Writes memory, in pages that then exist.
    pub fn write(mut self, address: u64, bytes: &[u8]) -> Target {
        for (at, byte) in (address..).zip(bytes) {
            self.pages.entry(at >> 12).or_insert_with(|| vec![0; 4096])[at as usize & 4095] = *byte;
        }
        self
    }

    pub fn words(self, address: u64, words: &[u64]) -> Target {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.write(address, &bytes)
    }

    fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        (0..len as u64).map(|n| self.byte(address.wrapping_add(n))).collect()
    }

    fn byte(&self, address: u64) -> Option<u8> {
        self.pages.get(&(address >> 12)).map(|page| page[address as usize & 4095])
    }
}

/// What a run did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// What was submitted.
    pub record: Option<Vec<u8>>,
    /// Helpers, as they were called.
    pub calls: Vec<u32>,
    pub stores: usize,
    pub budget: u64,
}

struct Run<'a> {
    target: &'a Target,
    stack: Vec<u8>,
    /// Filled with what earlier records left.
    record: Option<Vec<u8>>,
    out: Outcome,
}

impl Run<'_> {
    fn memory(&mut self, address: u64, len: usize) -> Result<&mut [u8], Stop> {
        let (start, memory) = match address {
            STACK.. if address < STACK + self.stack.len() as u64 => (STACK, &mut self.stack),
            _ => (RECORD, self.record.as_mut().ok_or(Stop::Fault(address))?),
        };
        let from = address.checked_sub(start).ok_or(Stop::Fault(address))? as usize;
        memory.get_mut(from..from + len).ok_or(Stop::Fault(address))
    }
}

impl Machine for Run<'_> {
    fn load(&mut self, address: u64, size: Size) -> Result<u64, Stop> {
        let mut word = [0; 8];
        if (CONTEXT..CONTEXT + 168).contains(&address) {
            let at = (address - CONTEXT) as usize;
            let bytes = self.target.regs[at / 8].to_le_bytes();
            word[..size.bytes()].copy_from_slice(&bytes[at % 8..at % 8 + size.bytes()]);
        } else {
            word[..size.bytes()].copy_from_slice(self.memory(address, size.bytes())?);
        }
        Ok(u64::from_le_bytes(word))
    }

    fn store(&mut self, address: u64, size: Size, value: u64) -> Result<(), Stop> {
        self.out.stores += 1;
        self.memory(address, size.bytes())?.copy_from_slice(&value.to_le_bytes()[..size.bytes()]);
        Ok(())
    }

    fn atomic(&mut self, address: u64, _: Width, _: AtomicOp, _: u64, _: u64) -> Result<u64, Stop> {
        Err(Stop::Fault(address))
    }

    fn call(&mut self, _: &mut Vm<'_>, helper: u32, [a, b, c, ..]: [u64; 5]) -> Result<u64, Stop> {
        self.out.calls.push(helper);
        match helper {
            8 => Ok(self.target.cpu),
            14 => Ok(self.target.pid_tgid),
            16 => {
                let comm = self.target.comm;
                self.memory(a, b as usize)?.copy_from_slice(&comm[..b as usize]);
                Ok(0)
            }
            112 => {
                let bytes = self.target.read(c, b as usize);
                let to = self.memory(a, b as usize)?;
                to.copy_from_slice(bytes.as_deref().unwrap_or(&vec![0; b as usize]));
                Ok(bytes.map_or(EFAULT, |_| 0))
            }
            114 => {
                let target = self.target;
                let to = self.memory(a, b as usize)?;
                for n in 0..b as usize {
                    match target.byte(c.wrapping_add(n as u64)) {
                        None => {
                            to.fill(0);
                            return Ok(EFAULT);
                        }
                        Some(byte) => to[n] = if n + 1 == to.len() { 0 } else { byte },
                    }
                    if to[n] == 0 {
                        return Ok(n as u64 + 1);
                    }
                }
                Ok(0)
            }
            131 => {
                assert_eq!((a, c, self.record.is_none()), (RING, 0, true));
                if self.target.full {
                    return Ok(0);
                }
                self.record = Some(vec![0xee; b as usize]);
                Ok(RECORD)
            }
            132 | 133 | 257 => {
                assert_eq!(a, RECORD);
                let mut record = self.record.take().ok_or(Stop::Fault(a))?;
                if helper == 257 {
                    assert!(b as usize <= record.len());
                    record.truncate(b as usize);
                }
                if helper != 133 {
                    self.out.record = Some(record);
                }
                Ok(0)
            }
            173 => {
                assert_eq!(a, CONTEXT);
                Ok(self.target.function)
            }
            other => Err(Stop::Helper(other)),
        }
    }
}

fn linked(program: &Program) -> Program {
    let link = |insn| match insn {
        Insn::LoadImm64 { dst, imm: Imm64::Map(0) } => Insn::LoadImm64 { dst, imm: Imm64::Value(RING) },
        other => other,
    };
    let insns: Vec<_> = program.iter().map(|insn| link(insn.unwrap().1)).collect();
    Program::from_insns(&insns).unwrap()
}

/// Runs a program; nothing may be left open.
pub fn run(compiled: &Compiled, target: &Target) -> Outcome {
    let program = linked(&compiled.program);
    let mut run = Run { target, stack: vec![0xcc; 4 * FRAME as usize], record: None, out: Outcome::default() };
    let end = STACK + run.stack.len() as u64;
    let mut vm = Vm::new(&program.slots, end, run.stack.len() as u64, 1 << 20);
    let result = vm.call(&mut run, 0, [CONTEXT, 0, 0, 0, 0]);
    assert_eq!(result, Ok(0), "at {}:\n{}", vm.pc(), listing(&program));
    assert_eq!(run.record, None, "a record was neither submitted nor discarded");
    Outcome { budget: (1 << 20) - vm.budget(), ..run.out }
}

/// The program, to be read.
pub fn listing(program: &Program) -> String {
    program.iter().map(Result::unwrap).map(|(at, insn)| format!("{at:3}: {insn}\n")).collect()
}

/// Compiles and verifies a line with a filter. Helper 257 is submitted with if the verifier knows
/// it; else that must be why the program is refused, and the program is proven with records of full
/// length.
pub fn compiled(line: &str, filter: &str) -> Compiled {
    let event = Event::parse(line).unwrap_or_else(|e| panic!("{}", e.render(line)));
    let filter = Filter::parse(filter, &event).unwrap_or_else(|e| panic!("{}", e.render(filter)));
    compiled_event(event, Some(filter))
}

pub fn compiled_event(event: Event, filter: Option<Filter>) -> Compiled {
    let probe = Probe { event, filter };
    let make = |submit| {
        let options = Options { submit, ..Options::default() };
        compile(std::slice::from_ref(&probe), &options).unwrap().remove(0)
    };
    let (part, whole) = (make(Submit::Part), make(Submit::Whole));
    let check = |compiled: &Compiled| verify(&compiled.program, &Rules { maps: &compiled.maps, ..Rules::default() });
    check(&whole).unwrap_or_else(|e| panic!("{e}\n{}", listing(&whole.program)));
    match (check(&part), Helper::by_number(257)) {
        (Ok(_), _) => {}
        (Err(error), None) => assert_eq!(error.problem, Problem::NoHelper(257)),
        (Err(error), Some(_)) => panic!("{error}\n{}", listing(&part.program)),
    }
    part
}

/// The line that a hit prints, if it is recorded.
pub fn printed(line: &str, filter: &str, target: &Target) -> Option<String> {
    let compiled = compiled(line, filter);
    run(&compiled, target).record.map(|record| compiled.format.render(&record).unwrap())
}

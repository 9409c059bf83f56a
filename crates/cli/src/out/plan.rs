//! A plan for people.

use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};
use sidestep_engine::Explained;
use sidestep_isa::Isa;
use sidestep_plan::explain::{patched, technique};
use sidestep_plan::{DisplacedInsn, Plan, SiteKind};

/// Names by the bit numbers of [`Plan::dead_regs`].
const REGISTERS: [&str; 16] =
    ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
const REGISTERS_32: [&str; 8] = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"];

/// The lines for one site. `verbose`: also what the detour need not save.
pub fn lines(site: &Explained, verbose: bool) -> Vec<String> {
    let mut lines = vec![format!("{} in {}", site.name, site.object.display())];
    match &site.plan {
        Ok(plan) => describe(plan, verbose, &mut lines),
        Err(refusal) => {
            lines.push(field("address", &refusal.asked.to_string()));
            lines.push(field("technique", &format!("none: {}", refusal.reason)));
        }
    }
    lines
}

fn describe(plan: &Plan, verbose: bool, lines: &mut Vec<String>) {
    let place = match plan.kind {
        SiteKind::FunctionEntry => "function entry",
        SiteKind::Inside => "inside a function",
    };
    lines.push(field("address", &format!("{}, {place}", plan.asked)));
    lines.push(field("technique", &technique(plan)));
    let end = plan.site.plus(plan.region);
    lines.push(field("replaces", &format!("{} to {end}, {} bytes", plan.site, plan.region.0)));
    let (bytes, insn) = patched(plan);
    lines.push(field("by", &format!("{bytes}  {insn}")));
    for (index, insn) in plan.displaced.iter().enumerate() {
        let note = if index < plan.before_handler { "    (runs before the handler)" } else { "" };
        lines.push(field(if index == 0 { "displaces" } else { "" }, &format!("{}{note}", instruction(plan.isa, insn))));
    }
    match plan.resume {
        Some(resume) => lines.push(field("resumes at", &resume.to_string())),
        None => lines.push(field("resumes at", "no address: the last displaced instruction does not fall through")),
    }
    match plan.returns {
        Ok(_) => lines.push(field("returns", "by a replaced return address")),
        Err(reason) => lines.push(field("returns", &format!("not watched: {reason}"))),
    }
    if verbose {
        let names = match plan.isa {
            Isa::X86 => &REGISTERS_32[..],
            Isa::X64 => &REGISTERS,
        };
        let named = names.iter().enumerate().filter(|(bit, _)| plan.dead_regs >> bit & 1 == 1);
        let mut dead: Vec<&str> = named.map(|(_, name)| *name).collect();
        if plan.dead_flags {
            dead.push("flags");
        }
        let dead = if dead.is_empty() { "nothing".to_owned() } else { dead.join(" ") };
        lines.push(field("not live", &dead));
    }
    for rejected in &plan.rejected {
        lines.push(field("no better", &format!("{}: {}", rejected.technique, rejected.reason)));
    }
}

fn field(name: &str, value: &str) -> String {
    format!("  {name:<10}  {value}")
}

/// Address, bytes and assembly, like objdump.
fn instruction(isa: Isa, insn: &DisplacedInsn) -> String {
    let bytes = &insn.bytes[..usize::from(insn.len).min(insn.bytes.len())];
    let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut decoder = Decoder::with_ip(isa.bits(), bytes, insn.va.0, DecoderOptions::NONE);
    let mut text = String::new();
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_uppercase_hex(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_branch_leading_zeros(false);
    options.set_rip_relative_addresses(false);
    formatter.format(&decoder.decode(), &mut text);
    format!("{}  {:<24}  {text}", insn.va, hex.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_isa::{Len, Va};
    use sidestep_plan::{Patch, Refusal, Rejected, Technique};

    fn insn(va: u64, code: &[u8]) -> DisplacedInsn {
        let mut bytes = [0; 15];
        bytes[..code.len()].copy_from_slice(code);
        DisplacedInsn { va: Va(va), bytes, len: code.len() as u8 }
    }

    #[test]
    fn plan_is_readable() {
        let plan = Plan {
            isa: Isa::X64,
            asked: Va(0x1000),
            site: Va(0x1004),
            kind: SiteKind::FunctionEntry,
            technique: Technique::JumpOverSeveral,
            patch: Patch::Jump { prefixes: 0, stub: None },
            region: Len(5),
            displaced: vec![insn(0x1004, &[0x55]), insn(0x1005, &[0x48, 0x83, 0xec, 0x18])],
            resume: Some(Va(0x1009)),
            emulated: None,
            before_handler: 0,
            dead_regs: 1 | 1 << 11,
            dead_flags: true,
            returns: Ok(0),
            rejected: vec![Rejected { technique: Technique::Jump, reason: "the instruction has 1 byte".to_owned() }],
        };
        let site = Explained { name: "f".to_owned(), object: "/bin/a".into(), plan: Ok(plan) };
        let expected = "\
f in /bin/a
  address     0x1000, function entry
  technique   jump over several
  replaces    0x1004 to 0x1009, 5 bytes
  by          e9 xx xx xx xx  jmp    detour
  displaces   0x1004  55                        push %rbp
              0x1005  48 83 ec 18               sub $0x18,%rsp
  resumes at  0x1009
  returns     by a replaced return address
  not live    rax r11 flags
  no better   jump: the instruction has 1 byte";
        assert_eq!(lines(&site, true).join("\n"), expected);
        assert!(!lines(&site, false).iter().any(|line| line.contains("not live")));
    }

    #[test]
    fn refusal_has_its_reason() {
        let refusal = Refusal { asked: Va(0x20), reason: "inside an atomic sequence".to_owned() };
        let site = Explained { name: "f".to_owned(), object: "/bin/a".into(), plan: Err(refusal) };
        assert_eq!(lines(&site, false)[2], "  technique   none: inside an atomic sequence");
    }
}

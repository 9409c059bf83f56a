//! A plan as text, for `sidestep explain`.

use sidestep_isa::{Isa, decode};

use crate::codegen::detour;
use crate::policy::plan::{DisplacedInsn, Patch, Plan, Rejected, SiteKind};

/// How the returns of a function are watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Returns {
    /// At its exits: a plan for each.
    AtExits(Vec<Plan>),
    /// The return address of each call is replaced.
    ByAddress {
        /// Why not at the exits, a clause.
        why: String,
    },
    /// Not at all.
    Not {
        /// Why, a clause.
        why: String,
    },
}

/// The lines for the user: what is written where, what moves, and why nothing better was chosen.
/// `verbose`: also what the detour need not save.
#[must_use]
pub fn lines(plan: &Plan, returns: &Returns, verbose: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let place = match plan.kind {
        SiteKind::FunctionEntry => "function entry",
        SiteKind::Inside => "inside a function",
    };
    lines.push(field("address", &format!("{}, {place}", plan.asked)));
    lines.push(field("technique", &technique(plan)));
    let end = plan.site.plus(plan.region);
    let bytes = if plan.region.0 == 1 { "1 byte".to_owned() } else { format!("{} bytes", plan.region.0) };
    lines.push(field("replaces", &format!("{} to {end}, {bytes}", plan.site)));
    if let Some(lead) = &plan.lead {
        lines.push(field("stays", &instruction(plan.isa, &lead.insn)));
    }
    let (bytes, insn) = patched(plan);
    lines.push(field("by", &format!("{bytes}  {insn}")));
    for (index, insn) in plan.displaced.iter().enumerate() {
        let note = if index < plan.before_handler { "    (runs before the handler)" } else { "" };
        let name = if index == 0 { "displaces" } else { "" };
        lines.push(field(name, &format!("{}{note}", instruction(plan.isa, insn))));
    }
    match plan.resume {
        Some(resume) => lines.push(field("resumes at", &resume.to_string())),
        None => lines.push(field("resumes at", "no address: the last displaced instruction does not fall through")),
    }
    lines.extend(returns_lines(returns, verbose));
    lines.push(field("uprobes", uprobes(plan)));
    if verbose {
        let named = plan.isa.limits().registers.iter().enumerate().filter(|(bit, _)| plan.dead_regs >> bit & 1 == 1);
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
    lines
}

/// How returns are watched, and where. `verbose`: also why no technique is better there.
fn returns_lines(returns: &Returns, verbose: bool) -> Vec<String> {
    let exit = |plan: &Plan| {
        let insn = plan.displaced.iter().find(|insn| insn.va == plan.asked);
        let insn = insn.map_or(String::new(), |insn| disassembled(plan.isa, insn));
        let from = if plan.site == plan.asked { String::new() } else { format!(", from {}", plan.site) };
        let at = field("exit", &format!("{}  {insn}: {}{from}", plan.asked, plan.technique));
        let rejected = plan.rejected.iter().filter(|_| verbose);
        let why = |rejected: &Rejected| field("", &format!("no {}: {}", rejected.technique, rejected.reason));
        std::iter::once(at).chain(rejected.map(why)).collect::<Vec<_>>()
    };
    match returns {
        Returns::AtExits(exits) => {
            let count = if exits.len() == 1 { "its exit".to_owned() } else { format!("its {} exits", exits.len()) };
            std::iter::once(field("returns", &format!("at {count}"))).chain(exits.iter().flat_map(exit)).collect()
        }
        Returns::ByAddress { why } => vec![field("returns", &format!("by a replaced return address: {why}"))],
        Returns::Not { why } => vec![field("returns", &format!("not watched: {why}"))],
    }
}

/// What becomes of a uprobe of the kernel at the same address.
fn uprobes(plan: &Plan) -> &'static str {
    match plan.patch {
        _ if plan.is_beside_uprobes() => "of the kernel at this address may come and go: both see each hit",
        Patch::Trap => "of the kernel that come to this address take the hits: end this probe first",
        Patch::Jump { .. } | Patch::Short { .. } => {
            "of the kernel that come to this address would break the jump: end this probe first"
        }
    }
}

/// One line, its name in a column.
#[must_use]
pub fn field(name: &str, value: &str) -> String {
    format!("  {name:<10}  {value}")
}

/// The technique, and the instruction that the handler of a trap does by itself where hits are only
/// counted.
fn technique(plan: &Plan) -> String {
    let emulated = plan.displaced.first().filter(|_| plan.emulated.is_some()).map(|insn| disassembled(plan.isa, insn));
    match emulated.as_deref().and_then(|insn| insn.split_whitespace().next()) {
        Some(mnemonic) => format!("{}, emulated: {mnemonic}", plan.technique),
        None => plan.technique.to_string(),
    }
}

/// What is written at a site, as bytes and as text. `xx` depends on where the detour will be; bytes
/// in parentheses are there already.
fn patched(plan: &Plan) -> (String, String) {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
    let limits = plan.isa.limits();
    // There are plans for instruction sets without a generator of code, too.
    let written = || detour::patch(plan, 0, plan.site).unwrap_or_else(|_| (limits.breakpoint.to_vec(), Vec::new()));
    match plan.patch {
        Patch::Trap => {
            let (bytes, _) = written();
            let text = decode(plan.isa, &bytes, plan.site).map_or_else(|e| e.to_string(), |insn| insn.to_string());
            (hex(&bytes), text)
        }
        Patch::Jump { stub: None, .. } => (limits.jump_text.0.into(), limits.jump_text.1.into()),
        Patch::Jump { stub: Some(to), .. } | Patch::Short { island: to } => {
            let (bytes, there) = written();
            let there = if there.is_empty() { String::new() } else { format!(" ({})", hex(&there)) };
            (hex(&bytes) + &there, format!("jmp    {}: jmp detour", plan.isa.wrap(to)))
        }
    }
}

/// Address, bytes and assembly, like objdump.
fn instruction(isa: Isa, insn: &DisplacedInsn) -> String {
    let bytes = &insn.bytes[..usize::from(insn.len).min(insn.bytes.len())];
    let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}  {:<24}  {}", insn.va, hex.join(" "), disassembled(isa, insn))
}

fn disassembled(isa: Isa, insn: &DisplacedInsn) -> String {
    insn.decoded(isa).map_or_else(|e| e.to_string(), |insn| insn.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::lead::Lead;
    use crate::policy::plan::{Rejected, Technique};
    use crate::reason::Reason;
    use sidestep_isa::passed::Passed;
    use sidestep_isa::{Len, Va};

    fn insn(va: u64, code: &[u8]) -> DisplacedInsn {
        let mut bytes = [0; sidestep_isa::INSN_MAX];
        bytes[..code.len()].copy_from_slice(code);
        DisplacedInsn { va: Va(va), bytes, len: code.len() as u8 }
    }

    #[test]
    fn plan_is_readable() {
        let plan = Plan {
            isa: Isa::X64,
            asked: Va(0x1000),
            site: Va(0x1004),
            lead: Some(Lead { insn: insn(0x1001, &[0x0f, 0x1f, 0]), passed: Passed::Nothing }),
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
            rejected: vec![Rejected { technique: Technique::Jump, reason: Reason::LoopHead }],
            blocked_by: Vec::new(),
            gate: false,
        };
        let expected = "  address     0x1000, function entry
  technique   jump over several
  replaces    0x1004 to 0x1009, 5 bytes
  stays       0x1001  0f 1f 00                  nopl   (%rax)
  by          e9 xx xx xx xx  jmp    detour
  displaces   0x1004  55                        push   %rbp
              0x1005  48 83 ec 18               sub    $0x18,%rsp
  resumes at  0x1009
  returns     at its exit
  exit        0x1010  ret: jump over several, from 0x100c
              no jump: a loop jumps back to it
  uprobes     of the kernel at this address may come and go: both see each hit
  not live    rax r11 flags
  no better   jump: a loop jumps back to it";
        let exit = Plan {
            asked: Va(0x1010),
            site: Va(0x100c),
            displaced: vec![insn(0x100c, &[0x48, 0x83, 0xc4, 0x18]), insn(0x1010, &[0xc3])],
            ..plan.clone()
        };
        let returns = Returns::AtExits(vec![exit]);
        assert_eq!(lines(&plan, &returns, true).join("\n"), expected);
        assert!(!lines(&plan, &returns, false).iter().any(|line| line.contains("not live")));
    }
}

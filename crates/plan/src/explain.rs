//! A plan as text, for `sidestep explain`.

use std::fmt::Write;

use sidestep_isa::x86;
use sidestep_isa::{Isa, Len, Va};

use crate::detour;
use crate::plan::{DisplacedInsn, Patch, Plan, SiteKind};

/// Renders a plan for the user: what is written where, what moves, and why nothing better was chosen. Ends with a newline.
#[must_use]
pub fn render(plan: &Plan, name: &str) -> String {
    let mut text = format!("{name} at {}: {}\n", plan.asked, technique(plan));
    let kind = match plan.kind {
        SiteKind::FunctionEntry => "function entry",
        SiteKind::Inside if plan.isa == Isa::X86 => "inside a function",
        SiteKind::Inside => "the red zone is stepped over",
    };
    line(&mut text, "site", format_args!("{}, {} bytes, {kind}", plan.site, plan.region.0));
    if plan.site != plan.asked {
        line(&mut text, "", format_args!("behind the `endbr` at {}, which stays", plan.asked));
    }

    let mut label = "before";
    for insn in &plan.displaced {
        line(&mut text, label, format_args!("{}", listing(plan.isa, insn)));
        label = "";
    }
    let end = plan.displaced.last().map_or(plan.site, |i| i.va.plus(Len(u64::from(i.len))));
    let padding = plan.site.plus(plan.region).since(end);
    if padding > 0 {
        line(&mut text, label, format_args!("{end}  {padding} bytes of padding"));
    }

    let (bytes, insn) = patched(plan);
    line(&mut text, "after", format_args!("{}", row(plan.site, &bytes, &insn)));
    label = "detour";
    for (i, insn) in plan.displaced.iter().enumerate() {
        if i == plan.before_handler {
            line(&mut text, label, format_args!("handler"));
            label = "";
        }
        line(&mut text, label, format_args!("{}", copy(plan.isa, insn)));
        label = "";
    }
    if plan.before_handler >= plan.displaced.len() {
        line(&mut text, label, format_args!("handler"));
    }
    if let Some(resume) = plan.resume {
        line(&mut text, "", format_args!("jmp    {resume}"));
    }

    if let Err(reason) = plan.returns {
        line(&mut text, "no returns", format_args!("{reason}"));
    }
    for rejected in &plan.rejected {
        line(&mut text, &format!("not {}", rejected.technique), format_args!("{}", rejected.reason));
    }
    text
}

/// The technique, and the instruction that the handler of a trap does by itself where hits are only counted.
#[must_use]
pub fn technique(plan: &Plan) -> String {
    let emulated = plan.displaced.first().filter(|_| plan.emulated.is_some()).map(|insn| disassembled(plan.isa, insn));
    match emulated.as_deref().and_then(|insn| insn.split_whitespace().next()) {
        Some(mnemonic) => format!("{}, emulated: {mnemonic}", plan.technique),
        None => plan.technique.to_string(),
    }
}

/// What is written at a site, as bytes and as text. `xx` depends on where the detour will be; bytes in parentheses are there
/// already.
#[must_use]
pub fn patched(plan: &Plan) -> (String, String) {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
    let Ok((bytes, there)) = detour::patch(plan, 0, plan.site) else { return Default::default() };
    let there = if there.is_empty() { String::new() } else { format!(" ({})", hex(&there)) };
    let all = hex(&bytes) + &there;
    match plan.patch {
        Patch::Trap => (all, "int3".into()),
        Patch::Jump { stub: None, .. } => ("e9 xx xx xx xx".into(), "jmp    detour".into()),
        Patch::Jump { stub: Some(to), .. } | Patch::Short { island: to } => {
            (all, format!("jmp    {}: jmp detour", plan.isa.wrap(to)))
        }
    }
}

fn line(text: &mut String, label: &str, rest: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  {label:<22}{rest}");
}

fn row(va: Va, bytes: &str, insn: &str) -> String {
    format!("{va}  {bytes:<22} {insn}")
}

fn listing(isa: Isa, insn: &DisplacedInsn) -> String {
    let bytes = &insn.bytes[..usize::from(insn.len)];
    let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    row(insn.va, &hex.join(" "), &disassembled(isa, insn))
}

fn disassembled(isa: Isa, insn: &DisplacedInsn) -> String {
    insn.decoded(isa).map_or_else(|e| e.to_string(), |insn| insn.to_string())
}

fn copy(isa: Isa, insn: &DisplacedInsn) -> String {
    let bytes = &insn.bytes[..usize::from(insn.len)];
    let len = x86::relocated_len(isa, bytes, insn.va).unwrap_or(bytes.len());
    let note = if len == bytes.len() { String::new() } else { format!("   ({len} bytes)") };
    format!("{}{note}", disassembled(isa, insn))
}

//! USDT probes: what readelf says of the notes, and what a program's own registers and memory say
//! of the arguments.

mod arguments;
mod notes;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;

use sidestep_symbols::Object;
use sidestep_symbols::usdt::Probe;

/// A probe's note, written by hand; the instruction is that at the label 990 before it.
const NOTE: &str = r#"
#define NOTE(provider, name, semaphore, arguments) \
    ".pushsection .note.stapsdt,\"\",\"note\"\n" \
    ".balign 4\n .4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n 992: .balign 4\n" \
    "993: .8byte 990b, _.stapsdt.base, " semaphore "\n" \
    ".asciz \"" provider "\"\n .asciz \"" name "\"\n .asciz \"" arguments "\"\n" \
    "994: .balign 4\n .popsection\n"
asm(".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
    ".weak _.stapsdt.base\n .hidden _.stapsdt.base\n _.stapsdt.base: .space 1\n .popsection");
"#;

fn probes(file: &Path) -> Vec<Probe> {
    Object::open(file, &[]).unwrap().usdt_probes().unwrap()
}

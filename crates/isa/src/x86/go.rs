//! What Go's compiler and assembler write at the start of functions of x86-64 ([`crate::go`]).

/// `mov %fs:-8,%r14`, and the same to `rcx`.
const LOAD_R14: [u8; 9] = [0x64, 0x4c, 0x8b, 0x34, 0x25, 0xf8, 0xff, 0xff, 0xff];
const LOAD_RCX: [u8; 9] = [0x64, 0x48, 0x8b, 0x0c, 0x25, 0xf8, 0xff, 0xff, 0xff];

/// Whether a function loads the goroutine itself.
pub(crate) fn loads_goroutine(code: &[u8]) -> bool {
    code.starts_with(&LOAD_R14) || code.starts_with(&LOAD_RCX)
}

/// See [`crate::go::stack_check`]:
///
/// ```text
/// [mov %fs:-8,%r14 or %rcx]                              assembly functions: g is in r14 otherwise
/// [lea -N(%rsp),%r12 | mov %rsp,%r12; sub $N,%r12; jb …]   large frames
/// cmp 0x10(g),%rsp or %r12                               stackguard0; 0x18 = stackguard1
/// jbe morestack
/// ```
pub(crate) fn stack_check(code: &[u8]) -> Option<(usize, usize)> {
    let mut at = Cursor { code, len: 0, insns: 0 };
    at.eat(&LOAD_R14, 0);
    let in_rcx = at.eat(&LOAD_RCX, 0);
    let small = at.eat(&[0x4c, 0x8d, 0x64, 0x24], 1) || at.eat(&[0x4c, 0x8d, 0xa4, 0x24], 4);
    let huge = !small && at.eat(&[0x49, 0x89, 0xe4], 0);
    if huge {
        let sub = at.eat(&[0x49, 0x81, 0xec], 4) || at.eat(&[0x49, 0x83, 0xec], 1);
        let borrow = at.eat(&[0x72], 1) || at.eat(&[0x0f, 0x82], 4);
        if !sub || !borrow {
            return None;
        }
    }
    let compare: [u8; 3] = match (small || huge, in_rcx) {
        (false, false) => [0x49, 0x3b, 0x66],
        (true, false) => [0x4d, 0x3b, 0x66],
        (false, true) => [0x48, 0x3b, 0x61],
        (true, true) => [0x4c, 0x3b, 0x61],
    };
    let guard = [0x10, 0x18].iter().any(|guard| at.eat(&[compare[0], compare[1], compare[2], *guard], 0));
    let branch = at.eat(&[0x76], 1) || at.eat(&[0x0f, 0x86], 4);
    (guard && branch).then_some((at.len, at.insns))
}

struct Cursor<'a> {
    code: &'a [u8],
    len: usize,
    insns: usize,
}

impl Cursor<'_> {
    /// Passes an instruction that is `opcode` and `operand` more bytes.
    fn eat(&mut self, opcode: &[u8], operand: usize) -> bool {
        let rest = &self.code[self.len..];
        let len = opcode.len() + operand;
        let here = rest.starts_with(opcode) && rest.len() >= len;
        if here {
            self.len += len;
            self.insns += 1;
        }
        here
    }
}

//! Functions whose control flow no branch shows: labels as values, and assembly.

use super::Rng;
use super::expressions::Scope;

/// An interpreter that goes from operation to operation by computed jumps, as GCC's manual has them
/// in "Labels as Values".
///
/// With `distances`, tables may hold distances between labels. Assemblers refuse that where a part
/// of the function was moved to another section.
pub fn threaded(rng: &mut Rng, index: usize, scope: &Scope, distances: bool) -> String {
    let count = 4 + rng.below(9);
    let labels: Vec<String> = (0..count).map(|i| format!("&&op{i}")).collect();
    let apart: Vec<String> = (0..count).map(|i| format!("(int)((char *)&&op{i} - (char *)&&op0)")).collect();
    let mut kept = String::new();
    let (table, next) = match if distances { rng.below(5) } else { rng.of(&[0, 1, 4]) } {
        0 => (format!("static const void *const to[] = {{ {} }};", labels.join(", ")), "goto *to[*code++]"),
        1 => (format!("static void *to[] = {{ {} }};", labels.join(", ")), "goto *to[*code++]"),
        2 => (
            format!("static const int off[] = {{ {} }};", apart.join(", ")),
            "goto *(void *)((char *)&&op0 + off[*code++])",
        ),
        // Filled once. `main` empties it.
        3 => {
            kept = format!("static void *made{index}[{count}];\n");
            let fill = format!("for (int i = 0; i < {count}; i++) to[i] = (char *)&&op0 + off[i];");
            let off = apart.join(", ");
            (
                format!(
                    "static const volatile int off[] = {{ {off} }};\n    void **to = made{index};\n    if (!to[0]) {fill}"
                ),
                "goto *to[*code++]",
            )
        }
        // Filled with labels one by one, on the stack.
        _ => (
            format!("void *to[{count}]; {}", (0..count).map(|i| format!("to[{i}] = &&op{i}; ")).collect::<String>()),
            "goto *to[*code++]",
        ),
    };
    let length = 4 + rng.below(8);
    let mut text = format!(
        "{kept}u64 f{index}(u64 a, u64 b)\n{{\n    u8 bytes[{length}]; const u8 *code = bytes, *end = bytes + {length}; u64 x0 = a, x1 = b, x2 = 3;\n"
    );
    for i in 3..scope.variables {
        text += &format!("    u64 x{i} = {};\n", scope.constant(rng));
    }
    text +=
        &format!("    for (int i = 0; i < {length}; i++) bytes[i] = (u8)((a >> (i * 5)) % {count});\n    {table}\n");
    if rng.one_in(2) {
        // A switch beside it, whose table is another one.
        text += "    switch (b & 7) {\n";
        for i in 0..5 + rng.below(3) {
            text += &format!("    case {i}: {} = {}; break;\n", scope.variable(rng), scope.expression(rng, 1));
        }
        text += "    }\n";
    }
    let shared = rng.one_in(4);
    let go = if shared { "goto again;".to_owned() } else { format!("if (code == end) goto done; {next};") };
    text += &format!("{}    if (code == end) goto done;\n    {next};\n", if shared { "again:\n" } else { "" });
    for i in 0..count {
        let (x, e) = (scope.variable(rng), scope.expression(rng, 1));
        text += &format!("op{i}: {x} += {e};");
        match rng.below(4) {
            // Falls through.
            0 if i + 1 < count => text.push('\n'),
            1 => text += &format!(" if (UNLIKELY({x} % 9 == 0)) fail({x} & 63); {go}\n"),
            _ => text += &format!(" {go}\n"),
        }
    }
    let all: Vec<String> = (0..scope.variables).map(|i| format!("x{i} * {}", 2 * i + 1)).collect();
    text += &format!("done:\n    return {};\n}}\n", all.join(" ^ "));
    text
}

/// Functions in assembly around an ordinary one. They do what analyses of control flow miss.
pub fn assembly(rng: &mut Rng, index: usize) -> String {
    let steps = 4 + rng.below(20);
    // One instruction of that many bytes, with a count.
    let (unit, size) =
        rng.of(&[("add $1,%rax", 4), ("inc %rax", 3), ("lea 3(%rax,%rax),%rax", 5), ("add $0x12345,%eax", 5)]);
    let start = rng.of(&[("xor %eax,%eax", 2), ("mov %rdi,%rax", 3), ("mov $7,%eax", 5)]);
    let (begin, before) = start;
    let label = format!("sled{index}");
    let run = format!(" {begin}\\n.rept {steps}\\n {unit}\\n.endr\\n ret\\n");
    // How the run is entered in its middle; the argument says how many units are left out.
    let enter = match rng.below(5) {
        0 => format!(
            " lea {label}(%rip),%rdx\\n imul ${size},%rsi,%rsi\\n lea {before}(%rdx,%rsi),%rdx\\n mov %rdi,%rax\\n jmp *%rdx\\n"
        ),
        1 => format!(
            " lea {label}(%rip),%rdx\\n imul ${size},%rsi,%rsi\\n lea {before}(%rdx,%rsi),%rdx\\n mov %rdi,%rax\\n push %rdx\\n ret\\n"
        ),
        2 => format!(
            " mov %rdi,-8(%rsp)\\n mov %rsi,-16(%rsp)\\n test $1,%sil\\n jz 1f\\n addq $5,-8(%rsp)\\n1: mov -8(%rsp),%rdi\\n mov -16(%rsp),%rsi\\n jmp {label}\\n"
        ),
        3 => format!(
            " sub $8,%rsp\\n lea 1f(%rip),%rdx\\n mov %rdx,(%rsp)\\n mov %rdi,%rax\\n ret\\n .byte 0x90\\n1: add %rsi,%rax\\n test $2,%al\\n jnz 2f\\n add $3,%rax\\n2: call {label}\\n add $1,%rax\\n ret\\n"
        ),
        // A table of distances whose entries lead into another function.
        _ => String::from(
            " lea 9f(%rip),%rdx\\n and $3,%esi\\n movslq (%rdx,%rsi,4),%rcx\\n add %rdx,%rcx\\n mov %rdi,%rdx\\n mov %rdi,%rax\\n jmp *%rcx\\n\
             1: lea 1(%rdx,%rdx),%rax\\n2: add $5,%rax\\n3: xor %rdi,%rax\\n ret\\n\
             .section .rodata\\n.balign 4\\n9: .long 1b-9b,2b-9b,3b-9b,1b-9b\\n.text\\n",
        ),
    };
    let unnamed = rng.one_in(3);
    let of = |name: &str| if unnamed { String::new() } else { format!(".type {name},@function\\n") };
    let end = |name: &str| if unnamed { String::new() } else { format!(".size {name},.-{name}\\n") };
    let cfi = rng.of(&[("", ""), (" .cfi_startproc\\n", " .cfi_endproc\\n")]);
    let enter_name = format!("enter{index}");
    format!(
        "#ifdef __cplusplus\nextern \"C\"\n#else\nextern\n#endif\nu64 {enter_name}(u64, u64);\n\
         __asm__(\".text\\n{}{label}:\\n{}{run}{}{}{}{enter_name}:\\n{}{enter}{}{}\");\n\
         u64 f{index}(u64 a, u64 b)\n{{\n    u64 x = {enter_name}(a, b % {});\n    return x * 3 + {enter_name}(b, a % {});\n}}\n",
        of(&label),
        cfi.0,
        cfi.1,
        end(&label),
        of(&enter_name),
        cfi.0,
        cfi.1,
        end(&enter_name),
        steps + 1,
        steps + 1
    )
}

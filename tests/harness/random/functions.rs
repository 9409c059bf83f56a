//! Random functions of several kinds.

use std::fmt::Write;

use super::expressions::Scope;
use super::labels;
use super::source::Language;
use super::{Build, Rng};

/// What a function is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Statements that call others.
    Calls,
    /// Statements that do not, so that locals lie below the stack pointer.
    Leaf,
    /// Computed jumps.
    Threaded,
    /// Assembly: starts plus distances, pushed addresses, fallthrough into another symbol.
    Assembly,
    /// Floating point and vectors.
    Float,
    /// Variable arguments, structures by value, `alloca`.
    Frame,
    /// Recursion, and a tail call of another function.
    Recursive,
    /// `setjmp`.
    Jump,
    /// GCC's own `setjmp`, whose way back is the address of a label.
    Builtin,
    /// `try`, with calls and loads that throw.
    Try,
    /// A function in a function, with the register of the static chain.
    Nested,
    /// Atomic operations and string instructions.
    Atomic,
}

impl Kind {
    /// What can be built that way, as often as it is to be drawn.
    pub fn possible(build: &Build) -> Vec<Kind> {
        use Kind::*;
        let mut kinds =
            vec![Calls, Calls, Calls, Calls, Leaf, Leaf, Threaded, Threaded, Float, Frame, Recursive, Atomic];
        match build.language {
            Language::C => kinds.extend([Jump]),
            Language::Cpp => kinds.extend([Try, Try, Try]),
        }
        if build.language == Language::C && build.is_gcc {
            kinds.extend([Nested, Builtin]);
        }
        // Symbols of assembly are local to a file, and optimization over files moves them.
        if !build.options.contains(&"-flto") {
            kinds.push(Assembly);
        }
        kinds
    }

    /// What stands before its declaration.
    pub fn attributes(self, rng: &mut Rng) -> &'static str {
        match self {
            Kind::Builtin | Kind::Assembly => "NOINLINE ",
            _ => rng.of(&["NOINLINE ", "NOINLINE ", "", "static ", "COLD ", "NOINLINE static "]),
        }
    }
}

/// What a build allows.
#[derive(Clone, Copy)]
pub struct Allowed {
    /// Tables of distances between labels.
    pub distances: bool,
    /// Instructions that throw when they fault.
    pub faults: bool,
}

/// The definition of `f{index}`, of `count`.
pub fn function(rng: &mut Rng, kind: Kind, index: usize, count: usize, allowed: Allowed) -> String {
    let calls = !matches!(kind, Kind::Leaf | Kind::Float | Kind::Atomic);
    let scope = Scope { function: index, count, variables: 3 + rng.below(5), calls };
    let mut body = Body { rng, scope, text: String::new(), indent: 1, faults: allowed.faults, in_loop: 0, budget: 14 };
    match kind {
        Kind::Calls => body.calls(),
        Kind::Leaf => body.leaf(),
        Kind::Threaded => return labels::threaded(body.rng, index, &body.scope, allowed.distances),
        Kind::Assembly => return labels::assembly(body.rng, index),
        Kind::Float => body.float(),
        Kind::Frame => return body.frame(index),
        Kind::Recursive => body.recursive(index),
        Kind::Jump => body.jump(),
        Kind::Builtin => return body.builtin(index),
        Kind::Try => body.attempt(),
        Kind::Nested => body.nested(),
        Kind::Atomic => body.atomic(),
    }
    format!("u64 f{index}(u64 a, u64 b)\n{{\n{}}}\n", body.text)
}

/// A body that is being written.
struct Body<'a> {
    rng: &'a mut Rng,
    scope: Scope,
    text: String,
    indent: usize,
    faults: bool,
    /// How many loops are around.
    in_loop: usize,
    /// Statements that may still come.
    budget: usize,
}

impl Body<'_> {
    fn line(&mut self, text: &str) {
        writeln!(self.text, "{}{text}", "    ".repeat(self.indent)).expect("a string");
    }

    fn variables(&mut self) {
        for i in 0..self.scope.variables {
            let value = match i {
                0 => "a".to_owned(),
                1 => "b".to_owned(),
                _ => self.scope.constant(self.rng),
            };
            let kind = if i > 0 && self.rng.one_in(12) { "volatile u64" } else { "u64" };
            self.line(&format!("{kind} x{i} = {value};"));
        }
    }

    /// All variables in one.
    fn result(&mut self) {
        let all: Vec<String> = (0..self.scope.variables).map(|i| format!("x{i} * {}", 2 * i + 1)).collect();
        self.line(&format!("return {};", all.join(" ^ ")));
    }

    fn calls(&mut self) {
        self.variables();
        let count = 3 + self.rng.below(5);
        (0..count).for_each(|_| self.statement(3));
        let behind = self.scope.count - self.scope.function - 1;
        if behind > 0 && self.rng.one_in(3) {
            // The last call of a function becomes a jump.
            let (to, a, b) = (self.rng.below(behind), self.scope.variable(self.rng), self.scope.variable(self.rng));
            self.line(&format!("if ({a} & 4) return CALL(f{}, {a}, {b});", self.scope.function + 1 + to));
        }
        self.result();
    }

    fn leaf(&mut self) {
        self.variables();
        let size = 2 + self.rng.below(10);
        let kind = self.rng.of(&["volatile u64", "u64", "volatile u32", "volatile u8"]);
        self.line(&format!("{kind} kept[{size}];"));
        self.line(&format!("for (int i = 0; i < {size}; i++) kept[i] = x0 + i * x1;"));
        for _ in 0..2 + self.rng.below(4) {
            self.statement(2);
            let (at, x) = (self.rng.below(size), self.scope.variable(self.rng));
            self.line(&format!("kept[{at}] ^= {x}; {x} += kept[{x} % {size}];"));
        }
        self.line(&format!("for (int i = 0; i < {size}; i++) x0 = x0 * 31 + kept[i];"));
        self.result();
    }

    fn float(&mut self) {
        self.variables();
        self.line("double y = (double)(i64)(x0 >> 12), z = 1.5 + (u8)x1; float w = (float)(int)x1;");
        self.line("v4 p = { (int)x0, (int)x1, 3, 4 }, q = { 5, 6, (int)x2, 8 }; d2 r = { y, z };");
        for _ in 0..3 + self.rng.below(6) {
            let c = self.scope.condition(self.rng);
            let text = match self.rng.below(9) {
                0 => "y = y * 0.75 + z;".to_owned(),
                1 => "z = sqrt(z * z + 3.0); y -= z;".to_owned(),
                2 => format!("if (y > z && {c}) y = -y; else z += 0.5;"),
                3 => "p = p * q + (p ^ q); q = q - p;".to_owned(),
                4 => "r = r * r + (d2){ 0.5, 1.25 }; y += r[0] > 1e100 ? 1.0 : 2.0; r = (d2){ y, z };".to_owned(),
                5 => "w = w / 3.0f + (float)(u8)x0; x1 += w > 0.0f;".to_owned(),
                6 => "x0 ^= (u64)(i64)(fabs(y) < 1e15 ? y : 1.0); z = (double)(u8)x0 + 1.0;".to_owned(),
                7 => format!("for (int i = 0; i < {}; i++) p += (v4){{ i, i * 2, 1, 0 }};", 1 + self.rng.below(6)),
                _ => "{ long double l = (long double)y * 1.25L; x1 += l > 100.0L; }".to_owned(),
            };
            self.line(&text);
            if self.rng.one_in(3) {
                self.statement(1);
            }
        }
        self.line("x0 += (u64)(i64)(fabs(y) < 1e15 ? y * 4.0 : 3.0) + (u64)(i64)z + (u32)p[0] + (u32)q[3] * 3ul;");
        self.result();
    }

    fn recursive(&mut self, index: usize) {
        self.variables();
        self.statement(2);
        let (c, e) = (self.scope.condition(self.rng), self.scope.expression(self.rng, 2));
        let text = format!("if ((b & 15) < {} && {c}) x0 ^= CALL(f{index}, x0, b + 1) + {e};", 3 + self.rng.below(10));
        self.line(&text);
        self.statement(2);
        let text = format!("if ((b & 31) < {}) return CALL(f{index}, x0 + x1, (b & ~31ul) + 32);", self.rng.below(20));
        self.line(&text);
        self.result();
    }

    fn jump(&mut self) {
        self.line("jmp_buf here; jmp_buf *outer = env;");
        for i in 0..self.scope.variables {
            let value = if i < 2 { ["a", "b"][i].to_owned() } else { self.scope.constant(self.rng) };
            self.line(&format!("volatile u64 x{i} = {value};"));
        }
        let set = self.rng.of(&["setjmp(here)", "_setjmp(here)", "sigsetjmp(here, 1)"]);
        self.line(&format!("if ({set} == 0) {{"));
        self.indent += 1;
        self.line("env = &here;");
        self.statement(2);
        let call = self.scope.call(self.rng);
        self.line(&format!("x1 += {call};"));
        self.maybe_fail();
        self.indent -= 1;
        self.line("} else {");
        self.indent += 1;
        self.line("env = outer; x0 ^= failed * 5;");
        self.statement(1);
        self.indent -= 1;
        self.line("}");
        self.line("env = outer;");
        self.result();
    }

    fn builtin(mut self, index: usize) -> String {
        self.variables();
        let odds = 2 + self.rng.below(5);
        self.line("x0 += 3;");
        self.statement(2);
        self.result();
        format!(
            "static void *way{index}[5];\n\
             NOINLINE static void leave{index}(u64 x) {{ sink = x; if (x % {odds} == 0) __builtin_longjmp(way{index}, 1); }}\n\
             NOINLINE static u64 inner{index}(u64 a, u64 b)\n{{\n    if (__builtin_setjmp(way{index}) == 0) {{\n        \
             leave{index}(a);\n        leave{index}(b);\n        return a * 3;\n    }}\n    return sink ^ 0x55;\n}}\n\
             u64 f{index}(u64 a, u64 b)\n{{\n    a += inner{index}(a, b);\n{}}}\n",
            self.text
        )
    }

    fn attempt(&mut self) {
        self.variables();
        for _ in 0..1 + self.rng.below(3) {
            if self.rng.one_in(2) {
                self.line("try {");
            } else {
                self.line("try { Guard guard(&x0, x1);");
            }
            self.indent += 1;
            self.statement(2);
            let (x, y) = (self.scope.variable(self.rng), self.scope.variable(self.rng));
            let text = match if self.faults { self.rng.below(4) } else { 3 } {
                0 => format!("{{ u64 *p = {x} % 3 ? &words[{x} & 15] : nullptr; {y} += *(volatile u64 *)p; }}"),
                1 => format!("{{ volatile int d = (int)({x} % 3); {y} += 100 / d; }}"),
                2 => format!("{{ volatile u64 *p = {x} % 4 ? words : nullptr; p[3] = {y} & 255; {x} ^= p[3]; }}"),
                _ => self.scope.call(self.rng) + ";",
            };
            self.line(&text);
            self.maybe_fail();
            self.indent -= 1;
            let caught = self.rng.of(&["int code", "u64 code", "..."]);
            let value = if caught == "..." { "7" } else { "(u64)code" };
            self.line(&format!("}} catch ({caught}) {{"));
            self.indent += 1;
            self.line(&format!("x1 ^= {value};"));
            self.statement(1);
            if self.rng.one_in(4) {
                self.line("if (x1 % 5 == 0) throw;");
            }
            self.indent -= 1;
            self.line("}");
        }
        self.result();
    }

    fn nested(&mut self) {
        self.variables();
        let e = self.scope.expression(self.rng, 2);
        self.line(&format!("auto u64 part(u64 y); u64 part(u64 y) {{ x0 += y; return x1 * y + {e}; }}"));
        for _ in 0..1 + self.rng.below(3) {
            self.statement(2);
            let x = self.scope.variable(self.rng);
            self.line(&format!("{x} ^= part({x} + 1);"));
        }
        self.result();
    }

    fn atomic(&mut self) {
        self.variables();
        self.line("char text[40]; memset(text, 'a' + x0 % 20, sizeof text - 1); text[39] = 0; text[x1 % 39] = '!';");
        for _ in 0..2 + self.rng.below(4) {
            let x = self.scope.variable(self.rng);
            let text = match self.rng.below(7) {
                0 => format!("{x} += __atomic_fetch_add(&words[{x} & 15], {x} & 63, __ATOMIC_SEQ_CST);"),
                1 => format!("{x} ^= __atomic_exchange_n(&words[3], {x}, __ATOMIC_SEQ_CST);"),
                2 => format!(
                    "{{ u64 e = words[2]; {x} += __atomic_compare_exchange_n(&words[2], &e, {x}, 0, 5, 5); {x} += e; }}"
                ),
                3 => format!("{x} += __atomic_fetch_or(&words[5], 1ul << ({x} & 63), __ATOMIC_SEQ_CST);"),
                4 => format!("{x} += strlen(text) + (strchr(text, '!') - text);"),
                5 => format!(
                    "{{ u64 n = 5, v = {x}; u64 to[5], *d = to; __asm__ volatile(\"rep stosq\" : \"+c\"(n), \"+D\"(d) : \"a\"(v) : \"memory\"); {x} += to[4] + to[0]; }}"
                ),
                _ => format!("own += {x} & 7; {x} ^= own;"),
            };
            self.line(&text);
            self.statement(1);
        }
        self.line("x0 += (u8)text[x1 % 40];");
        self.result();
    }

    fn frame(mut self, index: usize) -> String {
        let sum = format!(
            "NOINLINE static u64 sum{index}(int n, ...)\n{{\n    va_list list; va_start(list, n); u64 s = 0;\n    for (int i = 0; i < n; i++) s = s * 31 + \
             (i % 3 == 2 ? (u64)va_arg(list, double) : va_arg(list, u64));\n    va_end(list); return s;\n}}\n\
             NOINLINE static struct wide wide{index}(u64 a, struct pair p, u64 b, u64 c, u64 d, u64 e, u64 g, struct wide w)\n{{\n    \
             struct wide r = {{ a + p.a + g, (u64)(p.b * 2.0) + b + c, w.a ^ w.b ^ w.c ^ d ^ e }}; return r;\n}}\n"
        );
        self.variables();
        for _ in 0..2 + self.rng.below(3) {
            let (x, y) = (self.scope.variable(self.rng), self.scope.variable(self.rng));
            let text = match self.rng.below(3) {
                0 => format!("{x} += sum{index}({}, {x}, {y}, 2.5, x0, x1, 3.0, {y});", 1 + self.rng.below(7)),
                1 => format!(
                    "{{ struct pair p = {{ {x}, (double)(u8){y} }}; struct wide w = {{ {x}, {y}, 3 }}; \
                     struct wide r = wide{index}({x}, p, 2, 3, {y}, 5, 6, w); {x} ^= r.a + r.b * 3 + r.c; }}"
                ),
                _ => format!(
                    "{{ u64 n = ({x} & 31) + 1; u8 *m = (u8 *)alloca(n); memset(m, (int){y}, n); m[{y} % n] ^= 1; \
                     for (u64 i = 0; i < n; i++) {x} = {x} * 7 + m[i]; }}"
                ),
            };
            self.line(&text);
            self.statement(2);
        }
        self.result();
        format!("{sum}u64 f{index}(u64 a, u64 b)\n{{\n{}}}\n", self.text)
    }

    /// A way out that is rarely taken.
    fn maybe_fail(&mut self) {
        let (x, y) = (self.scope.variable(self.rng), self.scope.variable(self.rng));
        let odds = 5 + self.rng.below(20);
        self.line(&format!("if (UNLIKELY({x} % {odds} == 0)) fail({y} & 255);"));
    }

    fn statement(&mut self, depth: usize) {
        if self.budget == 0 {
            return;
        }
        self.budget -= 1;
        let (x, y) = (self.scope.variable(self.rng), self.scope.variable(self.rng));
        let e = self.scope.expression(self.rng, 2);
        match self.rng.below(if depth == 0 { 4 } else { 18 }) {
            0 | 1 => self.line(&format!("{x} = {e};")),
            2 => self.line(&format!("{x} += {y} * 3; sink = {x};")),
            3 => self.line(&format!("words[{y} & 15] += {e} & 1023;")),
            4 | 5 if self.scope.calls => {
                let call = self.scope.call(self.rng);
                self.line(&format!("{x} ^= {call};"));
            }
            6 | 7 => self.branch(depth),
            8..10 => self.repeat(depth),
            10..15 => self.switch(depth),
            15 if self.scope.calls => self.maybe_fail(),
            16 if self.in_loop > 0 => {
                let word = self.rng.of(&["break", "continue"]);
                let c = self.scope.condition(self.rng);
                self.line(&format!("if ({c}) {word};"));
            }
            _ => self.line(&format!("{x} ^= {y} >> 7; if ((i64){x} < 0) {y} = ~{y};")),
        }
    }

    fn block(&mut self, depth: usize, most: usize) {
        self.indent += 1;
        (0..1 + self.rng.below(most)).for_each(|_| self.statement(depth));
        self.indent -= 1;
    }

    fn branch(&mut self, depth: usize) {
        let c = self.scope.condition(self.rng);
        self.line(&format!("if ({c}) {{"));
        self.block(depth - 1, 2);
        if self.rng.one_in(2) {
            self.line("} else {");
            self.block(depth - 1, 2);
        }
        self.line("}");
    }

    fn repeat(&mut self, depth: usize) {
        let (i, most) = (format!("i{}", self.in_loop), 1 + self.rng.below(5));
        let volatile = if self.rng.one_in(8) { "volatile " } else { "" };
        match self.rng.below(3) {
            0 => self.line(&format!("for ({volatile}int {i} = 0; {i} < {most}; {i}++) {{")),
            1 => self.line(&format!("for (u64 {i} = x0 & 7; {i} != 0; {i} >>= 1) {{")),
            _ => self.line(&format!("for (int {i} = {most}; {i}-- > 0; x1 += {i}) {{")),
        }
        self.in_loop += 1;
        self.block(depth - 1, 2);
        self.in_loop -= 1;
        self.line("}");
    }

    fn switch(&mut self, depth: usize) {
        let x = self.scope.variable(self.rng);
        let count = 3 + self.rng.below(10);
        let (step, from) = self.rng.of(&[(1, 0), (1, 0), (1, 3), (2, 0), (37, 5), (1000, 1)]);
        let by = count * step + from + self.rng.below(3);
        let index = match self.rng.below(3) {
            0 if count <= 8 && step == 1 => format!("{x} & 7"),
            1 => format!("(int)({x} % {by})"),
            _ => format!("{x} % {by}"),
        };
        let index = if step > 2 { format!("({x} % {count}) * {step} + {from} + ({x} & 64 ? 1 : 0)") } else { index };
        self.line(&format!("switch ({index}) {{"));
        // Loops are not continued from here, nor left: both words have another meaning in a switch.
        let around = std::mem::take(&mut self.in_loop);
        for i in 0..count {
            self.line(&format!("case {}:", i * step + from));
            self.indent += 1;
            let (a, b) = (self.scope.variable(self.rng), self.scope.variable(self.rng));
            match self.rng.below(10) {
                0..5 => {
                    let e = self.scope.expression(self.rng, 1);
                    self.line(&format!("{a} = {e} + {b};"));
                }
                5 | 6 => {
                    self.line(&format!("sink += {a};"));
                    self.line(&format!("{b} ^= {} + {a};", i * 7));
                }
                7 if self.scope.calls => self.line(&format!("{a} ^= 2; if ({b} % 3 == 0) fail({a} & 255);")),
                8 if self.scope.calls && self.rng.one_in(2) => self.line(&format!("{a} -= 7; fail({b} & 127);")),
                9 if depth > 1 && around < 2 => self.block_in_case(depth - 1),
                _ => self.line(&format!("{a} -= {b} << {};", i & 7)),
            }
            // Else it falls through to the next.
            if !self.rng.one_in(4) {
                self.line("break;");
            }
            self.indent -= 1;
        }
        match self.rng.below(4) {
            0 => self.line(&format!("default: {x} += 99;")),
            1 if index.ends_with("& 7") && count == 8 => self.line("default: __builtin_unreachable();"),
            _ => {}
        }
        self.in_loop = around;
        self.line("}");
    }

    fn block_in_case(&mut self, depth: usize) {
        self.line("{");
        self.block(depth, 2);
        self.line("}");
    }
}

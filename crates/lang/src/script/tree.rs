//! The syntax tree for people: a line for each node, its parts below it.

use super::ast::{Block, Expr, ExprKind, Macro, Param, Script, Sized, Step, Stmt, StmtKind};

/// The lines of a script.
#[must_use]
pub fn lines(script: &Script) -> Vec<String> {
    let mut tree = Tree::default();
    for setting in &script.config {
        tree.line(0, format!("config {} = {}", setting.name, setting.value));
    }
    for map in &script.maps {
        tree.line(0, format!("let @{} = {}({})", map.name, map.kind, map.entries));
    }
    script.macros.iter().for_each(|of| tree.definition(of));
    script.blocks.iter().for_each(|block| tree.block(block));
    tree.0
}

#[derive(Default)]
struct Tree(Vec<String>);

impl Tree {
    fn line(&mut self, depth: usize, text: impl AsRef<str>) {
        self.0.push("  ".repeat(depth) + text.as_ref());
    }

    fn definition(&mut self, of: &Macro) {
        let params: Vec<String> = of.params.iter().map(Param::text).collect();
        self.line(0, format!("macro {}({})", of.name, params.join(", ")));
        self.body(1, &of.body);
        of.value.iter().for_each(|value| self.expr(1, value));
    }

    fn block(&mut self, block: &Block) {
        for point in &block.points {
            self.line(0, point.text());
        }
        if let Some(predicate) = &block.predicate {
            self.line(1, "predicate");
            self.expr(2, predicate);
        }
        self.body(1, &block.body);
    }

    fn body(&mut self, depth: usize, body: &[Stmt]) {
        body.iter().for_each(|stmt| self.stmt(depth, stmt));
    }

    /// A name with statements below it.
    fn part(&mut self, depth: usize, name: &str, body: &[Stmt]) {
        if !body.is_empty() {
            self.line(depth, name);
            self.body(depth + 1, body);
        }
    }

    fn stmt(&mut self, depth: usize, stmt: &Stmt) {
        match &stmt.kind {
            StmtKind::Expr(expr) | StmtKind::Discard(expr) => self.expr(depth, expr),
            StmtKind::Assign { target, op, value } => {
                self.line(depth, format!("{}=", op.map_or("", |op| op.text())));
                self.expr(depth + 1, target);
                self.expr(depth + 1, value);
            }
            StmtKind::Let { name, ty, value } => {
                let ty = ty.as_ref().map_or(String::new(), |ty| format!(" : {}", ty.text()));
                self.line(depth, format!("let ${name}{ty}"));
                value.iter().for_each(|value| self.expr(depth + 1, value));
            }
            StmtKind::If { cond, then, otherwise } => {
                self.line(depth, "if");
                self.expr(depth + 1, cond);
                self.part(depth + 1, "then", then);
                self.part(depth + 1, "else", otherwise);
            }
            StmtKind::ForMap { name, map, body } => {
                self.line(depth, format!("for ${name}"));
                self.expr(depth + 1, map);
                self.part(depth + 1, "do", body);
            }
            StmtKind::ForRange { name, from, to, body } => {
                self.line(depth, format!("for ${name} .."));
                self.expr(depth + 1, from);
                self.expr(depth + 1, to);
                self.part(depth + 1, "do", body);
            }
            StmtKind::While { cond, body } => {
                self.line(depth, "while");
                self.expr(depth + 1, cond);
                self.part(depth + 1, "do", body);
            }
            StmtKind::Unroll { count, body } => {
                self.line(depth, "unroll");
                self.expr(depth + 1, count);
                self.part(depth + 1, "do", body);
            }
            StmtKind::Return(value) => {
                self.line(depth, "return");
                value.iter().for_each(|value| self.expr(depth + 1, value));
            }
            StmtKind::Break => self.line(depth, "break"),
            StmtKind::Continue => self.line(depth, "continue"),
        }
    }

    fn expr(&mut self, depth: usize, expr: &Expr) {
        let (text, parts): (String, Vec<&Expr>) = match &expr.kind {
            ExprKind::Int(value) => (value.to_string(), vec![]),
            ExprKind::Str(text) => (format!("\"{}\"", text.escape_ascii()), vec![]),
            ExprKind::Var(name) => (format!("${name}"), vec![]),
            ExprKind::Param(number) => (format!("${number}"), vec![]),
            ExprKind::ParamCount => ("$#".to_owned(), vec![]),
            ExprKind::Map(name, keys) => (format!("@{name}"), keys.iter().collect()),
            ExprKind::Ident(name) => (name.clone(), vec![]),
            ExprKind::Call(name, args) => (format!("{name}()"), args.iter().collect()),
            ExprKind::Unary(op, of) => (op.text().to_owned(), vec![of]),
            ExprKind::Step(step, of) => (sign(*step).to_owned(), vec![of]),
            ExprKind::Binary(op, left, right) => (op.text().to_owned(), vec![left, right]),
            ExprKind::Ternary(cond, then, otherwise) => ("?:".to_owned(), vec![cond, then, otherwise]),
            ExprKind::Cast(ty, of) => (format!("({})", ty.text()), vec![of]),
            ExprKind::Member(of, name) => (format!(".{name}"), vec![of]),
            ExprKind::Index(of, index) => ("[]".to_owned(), vec![of, index]),
            ExprKind::Tuple(items) => ("(,)".to_owned(), items.iter().collect()),
            ExprKind::Record(names, items) => (format!("(.{})", names.join(", .")), items.iter().collect()),
            ExprKind::Block(body, value) => {
                self.line(depth, "{}");
                self.body(depth + 1, body);
                return value.iter().for_each(|value| self.expr(depth + 1, value));
            }
            ExprKind::SizeOf(of) => sized("sizeof", of),
            ExprKind::TypeOf(of) => sized("typeof", of),
            ExprKind::TypeInfo(of) => sized("typeinfo", of),
            ExprKind::OffsetOf(of, path) => sized(&format!("offsetof .{}", path.join(".")), of),
        };
        self.line(depth, text);
        parts.into_iter().for_each(|part| self.expr(depth + 1, part));
    }
}

/// `sizeof` and the like of a type, or of what has one.
fn sized<'a>(name: &str, of: &'a Sized) -> (String, Vec<&'a Expr>) {
    match of {
        Sized::Type(ty) => (format!("{name} {}", ty.text()), vec![]),
        Sized::Expr(of) => (name.to_owned(), vec![of]),
    }
}

/// As it is written, with a dot for what it is about.
fn sign(step: Step) -> &'static str {
    match (step.up, step.post) {
        (true, true) => ".++",
        (false, true) => ".--",
        (true, false) => "++.",
        (false, false) => "--.",
    }
}

#[cfg(test)]
mod tests {
    use super::super::parser::parse;
    use super::*;

    #[test]
    fn precedence_is_seen() {
        let script = "config = { max_strlen = 9 } u:a:b, ur:a:b /pid == 1 && $1/ { @x[tid, \"k\\n\"] += 1 + 2 * 3; $y++; if (!$y) { return } }";
        let expected = "config max_strlen = 9
uprobe:a:b
uretprobe:a:b
  predicate
    &&
      ==
        pid
        1
      $1
  +=
    @x
      tid
      \"k\\n\"
    +
      1
      *
        2
        3
  .++
    $y
  if
    !
      $y
    then
      return";
        assert_eq!(lines(&parse(script, &[]).unwrap()).join("\n"), expected);
    }
}

//! `--fmt`: a script with its words as they are, and new blanks between them.
//!
//! No word is added, left out or moved, so that the script stays what it is. Comments stay where
//! they are. Lines break at braces and semicolons; between those, they break where the author has
//! broken them behind a comma or an operator. Items have a blank line between them where a brace
//! ends the one before, and elsewhere where the author has one.

mod read;

use super::ctype::CType;
use super::diagnostic::{Diagnostic, Span};
use super::token::TokenKind;
use read::{Kind, Piece, pieces};

/// Blanks of a level.
const INDENT: usize = 2;
/// Blanks before a line that goes on with what the line before has begun.
const GOES_ON: usize = 4;

/// The same script, laid out.
///
/// # Errors
/// It is no script: the parser says why.
pub fn format(source: &str) -> Result<String, Diagnostic> {
    let pieces = pieces(source)?;
    let mut printer = Printer { pieces: &pieces, ..Printer::default() };
    for at in 0..pieces.len() {
        printer.piece(at);
    }
    let mut out = printer.out;
    if !out.is_empty() {
        out.push('\n');
    }
    // Nothing but blanks may have changed.
    let after = read::pieces(&out)?;
    let same = |(a, b): (&Piece<'_>, &Piece<'_>)| a.kind == b.kind && a.text == b.text;
    match after.len() == pieces.len() && pieces.iter().zip(&after).all(same) {
        true => Ok(out),
        false => {
            let span = Span { start: 0, end: source.len() };
            Err(Diagnostic::error(span, "a bug of sidestep: laid out, this would be another script"))
        }
    }
}

/// What is between a word and the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Gap {
    #[default]
    None,
    Space,
    Line,
}

/// A bracket that is open.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// Its piece.
    at: usize,
    /// Of a brace: it is a part of an expression.
    value: bool,
}

#[derive(Default)]
struct Printer<'p, 's> {
    pieces: &'p [Piece<'s>],
    out: String,
    open: Vec<Open>,
    /// The next word begins a statement.
    begins: bool,
    /// The statement begins with `if`, `while` and the like, or with a brace.
    control: bool,
    /// The word before the next one, without comments.
    last: Option<usize>,
    /// The bracket that it closes.
    closed: Option<Open>,
    /// It is an operator with one operand, or one with two.
    unary: bool,
    binary: bool,
    /// The line ends behind it in any case, or unless something belongs to it.
    ends: bool,
    soft: bool,
}

impl Printer<'_, '_> {
    fn piece(&mut self, at: usize) {
        let piece = &self.pieces[at];
        match piece.kind {
            Kind::Line => {
                self.new_line(at, 0);
                self.out.push_str(piece.text);
                (self.ends, self.begins) = (true, true);
            }
            Kind::LineComment | Kind::BlockComment => self.comment(at),
            Kind::Word(_) | Kind::Point | Kind::Slash { .. } => self.word(at),
        }
    }

    fn comment(&mut self, at: usize) {
        let piece = &self.pieces[at];
        let is_line = piece.kind == Kind::LineComment;
        if piece.lines == 0 && !self.out.is_empty() {
            let glued = matches!(self.before(at), Some(last) if last.is("(") || last.is("["));
            if !glued {
                self.out.push(' ');
            }
        } else {
            self.new_line(at, self.level(at));
        }
        self.out.push_str(piece.text);
        let next_line = self.pieces.get(at + 1).is_some_and(|next| next.lines > 0);
        self.ends = is_line || next_line && (piece.lines > 0 || self.begins || self.soft);
    }

    /// The word before a piece, if no comment is between them.
    fn before(&self, at: usize) -> Option<&Piece<'_>> {
        self.last.filter(|last| last + 1 == at).map(|last| &self.pieces[last])
    }

    /// Blanks before a line that begins with this piece.
    fn level(&self, at: usize) -> usize {
        let closes = self.pieces[at].is("}");
        let braces = self.open.iter().filter(|open| self.pieces[open.at].is("{")).count() - usize::from(closes);
        // The word before may end a line of its own accord: what follows is no continuation.
        let goes_on = !self.begins && !self.soft && !closes && !self.pieces[at].item && !self.open.is_empty();
        INDENT * braces + if goes_on { GOES_ON } else { 0 }
    }

    fn new_line(&mut self, at: usize, level: usize) {
        if !self.out.is_empty() {
            let piece = &self.pieces[at];
            let opened = self.last.is_some_and(|last| self.pieces[last].is("{") && last + 1 == at);
            let after_item = self.open.is_empty() && self.out.ends_with('}') && !piece.is("{");
            self.out.push('\n');
            if (piece.lines > 1 && !opened && !piece.is("}")) || after_item {
                self.out.push('\n');
            }
        }
        self.out.extend(std::iter::repeat_n(' ', level));
    }

    fn word(&mut self, at: usize) {
        let piece = &self.pieces[at];
        if piece.item {
            (self.begins, self.control) = (true, false);
            (self.unary, self.binary) = (false, false);
        }
        let (unary, binary) = self.operator(at);
        let gap = match (self.out.is_empty(), piece.item || self.ends) {
            (true, _) => Gap::None,
            (_, true) => Gap::Line,
            _ => self.gap(at, unary),
        };
        match gap {
            Gap::None => {}
            Gap::Space => self.out.push(' '),
            Gap::Line => {
                let level = self.level(at);
                self.new_line(at, level);
            }
        }
        self.out.push_str(piece.text);
        self.follow(at, unary, binary);
    }

    /// What a word is to the ones behind it.
    fn follow(&mut self, at: usize, unary: bool, binary: bool) {
        let piece = &self.pieces[at];
        let begins = std::mem::take(&mut self.begins);
        let soft = std::mem::take(&mut self.soft);
        if begins {
            self.control = is_control(piece);
        }
        (self.unary, self.binary, self.ends) = (unary, binary, false);
        self.closed = None;
        match &piece.kind {
            Kind::Word(TokenKind::Punct("{")) => {
                let value = self.is_value(begins);
                self.open.push(Open { at, value });
                (self.soft, self.begins) = (true, true);
            }
            Kind::Word(TokenKind::Punct("(" | "[")) => self.open.push(Open { at, value: false }),
            Kind::Word(TokenKind::Punct(")" | "]")) => self.closed = self.open.pop(),
            Kind::Word(TokenKind::Punct("}")) => {
                self.closed = self.open.pop();
                if !piece.c && !self.closed.is_some_and(|open| open.value) {
                    (self.soft, self.begins) = (true, true);
                }
            }
            Kind::Word(TokenKind::Punct(";")) => (self.soft, self.begins) = (true, true),
            Kind::Word(TokenKind::Punct(",")) if self.is_enum() => (self.soft, self.begins) = (true, true),
            Kind::Word(TokenKind::Ident(word)) if word == "else" && soft => self.control = true,
            _ => {}
        }
        self.last = Some(at);
    }

    /// Whether a brace is a part of an expression: its statement goes on behind it.
    fn is_value(&self, begins: bool) -> bool {
        let in_brackets = self.open.last().is_some_and(|open| !self.pieces[open.at].is("{"));
        in_brackets || !(begins || self.control || self.open.is_empty())
    }

    /// Directly in the braces of an `enum`.
    fn is_enum(&self) -> bool {
        let Some(open) = self.open.last() else { return false };
        let words = self.pieces[..open.at].iter().rev().take_while(|piece| !piece.is(";") && !piece.is("}"));
        let is_it = |piece: &Piece<'_>| matches!(&piece.kind, Kind::Word(TokenKind::Ident(word)) if word == "enum");
        self.pieces[open.at].is("{") && self.pieces[open.at].c && words.take(3).any(is_it)
    }

    /// Whether a word is an operator with one operand, or with two.
    fn operator(&self, at: usize) -> (bool, bool) {
        let Kind::Word(TokenKind::Punct(punct)) = self.pieces[at].kind else { return (false, false) };
        let operand = self.last.is_some_and(|last| self.is_operand(last));
        match punct {
            "!" | "~" => (true, false),
            "++" | "--" => (!operand, false),
            "-" | "*" | "&" if !operand || self.is_pointer(at) => (true, false),
            "+" | "-" | "*" | "/" | "%" | "&" | "|" | "^" | "<<" | ">>" | "==" | "!=" | "<" | "<=" | ">" | ">="
            | "&&" | "||" | "?" | ":" => (false, true),
            _ if punct.ends_with('=') => (false, true),
            _ => (false, false),
        }
    }

    /// Whether a value ends with the word before.
    fn is_operand(&self, last: usize) -> bool {
        match &self.pieces[last].kind {
            _ if self.begins => false,
            Kind::Word(TokenKind::Punct(")")) => !self.is_cast(),
            Kind::Word(TokenKind::Punct(punct)) => {
                matches!(*punct, "]" | "}") || punct.len() == 2 && self.is_step(punct)
            }
            Kind::Word(TokenKind::Ident(word)) => !matches!(&**word, "return" | "if" | "while" | "else" | "comptime"),
            Kind::Word(_) => true,
            _ => false,
        }
    }

    /// `x++`
    fn is_step(&self, punct: &str) -> bool {
        matches!(punct, "++" | "--") && !self.unary
    }

    /// Whether the parenthesis that was closed last has a type in it.
    fn is_cast(&self) -> bool {
        let Some(open) = self.closed else { return false };
        let is_ident = |at: usize| matches!(&self.pieces[at].kind, Kind::Word(TokenKind::Ident(_)));
        let named = open.at > 0 && is_ident(open.at - 1);
        let keyword = named && matches!(self.pieces[open.at - 1].text, "return" | "if" | "while" | "comptime");
        let Some(Piece { kind: Kind::Word(TokenKind::Ident(first)), .. }) = self.pieces.get(open.at + 1) else {
            return false;
        };
        let ends_with_star = self.last.is_some_and(|last| self.pieces[last - 1].is("*"));
        let is_type = matches!(&**first, "struct" | "union" | "enum" | "unsigned" | "signed" | "string" | "typeof")
            || CType::named(&[first], 8).is_some()
            || ends_with_star;
        is_type && (!named || keyword)
    }

    /// Whether a star belongs to a type.
    fn is_pointer(&self, at: usize) -> bool {
        if !self.pieces[at].is("*") {
            return false;
        }
        if self.pieces[at].c {
            return true;
        }
        let next = self.pieces[at..].iter().find(|piece| !piece.is("*") && !piece.is_comment());
        next.is_none_or(|next| [")", "]", "[", ",", "=", ";", "{"].iter().any(|punct| next.is(punct)))
    }

    /// What is before a word that is no comment, and not the first of its item.
    fn gap(&mut self, at: usize, unary: bool) -> Gap {
        let piece = &self.pieces[at];
        let Some(last) = self.last else { return Gap::None };
        let before = &self.pieces[last];
        let commented = last + 1 < at;
        // What ends with a brace may go on.
        if self.soft {
            let goes_on = before.is("}") && piece.is(";")
                || before.is(";") && piece.is(";")
                || before.is("{") && piece.is("}") && !commented;
            let is_else = before.is("}") && matches!(&piece.kind, Kind::Word(TokenKind::Ident(word)) if word == "else");
            return match (goes_on, is_else) {
                (true, _) => Gap::None,
                (_, true) => Gap::Space,
                _ => Gap::Line,
            };
        }
        if piece.is("}") {
            return Gap::Line;
        }
        let breaks = before.is(",") || self.binary || matches!(before.kind, Kind::Point | Kind::Slash { opens: false });
        if piece.lines > 0 && breaks && !piece.is("{") && !piece.is(",") {
            return Gap::Line;
        }
        if commented {
            return Gap::Space;
        }
        let space = |wanted: bool| if wanted { Gap::Space } else { Gap::None };
        space(self.is_apart(at, last, unary) || joins(before.text, piece.text))
    }

    /// Whether a blank is between two words of a line.
    fn is_apart(&self, at: usize, last: usize, unary: bool) -> bool {
        let (piece, before) = (&self.pieces[at], &self.pieces[last]);
        let is_word = |piece: &Piece<'_>| matches!(piece.kind, Kind::Word(TokenKind::Ident(_)));
        // `name=uprobe:…`
        if piece.kind == Kind::Point {
            return before.is(",");
        }
        if self.open.is_empty() && piece.is("=") && self.pieces.get(at + 1).is_some_and(|next| next.kind == Kind::Point)
        {
            return false;
        }
        match (&before.kind, &piece.kind) {
            (Kind::Slash { opens: true }, _) => return piece.text.starts_with(['*', '/']),
            (_, Kind::Slash { opens }) => return *opens,
            (Kind::Slash { .. } | Kind::Point, _) => return !piece.is(","),
            _ => {}
        }
        if before.is("(") || before.is("[") || before.is(".") || before.is("->") || before.is("..") {
            return false;
        }
        if [")", "]", ",", ";", ".", "->", "..", "["].iter().any(|punct| piece.is(punct)) {
            return false;
        }
        if before.is("?") && piece.is(":") {
            return false;
        }
        let in_brackets = self.open.last().is_some_and(|open| self.pieces[open.at].is("("));
        // `(a=1)`
        if in_brackets && (piece.is("=") && is_word(before) || before.is("=")) {
            return false;
        }
        if self.unary {
            return false;
        }
        if before.is(")") && !piece.c && self.is_cast() {
            return piece.is("{");
        }
        if piece.is("(") {
            let keyword = matches!(before.text, "if" | "while" | "for" | "unroll" | "return" | "else");
            return match is_word(before) || before.is(")") {
                true if piece.c => piece.spaced,
                true => keyword,
                false => true,
            };
        }
        if (piece.is("++") || piece.is("--")) && !unary {
            return false;
        }
        true
    }
}

/// A statement that ends with its last brace.
fn is_control(piece: &Piece<'_>) -> bool {
    match &piece.kind {
        Kind::Word(TokenKind::Ident(word)) => matches!(&**word, "if" | "while" | "for" | "unroll" | "macro" | "fn"),
        Kind::Word(TokenKind::Punct(punct)) => *punct == "{",
        _ => false,
    }
}

/// Whether two words without a blank between them would be read as others.
fn joins(before: &str, word: &str) -> bool {
    let both = before.to_owned() + word;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = before.ends_with(is_word) && word.starts_with(is_word);
    let starts = |punct: &&&str| both.starts_with(**punct) && punct.len() > before.len();
    words
        || both.starts_with("//")
        || both.starts_with("/*")
        || before.chars().all(|c| c.is_ascii_punctuation()) && super::token::PUNCTS.iter().any(|punct| starts(&punct))
}

#[cfg(test)]
mod tests {
    use super::format;

    #[track_caller]
    fn becomes(source: &str, expected: &str) {
        let formatted = format(source).unwrap();
        assert_eq!(formatted, expected);
        assert_eq!(format(&formatted).unwrap(), expected, "the second time");
    }

    #[test]
    fn blocks_and_statements_have_lines_of_their_own() {
        becomes(
            "begin{@x=1;if(@x==1){print(@x)}else if @x>2{exit();}else{$y=-1}}end{clear(@x)}",
            "begin {\n  @x = 1;\n  if (@x == 1) {\n    print(@x)\n  } else if @x > 2 {\n    exit();\n  } else {\n    \
             $y = -1\n  }\n}\n\nend {\n  clear(@x)\n}\n",
        );
    }

    #[test]
    fn points_and_predicates() {
        becomes(
            "uprobe:./a:f,uprobe:./a:\"b c\" /pid==1&&(arg0/2)==3/{@[ustack(3),comm]=count()}",
            "uprobe:./a:f, uprobe:./a:\"b c\" /pid == 1 && (arg0 / 2) == 3/ {\n  @[ustack(3), comm] = count()\n}\n",
        );
        becomes("n = u:a:b\n/ *$p/ { }", "n=u:a:b\n/ *$p/ {}\n");
    }

    #[test]
    fn operators_with_one_operand_stand_at_it() {
        becomes(
            "begin { $x = - -$y; $z=(int32)-1*(uint8)$x; $p=*(struct s*)$q&&!$r; $i ++; --$i; $a = $b?:$c ? 1:2; }",
            "begin {\n  $x = - -$y;\n  $z = (int32)-1 * (uint8)$x;\n  $p = *(struct s *)$q && !$r;\n  $i++;\n  \
             --$i;\n  $a = $b ?: $c ? 1 : 2;\n}\n",
        );
    }

    #[test]
    fn comments_stay_where_they_are() {
        becomes(
            "#!/usr/bin/sidestep\n// first\n\n\n// second\nbegin // behind\n{\n// inside\n@x = 1; // one\n\n\n\n/* two\n \
             lines */\n@y = f(1, // here\n2); /* in */ exit() /* last */ }\n// end",
            "#!/usr/bin/sidestep\n// first\n\n// second\nbegin // behind\n{\n  // inside\n  @x = 1; // one\n\n  /* two\n \
             lines */\n  @y = f(1, // here\n      2); /* in */\n  exit() /* last */\n}\n\n// end\n",
        );
    }

    #[test]
    fn declarations_of_c() {
        becomes(
            "struct S{int a;unsigned b:3,c:7;char*name;void(*fn)(int,char*);}__attribute__((packed));enum e{A,B=5}begin{}",
            "struct S {\n  int a;\n  unsigned b : 3, c : 7;\n  char *name;\n  void(*fn)(int, char *);\n} \
             __attribute__((packed));\nenum e {\n  A,\n  B = 5\n}\n\nbegin {}\n",
        );
    }

    #[test]
    fn blocks_that_are_values() {
        becomes(
            "macro m($a,b){$a=b;$a+1}config={max_strlen=9}begin{$x=if 1{2}else{3};print((a=1,b={4}));for $i:0..3{print($i)}}",
            "macro m($a, b) {\n  $a = b;\n  $a + 1\n}\n\nconfig = {\n  max_strlen = 9\n}\n\nbegin {\n  $x = if 1 {\n    \
             2\n  } else {\n    3\n  };\n  print((a=1, b={\n    4\n  }));\n  for $i : 0..3 {\n    print($i)\n  }\n}\n",
        );
    }

    #[test]
    fn lines_that_the_author_has_broken_stay_broken() {
        becomes(
            "begin{printf(\"%d %d\",\n1,\n2);$x=1+\n2;}",
            "begin {\n  printf(\"%d %d\",\n      1,\n      2);\n  $x = 1 +\n      2;\n}\n",
        );
    }
}

//! Chapters of the guide as sections of a manual page.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// Appends a chapter. Its title and its headings of the second level are sections.
pub fn render(roff: &mut Roff, chapter: &str) {
    let mut page = Writer { roff, line: Vec::new(), style: Style::Plain, lists: 0, row: None };
    for event in Parser::new_ext(chapter, Options::ENABLE_TABLES) {
        page.event(event);
    }
}

/// How text is set.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    Plain,
    Strong,
    Emphasis,
    /// Lines as they are.
    Verbatim,
    /// In capital letters, as titles of sections are.
    Title,
}

struct Writer<'r> {
    roff: &'r mut Roff,
    /// The text of the paragraph, heading or cell so far.
    line: Vec<Inline>,
    style: Style,
    /// How many lists are open.
    lists: usize,
    /// The number of the next cell, in a row of a table.
    row: Option<usize>,
}

impl Writer<'_> {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.style == Style::Verbatim => {
                for line in text.lines() {
                    self.roff.text([roman(line)]);
                }
            }
            Event::Text(text) => self.line.push(match self.style {
                Style::Title => roman(text.to_uppercase()),
                Style::Strong => bold(text.to_string()),
                Style::Emphasis => italic(text.to_string()),
                Style::Plain | Style::Verbatim => roman(text.to_string()),
            }),
            Event::Code(code) => self.line.push(bold(code.to_string())),
            Event::SoftBreak | Event::HardBreak => self.line.push(roman(" ")),
            // Comments and rules have no meaning in a page.
            _ => {}
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Heading { level: HeadingLevel::H1 | HeadingLevel::H2, .. } => self.style = Style::Title,
            Tag::CodeBlock(_) => {
                self.flush();
                self.roff.control("PP", []).control("RS", ["4"]).control("nf", []);
                self.style = Style::Verbatim;
            }
            Tag::List(_) => {
                self.flush();
                self.lists += 1;
            }
            Tag::Item => {
                self.roff.control("IP", ["\\(bu", "2"]);
            }
            Tag::TableRow => self.row = Some(0),
            Tag::Strong => self.style = Style::Strong,
            Tag::Emphasis => self.style = Style::Emphasis,
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(level) => {
                let name = if matches!(level, HeadingLevel::H1 | HeadingLevel::H2) { "SH" } else { "SS" };
                let title: String = self.line.drain(..).map(|part| text_of(&part)).collect();
                self.roff.control(name, [title.as_str()]);
                self.style = Style::Plain;
            }
            TagEnd::Paragraph => {
                if self.lists == 0 {
                    self.roff.control("PP", []);
                }
                self.flush();
            }
            TagEnd::CodeBlock => {
                self.roff.control("fi", []).control("RE", []);
                self.style = Style::Plain;
            }
            TagEnd::List(_) => self.lists -= 1,
            TagEnd::Item => self.flush(),
            TagEnd::TableCell => self.cell(),
            // The names of the columns: the rows of a page say by themselves what they are.
            TagEnd::TableHead => self.line.clear(),
            TagEnd::TableRow => {
                self.row = None;
                self.flush();
            }
            TagEnd::Strong | TagEnd::Emphasis => self.style = Style::Plain,
            _ => {}
        }
    }

    /// The first cell of a row is the term, the others are what it means.
    fn cell(&mut self) {
        match self.row {
            Some(0) => {
                self.roff.control("TP", []);
                self.flush();
                self.row = Some(1);
            }
            Some(number) => {
                self.row = Some(number + 1);
                self.line.push(roman("  "));
            }
            None => {}
        }
    }

    fn flush(&mut self) {
        if !self.line.is_empty() {
            self.roff.text(std::mem::take(&mut self.line));
        }
    }
}

fn text_of(part: &Inline) -> String {
    match part {
        Inline::Roman(text) | Inline::Italic(text) | Inline::Bold(text) => text.clone(),
        Inline::LineBreak => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_tables_lists_and_code() {
        let mut roff = Roff::default();
        let text = "## Probes\n\nA `uprobe` *is*:\n\n| a | b |\n|---|---|\n| `x` | one |\n\n- first\n\n### `f()`\n\n```\n.x $ y\n```\n";
        render(&mut roff, text);
        let page = roff.render();
        for part in [
            ".SH PROBES",
            "A \\fBuprobe\\fR \\fIis\\fR:",
            ".TP\n\\fBx\\fR\none",
            ".IP",
            "first",
            ".SS f()",
            ".nf\n\\&.x $ y\n.fi",
        ] {
            assert!(page.contains(part), "no {part} in\n{page}");
        }
        assert!(!page.contains("\\fBa\\fR"), "{page}");
    }
}

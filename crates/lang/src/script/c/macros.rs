//! Macros of C, and what they stand for.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};

use super::words::{Kind, Word, words};

/// What a name stands for.
#[derive(Clone, Debug)]
pub struct Macro {
    /// Its parameters; none: it has no brackets.
    pub parameters: Option<Vec<String>>,
    /// The last parameter takes all arguments that are left.
    variadic: bool,
    /// What is put in its place.
    pub body: Vec<Word>,
}

impl Macro {
    /// What stands behind `#define`: a name, parameters, and the body.
    pub fn parse(line: &[Word]) -> Option<(String, Macro)> {
        let (name, rest) = line.split_first().filter(|(name, _)| name.kind == Kind::Name)?;
        if !rest.first().is_some_and(|word| word.is("(") && !word.spaced) {
            return Some((name.text.clone(), Macro { parameters: None, variadic: false, body: rest.to_vec() }));
        }
        let end = rest.iter().position(|word| word.is(")"))?;
        let named = rest[1..end].iter().filter(|word| word.kind == Kind::Name);
        let mut parameters: Vec<String> = named.map(|word| word.text.clone()).collect();
        let dots = rest[1..end].last().is_some_and(|word| word.is("..."));
        // `args...` names them; else they are `__VA_ARGS__`.
        if dots && (end < 3 || !rest[end - 2].kind.eq(&Kind::Name)) {
            parameters.push("__VA_ARGS__".to_owned());
        }
        let body = rest[end + 1..].to_vec();
        Some((name.text.clone(), Macro { parameters: Some(parameters), variadic: dots, body }))
    }
}

/// Steps that all headers together take at most. A step is a word that is looked at or copied.
const STEPS: usize = 1 << 23;
/// Expansions of arguments within arguments at most.
const NESTED: usize = 200;
/// Macros within macros at most.
const ACTIVE: usize = 64;

/// What is still to be looked at.
enum Item {
    Word(Word),
    /// The expansion of the last macro ends.
    End,
}

/// All macros.
#[derive(Clone, Debug)]
pub struct Macros {
    /// By name.
    pub known: HashMap<String, Macro>,
    /// Steps that are left.
    steps: Cell<usize>,
}

impl Macros {
    /// None is known.
    pub fn new() -> Macros {
        Macros { known: HashMap::new(), steps: Cell::new(STEPS) }
    }

    /// Takes steps from those that are left; `false`: there are not as many.
    pub fn spend(&self, steps: usize) -> bool {
        let left = self.steps.get().checked_sub(steps);
        self.steps.set(left.unwrap_or(0));
        left.is_some()
    }

    /// Whether no steps are left: then an expansion is not complete.
    pub fn is_spent(&self) -> bool {
        self.steps.get() == 0
    }

    /// Words with all macros replaced.
    pub fn expand(&self, line: Vec<Word>) -> Vec<Word> {
        self.expand_in(line, &[], 0)
    }

    /// The same inside of the expansion of others.
    fn expand_in(&self, line: Vec<Word>, outer: &[String], depth: usize) -> Vec<Word> {
        if depth > NESTED {
            self.steps.set(0);
            return Vec::new();
        }
        let mut active = outer.to_vec();
        let mut queue: VecDeque<Item> = line.into_iter().map(Item::Word).collect();
        let mut out = Vec::new();
        while let Some(item) = queue.pop_front() {
            if !self.spend(1) {
                return out;
            }
            let mut word = match item {
                Item::End => {
                    active.pop();
                    continue;
                }
                Item::Word(word) => word,
            };
            let known = self.known.get(&word.text).filter(|_| word.kind == Kind::Name && !word.painted);
            let Some(known) = known.filter(|_| active.len() < ACTIVE) else {
                out.push(word);
                continue;
            };
            if active.contains(&word.text) {
                word.painted = true;
                out.push(word);
                continue;
            }
            let body = match &known.parameters {
                None => joined(known.body.clone()),
                Some(parameters) => {
                    let Some(arguments) = arguments(&mut queue, &mut active) else {
                        out.push(word);
                        continue;
                    };
                    self.spend(arguments.iter().map(|argument| argument.len() + 1).sum());
                    self.put_in(known, parameters, &arguments, &active, depth)
                }
            };
            queue.push_front(Item::End);
            active.push(word.text);
            for (at, mut inner) in body.into_iter().enumerate().rev() {
                inner.spaced |= at == 0 && word.spaced;
                queue.push_front(Item::Word(inner));
            }
        }
        out
    }

    /// The body of a macro with its arguments in it.
    fn put_in(
        &self,
        of: &Macro,
        parameters: &[String],
        arguments: &[Vec<Word>],
        active: &[String],
        depth: usize,
    ) -> Vec<Word> {
        let argument = |word: &Word| {
            let at = parameters.iter().position(|name| word.kind == Kind::Name && *name == word.text)?;
            if of.variadic && at + 1 == parameters.len() {
                let comma = [Word::new(Kind::Sign, ",")];
                return Some(arguments.get(at..).unwrap_or_default().join(&comma[..]));
            }
            Some(arguments.get(at).cloned().unwrap_or_default())
        };
        let mut made: Vec<Word> = Vec::new();
        let mut at = 0;
        while let Some(word) = of.body.get(at).filter(|_| self.spend(1)) {
            at += 1;
            let next_pastes = of.body.get(at).is_some_and(|next| next.is("##"));
            let pastes = made.last().is_some_and(|last| last.is("##"));
            if word.is("#") {
                if let Some(words) = of.body.get(at).and_then(argument) {
                    at += 1;
                    let text: String = words
                        .iter()
                        .map(|word| format!("{}{}", if word.spaced { " " } else { "" }, word.text))
                        .collect();
                    let text = text.trim().replace('\\', "\\\\").replace('"', "\\\"");
                    self.spend(text.len());
                    made.push(Word { spaced: word.spaced, ..Word::new(Kind::Text, &format!("\"{text}\"")) });
                    continue;
                }
            }
            match argument(word) {
                // What is pasted is not expanded before.
                Some(words) if next_pastes || pastes => {
                    // `, ## __VA_ARGS__` without any leaves the comma out.
                    if words.is_empty() && pastes {
                        made.pop();
                        if of.variadic && made.last().is_some_and(|last| last.is(",")) {
                            made.pop();
                        }
                    }
                    self.spend(words.iter().map(|word| word.text.len()).sum());
                    made.extend(words);
                }
                Some(words) => {
                    self.spend(words.len());
                    made.extend(self.expand_in(words, active, depth + 1));
                }
                None => made.push(word.clone()),
            }
        }
        joined(made)
    }
}

/// The arguments in the brackets that follow; `None`: there are none, and nothing was taken.
fn arguments(queue: &mut VecDeque<Item>, active: &mut Vec<String>) -> Option<Vec<Vec<Word>>> {
    let first = queue.iter().find_map(|item| if let Item::Word(word) = item { Some(word) } else { None });
    if !first.is_some_and(|word| word.is("(")) {
        return None;
    }
    let (mut all, mut depth) = (vec![Vec::new()], 0);
    while let Some(item) = queue.pop_front() {
        let word = match item {
            Item::End => {
                active.pop();
                continue;
            }
            Item::Word(word) => word,
        };
        match &*word.text {
            "(" if word.kind == Kind::Sign => depth += 1,
            ")" if word.kind == Kind::Sign => depth -= 1,
            "," if word.kind == Kind::Sign && depth == 1 => {
                all.push(Vec::new());
                continue;
            }
            _ => {}
        }
        match depth {
            0 => return Some(all),
            1 if word.is("(") && all.len() == 1 && all[0].is_empty() => {}
            _ => all.last_mut()?.push(word),
        }
    }
    Some(all)
}

/// Words with those on both sides of `##` made one.
fn joined(body: Vec<Word>) -> Vec<Word> {
    if !body.iter().any(|word| word.is("##")) {
        return body;
    }
    let mut made: Vec<Word> = Vec::new();
    let mut rest = body.into_iter();
    while let Some(word) = rest.next() {
        if !word.is("##") {
            made.push(word);
            continue;
        }
        let (Some(left), Some(right)) = (made.pop(), rest.next()) else { continue };
        let pasted = words(&format!("{}{}", left.text, right.text));
        made.extend(pasted.into_iter().enumerate().map(|(at, word)| Word { spaced: at == 0 && left.spaced, ..word }));
    }
    made
}

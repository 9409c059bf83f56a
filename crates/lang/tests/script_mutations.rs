//! The programs of all specs, mutated: the same ones at every run, or others:
//! `SIDESTEP_FUZZ=SEED,TEXTS`.

mod fate;

use std::path::Path;

use fate::{Fate, compile};

/// How many texts are tried, unless told otherwise.
const TEXTS: usize = 100_000;

/// Where chance begins, and how many texts are tried.
fn wanted(seed: u64) -> (Chance, usize) {
    let Ok(given) = std::env::var("SIDESTEP_FUZZ") else { return (Chance(seed), TEXTS) };
    let numbers = given.split_once(',').and_then(|(seed, texts)| Some((seed.parse().ok()?, texts.parse().ok()?)));
    let (other, texts): (u64, usize) = numbers.expect("SIDESTEP_FUZZ=SEED,TEXTS");
    (Chance(seed ^ other.rotate_left(32)), texts)
}

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }
}

/// The scripts of the specs, right and wrong ones.
fn programs() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/specs");
    let mut files: Vec<_> = dir.read_dir().expect("the specs are there").flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut programs = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).expect("a spec is text");
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let Some(first) = line.strip_prefix("PROG") else { continue };
            let mut program = first.trim().to_owned();
            while let Some(more) = lines.peek().and_then(|line| line.strip_prefix('|')) {
                program += more;
                program.push('\n');
                lines.next();
            }
            programs.push(program.replace("TARGET", "/bin/x"));
        }
    }
    programs
}

/// Words, signs and blanks; a text in quotes is one.
fn words(program: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut chars = program.chars().peekable();
    while let Some(c) = chars.next() {
        let mut word = String::from(c);
        let is_word = |c: char| c.is_alphanumeric() || "_$@:".contains(c);
        if c == '"' {
            for c in chars.by_ref() {
                word.push(c);
                if c == '"' {
                    break;
                }
            }
        } else if is_word(c) {
            while let Some(c) = chars.next_if(|c| is_word(*c)) {
                word.push(c);
            }
        }
        words.push(word);
    }
    words
}

fn mutated(programs: &[Vec<String>], dictionary: &[String], chance: &mut Chance) -> String {
    let mut words = chance.of(programs).clone();
    for _ in 0..=chance.below(4) {
        let at = chance.below(words.len() + 1);
        let end = (at + 1 + chance.below(4)).min(words.len());
        match chance.below(8) {
            0 if at < end => drop(words.drain(at..end)),
            1 if at < words.len() => words[at] = chance.of(dictionary).clone(),
            2 => words.insert(at, chance.of(dictionary).clone()),
            3 if at < end => {
                let again = words[at..end].to_vec();
                let to = chance.below(words.len());
                words.splice(to..to, again);
            }
            4 if words.len() > 1 => {
                let other = chance.below(words.len());
                words.swap(at.min(other), other);
            }
            // Two programs in one.
            5 => {
                let other = chance.of(programs);
                let from = chance.below(other.len() + 1);
                words.truncate(at);
                words.extend_from_slice(&other[from..]);
            }
            6 if at < words.len() => {
                let c = char::from_u32(chance.below(0x250) as u32).unwrap_or('?');
                let place = words[at].char_indices().map(|(place, _)| place).nth(chance.below(3)).unwrap_or(0);
                words[at].insert(place, c);
            }
            _ => words.truncate(at),
        }
    }
    words.concat()
}

#[test]
fn no_mutation_does_harm() {
    let programs: Vec<Vec<String>> = programs().iter().map(|program| words(program)).collect();
    assert!(programs.len() >= 300, "there are {} programs", programs.len());
    let dictionary: Vec<String> = programs.concat();
    let (mut chance, texts) = wanted(1);
    let (mut accepted, mut wrong) = (0, 0);
    for _ in 0..texts {
        match compile(&mutated(&programs, &dictionary, &mut chance)) {
            Fate::Accepted => accepted += 1,
            Fate::Wrong(_) => wrong += 1,
            Fate::TooLarge => {}
        }
    }
    // Both happen often, or nothing was tried.
    assert!(accepted > texts / 40 && wrong > texts / 4, "{accepted} accepted, {wrong} wrong");
}

#[test]
fn words_of_chance_do_no_harm() {
    let dictionary: Vec<String> = programs().iter().flat_map(|program| words(program)).collect();
    let (mut chance, texts) = wanted(2);
    for _ in 0..texts / 4 {
        let count = 1 + chance.below(40);
        let text: Vec<&str> = (0..count).map(|_| chance.of(&dictionary).as_str()).collect();
        compile(&text.concat());
        compile(&format!("BEGIN {{ {} }}", text.join(" ")));
    }
}

//! What the project asks of its source files, as tests.

use std::fs;
use std::path::{Path, PathBuf};

/// The longest line of a comment, in characters. Tables, code and drawings may be wider.
const COMMENT: usize = 100;

/// All Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        match path.file_name().and_then(|name| name.to_str()) {
            Some(".git") => {}
            // What cargo has built: a folder of sources may have the same name.
            _ if path.join("CACHEDIR.TAG").exists() => {}
            _ if path.is_dir() => sources(&path, found),
            Some(name) if name.ends_with(".rs") => found.push(path),
            _ => {}
        }
    }
}

/// Lines of prose in comments that are too long, by their numbers.
fn long_comments(text: &str) -> Vec<usize> {
    let mut fenced = false;
    let mut long = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        let comment = comment.strip_prefix(['/', '!']).unwrap_or(comment);
        fenced ^= comment.trim_start().starts_with("```");
        let is_prose = !fenced && !comment.starts_with(" |") && !comment.starts_with("  ");
        if is_prose && line.chars().count() > COMMENT {
            long.push(number + 1);
        }
    }
    long
}

#[test]
fn comments_are_no_wider_than_a_screen() {
    let mut files = Vec::new();
    sources(crate::test::checkout(), &mut files);
    assert!(files.len() > 100, "no sources");
    let long: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let text = fs::read_to_string(file).unwrap();
            long_comments(&text).into_iter().map(|line| format!("{}:{line}", file.display())).collect::<Vec<_>>()
        })
        .collect();
    assert!(long.is_empty(), "comments of more than {COMMENT} characters:\n{}", long.join("\n"));
}

#[test]
fn a_long_comment_is_found() {
    let long = format!("// {}\n/// short\n    /// {}\n//! | {} |\n", "x".repeat(100), "y ".repeat(60), "z".repeat(100));
    assert_eq!(long_comments(&long), [1, 3]);
}

//! The Markdown files of the project.

use std::fs;
use std::path::{Path, PathBuf};

use sidestep_tests::build::checkout;

/// README, ARCHITECTURE, CONTRIBUTING, CHANGELOG and all below `docs/`, relative to the checkout.
pub fn all() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(PathBuf::from).into();
    below(Path::new("docs"), &mut pages);
    pages.sort();
    pages
}

fn below(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(checkout().join(folder)).expect("a folder").map(Result::unwrap) {
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            below(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

/// The text of a page.
pub fn text(page: &Path) -> String {
    fs::read_to_string(checkout().join(page)).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

#[test]
fn all_pages_of_the_guide_are_in_its_summary() {
    let summary = text(Path::new("docs/guide/SUMMARY.md"));
    let missing: Vec<String> = all()
        .iter()
        .filter_map(|page| page.strip_prefix("docs/guide").ok())
        .map(|page| page.display().to_string())
        .filter(|page| page != "SUMMARY.md" && !summary.contains(&format!("]({page})")))
        .collect();
    assert!(missing.is_empty(), "docs/guide/SUMMARY.md does not name {missing:?}");
}

#[test]
fn documents_that_must_be_short_are() {
    for (page, most) in [("README.md", 8 << 10), ("ARCHITECTURE.md", 10 << 10)] {
        let size = text(Path::new(page)).len();
        assert!(size <= most, "{page} has {size} bytes, and {most} are the limit");
    }
}

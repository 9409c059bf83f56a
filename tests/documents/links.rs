//! Links of the documents: each file and each anchor is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use sidestep_tests::build::checkout;

use crate::pages;

/// What links of a page lead to, and what they may lead to.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn parse(text: &str) -> Page {
        let mut page = Page::default();
        let mut title: Option<String> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.to_string());
                }
                Event::Start(Tag::Heading { .. }) => title = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.add(&title.take().unwrap_or_default()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(title) = &mut title {
                        title.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page
    }

    /// Anchors as mdBook and GitHub make them of titles; equal ones get a number.
    fn add(&mut self, title: &str) {
        let title = title.to_lowercase();
        let kept = title.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c),
            _ => None,
        });
        let anchor: String = kept.collect();
        let mut name = anchor.clone();
        let mut number = 1;
        while !self.anchors.insert(name.clone()) {
            name = format!("{anchor}-{number}");
            number += 1;
        }
    }
}

/// `a/b/../c` as `a/c`.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

/// Links that lead nowhere, of pages by their paths; `exists` knows other files.
fn broken(pages: &BTreeMap<PathBuf, Page>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, page) in pages {
        for link in &page.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').map_or((&**link, None), |(file, anchor)| (file, Some(anchor)));
            let to = match file {
                "" => path.clone(),
                file => plain(&path.parent().unwrap_or(Path::new("")).join(file)),
            };
            let is_there = match (pages.get(&to), anchor) {
                (Some(page), Some(anchor)) => page.anchors.contains(anchor),
                (Some(_), None) => true,
                (None, anchor) => anchor.is_none() && exists(&to),
            };
            // The book has the pages of the guide alone.
            let leaves_book = path.starts_with("docs/guide") && !to.starts_with("docs/guide");
            if !is_there || leaves_book {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    broken
}

#[test]
fn links_lead_somewhere() {
    let pages = pages::all().into_iter().map(|path| (path.clone(), Page::parse(&pages::text(&path)))).collect();
    let broken = broken(&pages, |path| checkout().join(path).exists());
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn a_broken_link_is_found() {
    let page =
        Page::parse("# A `b` c\n\n## Two\n\n## Two\n\n[x](other.md#no), [y](#two-1), [z](#a-b-c), [w](../gone.md)\n");
    let other = Page::parse("# Other\n\n[up](../docs/page.md#two)\n");
    let pages = BTreeMap::from([(PathBuf::from("docs/page.md"), page), (PathBuf::from("docs/other.md"), other)]);
    assert_eq!(broken(&pages, |_| false), ["docs/page.md: other.md#no", "docs/page.md: ../gone.md"]);
    let pages = BTreeMap::from([(PathBuf::from("docs/guide/page.md"), Page::parse("[x](../other.md)\n"))]);
    assert_eq!(broken(&pages, |_| true), ["docs/guide/page.md: ../other.md"]);
}

//! What a session does in each of its processes.

use std::cell::RefCell;
use std::rc::Rc;

use sidestep_sys::TscScale;

use crate::api::{Bundle, Options, Request};
use crate::book::Book;
use crate::installer::Installer;
use crate::objects::Objects;
use crate::session::clock;

/// Kept for processes that come later.
pub(crate) struct Wanted {
    bundle: Bundle,
    requests: Vec<Request>,
    pub options: Options,
    /// One for all, so that times can be compared.
    pub clock: Option<TscScale>,
    pub book: Rc<RefCell<Book>>,
    /// Files that were opened: the next process has most of them, too.
    pub objects: RefCell<Objects>,
}

impl Wanted {
    /// For a session that may have `several` processes.
    pub fn new(bundle: &Bundle, requests: &[Request], options: &Options, several: bool) -> Wanted {
        let (book, mut objects) = (Book::new(several), Objects::new(options));
        objects.analyses = Rc::clone(&book.borrow().analyses);
        Wanted {
            bundle: bundle.clone(),
            requests: requests.to_vec(),
            options: options.clone(),
            clock: clock(),
            book,
            objects: RefCell::new(objects),
        }
    }

    /// For one more process.
    pub fn installer(&self) -> Installer {
        Installer::new(&self.bundle, &self.requests, &self.options, &self.book)
    }
}

//! What a session does in each of its processes.

use std::cell::RefCell;
use std::rc::Rc;

use sidestep_sys::TscScale;

use crate::api::{Bundle, Options, Request};
use crate::resolve::objects::Objects;
use crate::session::clock;
use crate::session::installer::Installer;
use crate::session::registry::Registry;

/// Kept for processes that come later.
pub(crate) struct SessionSpec {
    bundle: Bundle,
    requests: Vec<Request>,
    pub options: Options,
    /// One for all, so that times can be compared.
    pub clock: Option<TscScale>,
    pub registry: Rc<RefCell<Registry>>,
    /// Files that were opened: the next process has most of them, too.
    pub objects: RefCell<Objects>,
}

impl SessionSpec {
    /// For a session that may have `several` processes.
    pub fn new(bundle: &Bundle, requests: &[Request], options: &Options, several: bool) -> SessionSpec {
        let (registry, mut objects) = (Registry::new(several), Objects::new(options));
        objects.analyses = Rc::clone(&registry.borrow().analyses);
        SessionSpec {
            bundle: bundle.clone(),
            requests: requests.to_vec(),
            options: options.clone(),
            clock: clock(),
            registry,
            objects: RefCell::new(objects),
        }
    }

    /// For one more process.
    pub fn installer(&self) -> Installer {
        Installer::new(&self.bundle, &self.requests, &self.options, &self.registry)
    }
}

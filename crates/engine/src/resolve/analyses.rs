//! What was found out about the code of objects: in most processes of a session they are the same,
//! and what resolves a pattern needs it before the plans do.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use sidestep_plan::Index;
use sidestep_plan::index::{Analysis, IsOver};
use sidestep_symbols::Object;
use sidestep_sys::is_hurried;

use crate::error::SessionError;

/// Indexes that a session's parts have in common.
pub(crate) type Shared = Rc<RefCell<Analyses>>;

/// Indexes objects, each once if there may be more processes.
#[derive(Default)]
pub(crate) struct Analyses {
    keeps: bool,
    // The object is kept, so that its address stays its own.
    kept: HashMap<*const Object, (Rc<Object>, Arc<Analysis>)>,
}

impl Analyses {
    /// For `several` processes. Of one alone nothing is kept: it can be much.
    pub fn new(several: bool) -> Analyses {
        Analyses { keeps: several, ..Analyses::default() }
    }

    /// The index of an object, for the start of a session, which the user may end.
    ///
    /// # Errors
    /// The object is corrupt; the user has asked for the end.
    pub fn index<'o>(&mut self, object: &'o Rc<Object>) -> Result<Index<'o>, SessionError> {
        self.get(object, self.keeps, &is_hurried)
    }

    /// As [`Analyses::index`]; somebody will ask again, until [`Analyses::forget`].
    ///
    /// # Errors
    /// The object is corrupt.
    pub fn index_to_keep<'o>(&mut self, object: &'o Rc<Object>) -> Result<Index<'o>, SessionError> {
        self.get(object, true, &|| false)
    }

    /// Indexes an object whose names the start of a session asks for, which the user may end.
    ///
    /// # Errors
    /// The object is corrupt; the user has asked for the end.
    pub fn look_ahead(&mut self, object: &Rc<Object>) -> Result<(), SessionError> {
        self.get(object, true, &is_hurried).map(|_| ())
    }

    /// Whether an object was indexed before, and that was kept.
    pub fn knows(&self, object: &Rc<Object>) -> bool {
        self.kept.contains_key(&Rc::as_ptr(object))
    }

    /// The index of an object that was indexed before, and kept.
    pub fn known<'o>(&self, object: &'o Rc<Object>) -> Option<Index<'o>> {
        let (_, found) = self.kept.get(&Rc::as_ptr(object))?;
        Some(Index::again(object.code().ok()?, Arc::clone(found)))
    }

    /// Plans are made. What the next process needs stays.
    pub fn forget(&mut self) {
        if !self.keeps {
            self.kept.clear();
        }
    }

    fn get<'o>(&mut self, object: &'o Rc<Object>, keep: bool, is_over: IsOver<'_>) -> Result<Index<'o>, SessionError> {
        if let Some(index) = self.known(object) {
            return Ok(index);
        }
        let index = Index::unless(object.code()?, is_over).ok_or(SessionError::Interrupted)?;
        if keep {
            self.kept.insert(Rc::as_ptr(object), (Rc::clone(object), index.analysis()));
        }
        Ok(index)
    }
}

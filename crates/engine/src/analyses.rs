//! What was found out about the code of objects: in most processes of a session they are the same.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use sidestep_plan::Index;
use sidestep_plan::index::Analysis;
use sidestep_symbols::{Object, ObjectError};

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

    /// The index of an object.
    ///
    /// # Errors
    /// The object is corrupt.
    pub fn index<'o>(&mut self, object: &'o Rc<Object>) -> Result<Index<'o>, ObjectError> {
        let code = object.code()?;
        if let Some((_, found)) = self.kept.get(&Rc::as_ptr(object)) {
            return Ok(Index::again(code, Arc::clone(found)));
        }
        let index = Index::new(code);
        if self.keeps {
            self.kept.insert(Rc::as_ptr(object), (Rc::clone(object), index.analysis()));
        }
        Ok(index)
    }
}

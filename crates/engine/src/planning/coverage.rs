//! How many sites of a file get which technique.

use std::path::PathBuf;

use sidestep_plan::coverage::{Coverage, Sites};

use crate::api::Options;
use crate::error::SessionError;
use crate::planning::surroundings::{self, Surroundings};
use crate::resolve;
use crate::resolve::analyses::Analyses;
use crate::resolve::objects::Objects;
use crate::resolve::unnamed::name_at;

/// The sites of a file, counted.
#[derive(Clone, Debug)]
pub struct Covered {
    /// Path of the file.
    pub object: PathBuf,
    /// What was counted.
    pub coverage: Coverage,
    /// `symbol+0xOFF` of the example of each reason, in their order.
    pub examples: Vec<String>,
}

/// Counts the sites of a file: a path, or a short library name. Each is decided about as if it were
/// the only probe in a process that has mapped nothing but this file. Touches no process.
pub fn coverage(binary: &str, sites: Sites, options: &Options) -> Result<Covered, SessionError> {
    let object = Objects::new(options).open_file(&resolve::file(binary)?)?;
    let (isa, bias) = (object.isa(), resolve::assumed_bias(&object));
    let mut surroundings = Surroundings::default();
    surroundings.look(&surroundings::assumed(resolve::assumed_image(&object), bias == 0));
    let analyses = &mut Analyses::default();
    let index = analyses.index_to_keep(&object)?;
    let coverage = Coverage::of(&index, sites, || surroundings.alone(isa, bias));
    let examples = coverage.reasons.iter().map(|reason| name_at(&object, reason.example, analyses)).collect();
    Ok(Covered { object: object.path().to_owned(), coverage, examples })
}

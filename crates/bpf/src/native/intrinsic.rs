//! Helpers that are a few instructions instead of a call.

use super::{Clock, Env};
use crate::verify::HIST_BUCKET;

/// What is computed in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intrinsic {
    /// `ktime_get_ns`
    Clock(Clock),
    /// `hist_bucket`
    Bucket,
    /// `get_attach_cookie`, `get_func_ip`
    Constant(u64),
}

/// The intrinsic for a helper, if there is one.
pub fn find(env: &Env, number: u32) -> Option<Intrinsic> {
    match number {
        5 => env.clock.map(Intrinsic::Clock),
        173 => env.func_ip.map(Intrinsic::Constant),
        174 => env.attach_cookie.map(Intrinsic::Constant),
        HIST_BUCKET => Some(Intrinsic::Bucket),
        _ => None,
    }
}

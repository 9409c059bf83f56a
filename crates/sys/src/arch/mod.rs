//! What depends on the instruction set: registers, the signal frame, the instructions that a remote call needs.

mod frame;
mod survey;
mod vectors;
mod x86_64;

pub(crate) use frame::{Frame, frame_len, on_frame};
pub use survey::{INFO_BEHIND_IP, MASK_BEHIND_IP, signal_frames};
pub use vectors::{Vectors, vectors};
pub use x86_64::Regs;
pub(crate) use x86_64::{ENTRY_STUB_LEN, GADGET_CODE, Gadgets, entry_stub, rseq_abort};

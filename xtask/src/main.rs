//! Developer commands.
fn main(){}

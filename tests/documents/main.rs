//! The documents are true: their commands are run, and their links lead somewhere.

mod console;
mod links;
mod pages;

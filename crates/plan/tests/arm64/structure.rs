//! What detours consist of, read by two decoders.

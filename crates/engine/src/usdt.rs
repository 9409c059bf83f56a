//! The arguments of USDT sites, as programs that include libbpf's `usdt.bpf.h` find them.

use sidestep_symbols::usdt::{Probe, SpecLayout};

/// What goes into a program's map `__bpf_usdt_specs`: a `struct __bpf_usdt_spec` for each way in which sites have their
/// arguments. Its key is what the program has to get as cookie.
#[derive(Clone, Debug)]
pub struct Arguments {
    value_size: u32,
    max_entries: u32,
    specs: Vec<Vec<u8>>,
}

impl Arguments {
    /// For a map of this shape.
    #[must_use]
    pub fn new(value_size: u32, max_entries: u32) -> Arguments {
        Arguments { value_size, max_entries, specs: Vec::new() }
    }

    /// The key of a site's arguments.
    ///
    /// # Errors
    /// A clause for the user: they cannot be expressed, or there are too many.
    pub fn key(&mut self, probe: &Probe) -> Result<u32, String> {
        let size = self.value_size;
        let layout = SpecLayout::of_size(size as usize).ok_or_else(|| {
            format!("its map of arguments has values of {size} bytes, which no libbpf that is known has")
        })?;
        let bytes = probe.spec_bytes(layout, 0).map_err(|error| error.to_string())?;
        if let Some(known) = self.specs.iter().position(|spec| *spec == bytes) {
            return Ok(known as u32);
        }
        let key = self.specs.len() as u32;
        if key >= self.max_entries {
            return Err(format!(
                "there are more than {key} kinds of arguments: define BPF_USDT_MAX_SPEC_CNT before including usdt.bpf.h"
            ));
        }
        self.specs.push(bytes);
        Ok(key)
    }

    /// The values, by key.
    #[must_use]
    pub fn specs(&self) -> &[Vec<u8>] {
        &self.specs
    }
}

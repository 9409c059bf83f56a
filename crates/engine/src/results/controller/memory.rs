//! What a program in the controller sees as memory: addresses that stand for places of ours.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sidestep_bpf::alu;
use sidestep_bpf::insn::{AtomicOp, Size, Width};
use sidestep_bpf::interp::{Machine, Stop, Vm};
use sidestep_wire::hash::Found;
use sidestep_wire::watchdog::{ANY_NUMBER, Watchdog};
use sidestep_wire::{MapDesc, Table, map};

use crate::api::Record;
use crate::results::maps::Maps;

/// Addresses of a region begin with its number.
const REGION: u32 = 40;
/// The shared region.
pub const SHARED: u64 = 1 << REGION;
/// What each thread has, of the controller.
const OWN: u64 = 2 << REGION;
const STACK: u64 = 3 << REGION;
pub const CONTEXT: u64 = 4 << REGION;
/// The record that is being written.
pub const RECORD: u64 = 5 << REGION;

/// The helper that calls functions of the program.
const LOOP: u32 = 181;

/// Loops over maps come to so many entries in one run, for each that the map has room for: entries
/// that come and go meanwhile may be met again.
const ROUNDS: u64 = 4;

/// Words of registers and cookie.
const CONTEXT_WORDS: usize = 22;

/// Memory and helpers of one run.
pub struct Space<'a> {
    pub maps: Maps<'a>,
    stack: Vec<AtomicU64>,
    context: Vec<AtomicU64>,
    pub record: Vec<AtomicU64>,
    /// The map that the record is for.
    pub record_map: usize,
    /// What was written so far.
    pub records: Vec<Record>,
    /// Entries that loops over maps have come to.
    walked: u64,
}

fn zeros(words: usize) -> Vec<AtomicU64> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

impl<'a> Space<'a> {
    pub fn new(maps: Maps<'a>, stack: u64) -> Space<'a> {
        let stack = zeros((stack / 8) as usize);
        Space {
            maps,
            stack,
            context: zeros(CONTEXT_WORDS),
            record: Vec::new(),
            record_map: 0,
            records: Vec::new(),
            walked: 0,
        }
    }

    pub fn stack_end(&self) -> u64 {
        STACK + 8 * self.stack.len() as u64
    }

    pub fn new_record(&mut self, map: usize, len: u64) {
        self.record = zeros(len.div_ceil(8) as usize);
        self.record_map = map;
    }

    /// The word around an address.
    fn word(&self, address: u64) -> Option<&AtomicU64> {
        let offset = address & ((1 << REGION) - 8);
        let index = (offset / 8) as usize;
        match address >> REGION << REGION {
            SHARED => self.maps.shared.word(offset),
            OWN => self.maps.own.get(index),
            STACK => self.stack.get(index),
            CONTEXT => self.context.get(index),
            RECORD => self.record.get(index),
            _ => None,
        }
    }

    fn byte(&self, address: u64) -> Option<u8> {
        let word = self.word(address)?.load(Ordering::Relaxed);
        Some((word >> (8 * (address % 8))) as u8)
    }

    pub fn read(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        (0..len).map(|at| self.byte(address.wrapping_add(at))).collect()
    }

    /// A text with its NUL, cut to `len` bytes.
    pub fn read_text(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while (text.len() as u64) + 1 < len {
            match self.byte(address.wrapping_add(text.len() as u64))? {
                0 => break,
                byte => text.push(byte),
            }
        }
        text.push(0);
        Some(text)
    }

    pub fn write(&self, address: u64, bytes: &[u8]) -> Option<()> {
        for (at, byte) in bytes.iter().enumerate() {
            let address = address.wrapping_add(at as u64);
            let shift = 8 * (address % 8);
            let change = |word: u64| Some(word & !(0xff << shift) | u64::from(*byte) << shift);
            let _ = self.word(address)?.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        }
        Some(())
    }

    /// The description of a map, and its number.
    pub fn desc(&self, address: u64) -> Option<(usize, MapDesc)> {
        let first = SHARED + self.maps.layout.map_desc(0);
        let index = address.checked_sub(first)? / size_of::<MapDesc>() as u64;
        Some((index as usize, self.maps.map_desc(index as usize)?))
    }

    /// Does something with the table of a hash map.
    fn with_table<T>(&self, index: usize, desc: &MapDesc, act: impl FnOnce(&Table<'_>) -> T) -> T {
        act(&self.maps.table(index, desc))
    }

    fn element(&self, desc: &MapDesc, key: &[u8]) -> Option<u64> {
        let index = u64::from(u32::from_ne_bytes(key.get(..4)?.try_into().ok()?));
        let first = match desc.kind {
            map::ARRAY => SHARED + desc.data,
            _ => OWN + desc.cells,
        };
        (index < u64::from(desc.max_entries)).then_some(first + index * desc.stride)
    }

    /// Our own value of an entry; zeros if what is there belongs to an earlier use of the entry.
    fn own_value(&self, desc: &MapDesc, found: &Found) -> Option<u64> {
        let at = OWN + desc.cells + found.index * desc.stride;
        let generation = self.word(at)?;
        if generation.load(Ordering::Relaxed) != found.generation {
            self.write(at + 8, &vec![0; desc.stride as usize - 8])?;
            generation.store(found.generation, Ordering::Relaxed);
        }
        Some(at + 8)
    }

    /// The address of a value.
    pub fn lookup(&self, map: usize, key: &[u8]) -> Option<u64> {
        let desc = self.maps.map_desc(map)?;
        match desc.kind {
            map::ARRAY | map::PERCPU_ARRAY => self.element(&desc, key),
            map::HASH | map::LRU_HASH => self.with_table(map, &desc, |table| {
                table.lookup(&key).map(|found| SHARED + desc.data + table.value_offset(&found))
            }),
            map::PERCPU_HASH | map::LRU_PERCPU_HASH => {
                let found = self.with_table(map, &desc, |table| table.lookup(&key))?;
                self.own_value(&desc, &found)
            }
            _ => None,
        }
    }

    /// 0, or a negative error of the kernel.
    pub fn update(&self, map: usize, key: &[u8], value: &[u8], flags: u64) -> i64 {
        let Some(desc) = self.maps.map_desc(map) else { return -22 };
        let own = match desc.kind {
            map::ARRAY | map::PERCPU_ARRAY => self.element(&desc, key),
            map::HASH | map::LRU_HASH => {
                let result = self.with_table(map, &desc, |table| table.update(&key, &value, flags));
                return result.map_or_else(|error| error.errno(), |_| 0);
            }
            map::PERCPU_HASH | map::LRU_PERCPU_HASH => {
                match self.with_table(map, &desc, |table| table.update(&key, &(), flags)) {
                    Ok(found) => self.own_value(&desc, &found),
                    Err(error) => return error.errno(),
                }
            }
            _ => None,
        };
        own.and_then(|at| self.write(at, value)).map_or(-7, |()| 0)
    }

    /// 0, or a negative error of the kernel.
    pub fn delete(&self, map: usize, key: &[u8]) -> i64 {
        match self.maps.map_desc(map) {
            Some(desc) if matches!(desc.kind, map::HASH | map::LRU_HASH | map::PERCPU_HASH | map::LRU_PERCPU_HASH) => {
                self.with_table(map, &desc, |table| table.delete(&key)).map_or_else(|error| error.errno(), |()| 0)
            }
            _ => -22,
        }
    }

    /// Copies the entry behind a cursor to where the last one is; the cursor behind it. Ends at a
    /// map that the target has overwritten so that its entries never end.
    pub fn next_entry(&mut self, map: usize, desc: &MapDesc, cursor: u64, to: u64, len: u64) -> Option<u64> {
        self.walked += 1;
        if self.walked > ROUNDS * u64::from(desc.capacity) {
            return None;
        }
        let last = self.read(to, desc.key_size.into())?;
        self.with_table(map, desc, |table| {
            let (key_words, value_words) = table.sizes();
            if 8 * (key_words + value_words) as u64 > len {
                return None;
            }
            let mut bytes = Vec::new();
            let next = table.after(cursor, &&*last, |found| {
                bytes.clear();
                for word in 0..key_words {
                    bytes.extend(table.key_word(found, word).to_ne_bytes());
                }
                for word in 0..value_words {
                    let word = table.value_word(found, word).map_or(0, |word| word.load(Ordering::Relaxed));
                    bytes.extend(word.to_ne_bytes());
                }
            })?;
            self.write(to, &bytes).map(|()| next)
        })
    }

    pub fn clear(&self, map: usize) {
        let Some(desc) = self.maps.map_desc(map) else { return };
        match desc.kind {
            map::ARRAY => self.zero(map),
            map::HASH | map::LRU_HASH | map::PERCPU_HASH | map::LRU_PERCPU_HASH => {
                self.with_table(map, &desc, |table| table.clear());
            }
            _ => {}
        }
    }

    pub fn zero(&self, map: usize) {
        let Some(desc) = self.maps.map_desc(map) else { return };
        for entry in self.maps.entries(map) {
            if let (false, Some(at)) = (desc.has_thread_values(), self.lookup(map, &entry.key)) {
                let _ = self.write(at, &vec![0; desc.value_size as usize]);
            }
        }
    }
}

impl Machine for Space<'_> {
    fn load(&mut self, address: u64, size: Size) -> Result<u64, Stop> {
        let (shift, bits) = (8 * (address % 8) as u32, size.bits());
        if shift + bits <= 64 {
            let word = self.word(address).ok_or(Stop::Fault(address))?.load(Ordering::Acquire) >> shift;
            return Ok(if bits == 64 { word } else { word & ((1 << bits) - 1) });
        }
        let bytes = self.read(address, size.bytes() as u64).ok_or(Stop::Fault(address))?;
        Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn store(&mut self, address: u64, size: Size, value: u64) -> Result<(), Stop> {
        if size == Size::Dw && address % 8 == 0 {
            self.word(address).ok_or(Stop::Fault(address))?.store(value, Ordering::Release);
            return Ok(());
        }
        self.write(address, &value.to_ne_bytes()[..size.bytes()]).ok_or(Stop::Fault(address))
    }

    fn atomic(&mut self, address: u64, width: Width, op: AtomicOp, operand: u64, r0: u64) -> Result<u64, Stop> {
        let (shift, bits) = (8 * (address % 8) as u32, width.bits());
        if shift % bits != 0 {
            return Err(Stop::Fault(address));
        }
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let change = |word: u64| {
            let new = alu::atomic(width, op, word >> shift & mask, operand, r0) & mask;
            Some(word & !(mask << shift) | new << shift)
        };
        let word = self.word(address).ok_or(Stop::Fault(address))?;
        let (Ok(old) | Err(old)) = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        Ok(old >> shift & mask)
    }

    fn call(&mut self, vm: &mut Vm<'_>, helper: u32, args: [u64; 5]) -> Result<u64, Stop> {
        if helper == LOOP {
            let [times, callback, context, flags, _] = args;
            let (began, mut watchdog) = (Instant::now(), Watchdog::new());
            for index in 0..times & u64::from(u32::MAX) {
                if flags == ANY_NUMBER && watchdog.ends(index, || began.elapsed().as_nanos() as u64) {
                    return Ok(index);
                }
                if vm.call(self, callback, [index, context, 0, 0, 0])? != 0 {
                    return Ok(index + 1);
                }
            }
            return Ok(times);
        }
        self.help(helper, args).ok_or(Stop::Helper(helper))
    }

    fn thread(&mut self, offset: u32) -> Result<u64, Stop> {
        Ok(OWN + u64::from(offset))
    }
}

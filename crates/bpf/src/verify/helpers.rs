//! What helpers take and give: numbers, names and meanings of the kernel
//! (`include/uapi/linux/bpf.h`, its list of helpers, and `Documentation/bpf/helpers`).

use crate::map::MapKind;
use crate::pass::arguments::STATIC_ARGUMENT;

/// What an argument must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arg {
    /// Any value that is initialised.
    Any,
    /// Any value, or none: what the text of `trace_printk` does not ask for.
    Optional,
    /// The context, unchanged.
    Context,
    /// A map of one of these kinds.
    Map(&'static [MapKind]),
    /// As many readable bytes as a key of the map has.
    Key,
    /// As many readable bytes as a value of the map has.
    Value,
    /// Readable bytes; the next argument is their length.
    Read,
    /// Bytes that the helper writes; the next argument is their length.
    Write,
    /// The length of the argument before; not 0.
    Length,
    /// The length of the argument before.
    LengthOrZero,
    /// 8 aligned bytes that the helper writes.
    WriteU64,
    /// A constant length of a record.
    RecordLength,
    /// A record of a ring, which the helper takes back.
    Record,
    /// A function that the helper calls: of an index and the next argument.
    Callback,
    /// What a callback gets: a pointer to the stack, or null.
    CallbackContext,
    /// Constant text in a read-only map.
    Text,
}

/// What `r0` is afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Returns {
    /// Any number.
    Number,
    /// A number of 32 bits.
    Small,
    /// At most this.
    UpTo(u64),
    /// A negative error, or at most the length of the memory that was written.
    Written,
    /// A value of the map, or null.
    MapValue,
    /// A reserved record, or null.
    Record,
    /// Nothing.
    Nothing,
}

/// A bucket of a histogram at most: `Histogram::BUCKETS - 1` in `sidestep-wire`.
pub(crate) const LAST_BUCKET: u64 = 975;

/// A helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Helper {
    /// The kernel's number; from 255 on our own (the kernel adds none any more).
    pub number: u32,
    /// The kernel's name, without `bpf_`.
    pub name: &'static str,
    pub(crate) args: &'static [Arg],
    pub(crate) returns: Returns,
    /// Changes what the target does.
    pub is_unsafe: bool,
}

use Arg::{
    Any, Callback, CallbackContext, Context, Key, Length, LengthOrZero, Map, Optional, Read, Record, RecordLength,
    Text, Value, Write, WriteU64,
};

/// Number of `hist_bucket`.
pub(crate) const HIST_BUCKET: u32 = 256;

const ENTRIES: &[MapKind] = &[
    MapKind::Hash,
    MapKind::Array,
    MapKind::PercpuHash,
    MapKind::PercpuArray,
    MapKind::LruHash,
    MapKind::LruPercpuHash,
];
const DELETABLE: &[MapKind] = &[
    MapKind::Hash,
    MapKind::Array,
    MapKind::PercpuHash,
    MapKind::PercpuArray,
    MapKind::LruHash,
    MapKind::LruPercpuHash,
    MapKind::StackTrace,
];
const HASHES: &[MapKind] = &[MapKind::Hash, MapKind::LruHash];
const COUNTED: &[MapKind] =
    &[MapKind::Hash, MapKind::LruHash, MapKind::PercpuHash, MapKind::LruPercpuHash, MapKind::StackTrace];
const RING: &[MapKind] = &[MapKind::Ringbuf];
const PERF: &[MapKind] = &[MapKind::PerfEventArray];
const STACKS: &[MapKind] = &[MapKind::StackTrace];

const fn helper(number: u32, name: &'static str, args: &'static [Arg], returns: Returns) -> Helper {
    Helper { number, name, args, returns, is_unsafe: false }
}

/// All helpers, by rising number.
const HELPERS: &[Helper] = &[
    helper(1, "map_lookup_elem", &[Map(ENTRIES), Key], Returns::MapValue),
    helper(2, "map_update_elem", &[Map(ENTRIES), Key, Value, Any], Returns::Number),
    helper(3, "map_delete_elem", &[Map(DELETABLE), Key], Returns::Number),
    helper(4, "probe_read", &[Write, LengthOrZero, Any], Returns::Number),
    helper(5, "ktime_get_ns", &[], Returns::Number),
    helper(6, "trace_printk", &[Read, Length, Optional, Optional, Optional], Returns::Number),
    helper(7, "get_prandom_u32", &[], Returns::Number),
    helper(8, "get_smp_processor_id", &[], Returns::Small),
    helper(14, "get_current_pid_tgid", &[], Returns::Number),
    helper(15, "get_current_uid_gid", &[], Returns::Number),
    helper(16, "get_current_comm", &[Write, Length], Returns::Number),
    helper(25, "perf_event_output", &[Context, Map(PERF), Any, Read, LengthOrZero], Returns::Number),
    helper(27, "get_stackid", &[Context, Map(STACKS), Any], Returns::Number),
    Helper { is_unsafe: true, ..helper(36, "probe_write_user", &[Any, Read, Length], Returns::Number) },
    helper(45, "probe_read_str", &[Write, LengthOrZero, Any], Returns::Written),
    Helper { is_unsafe: true, ..helper(58, "override_return", &[Context, Any], Returns::Number) },
    helper(67, "get_stack", &[Context, Write, LengthOrZero, Any], Returns::Written),
    Helper { is_unsafe: true, ..helper(109, "send_signal", &[Any], Returns::Number) },
    helper(112, "probe_read_user", &[Write, LengthOrZero, Any], Returns::Number),
    // A process has no memory of the kernel: the context and the maps are in its own.
    helper(113, "probe_read_kernel", &[Write, LengthOrZero, Any], Returns::Number),
    helper(114, "probe_read_user_str", &[Write, LengthOrZero, Any], Returns::Written),
    helper(115, "probe_read_kernel_str", &[Write, LengthOrZero, Any], Returns::Written),
    Helper { is_unsafe: true, ..helper(117, "send_signal_thread", &[Any], Returns::Number) },
    helper(130, "ringbuf_output", &[Map(RING), Read, LengthOrZero, Any], Returns::Number),
    helper(131, "ringbuf_reserve", &[Map(RING), RecordLength, Any], Returns::Record),
    helper(132, "ringbuf_submit", &[Record, Any], Returns::Nothing),
    helper(133, "ringbuf_discard", &[Record, Any], Returns::Nothing),
    helper(134, "ringbuf_query", &[Map(RING), Any], Returns::Number),
    helper(173, "get_func_ip", &[Context], Returns::Number),
    helper(174, "get_attach_cookie", &[Context], Returns::Number),
    helper(181, "loop", &[Any, Callback, CallbackContext, Any], Returns::Number),
    helper(182, "strncmp", &[Read, Length, Text], Returns::Number),
    helper(183, "get_func_arg", &[Context, Any, WriteU64], Returns::Number),
    helper(184, "get_func_ret", &[Context, WriteU64], Returns::Number),
    helper(185, "get_func_arg_cnt", &[Context], Returns::Number),
    // Not the kernel's: the bucket of a value in a histogram of latencies or sizes.
    helper(HIST_BUCKET, "hist_bucket", &[Any], Returns::UpTo(LAST_BUCKET)),
    // Not the kernel's: as ringbuf_submit, but only so many bytes; more than were reserved are
    // checked at run time.
    helper(257, "ringbuf_submit_part", &[Record, Any, Any], Returns::Nothing),
    // Not the kernel's: copies the key and value behind a cursor (at first 0) to where the last
    // ones were put; the cursor behind them, or 0.
    helper(258, "map_next", &[Map(HASHES), Any, Write, Length], Returns::Number),
    // Not the kernel's: how many keys a map has, or how many addresses the stack with this number.
    helper(259, "map_len", &[Map(COUNTED), Any], Returns::Small),
    // Not the kernel's: where in the first text the second one begins, or a negative number.
    helper(260, "text_find", &[Read, Length, Read, Length], Returns::Number),
    // Not the kernel's: the process that has started this one.
    helper(261, "get_parent_pid", &[], Returns::Number),
    // Not the kernel's: whether the first text is what the second one, a pattern, says.
    helper(262, "text_matches", &[Read, Length, Read, Length], Returns::Small),
    // Not the kernel's: the address of a function or so, as it is kept where several processes may
    // be meant.
    helper(263, "symbol", &[Any], Returns::Number),
    // Not the kernel's: what tells the calls of a function apart while they last, of the address of
    // the return address and register r14 (a goroutine, whose stack may move).
    helper(265, "call_place", &[Context, Any, Any], Returns::Number),
    // Not the kernel's: the name of a process, with its NUL. Only the controller can look it up: an
    // open file in a process that is probed would be seen there.
    helper(255, "process_comm", &[Write, Length, Any], Returns::Number),
    // Not the kernel's, and never called: `pass::arguments` puts in what it stands for.
    helper(STATIC_ARGUMENT, "static_argument", &[Context, Any, WriteU64], Returns::Number),
];

impl Helper {
    /// The helper with this number.
    #[must_use]
    pub fn by_number(number: u32) -> Option<&'static Helper> {
        HELPERS.iter().find(|h| h.number == number)
    }

    /// The helper with this name of the kernel, without `bpf_`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Helper> {
        HELPERS.iter().find(|h| h.name == name)
    }

    /// All helpers, by rising number.
    pub fn all() -> impl Iterator<Item = &'static Helper> {
        HELPERS.iter()
    }

    /// Whether it reads memory that a pointer of the target names, and which may not be there.
    #[must_use]
    pub fn reads_target(&self) -> bool {
        self.name.starts_with("probe_read")
            || matches!(self.name, "trace_printk" | "get_stackid" | "get_stack" | "get_func_arg")
    }

    /// Whether it walks the stack of the target.
    #[must_use]
    pub fn walks_stack(&self) -> bool {
        matches!(self.name, "get_stackid" | "get_stack")
    }

    /// Whether it looks at registers of the context.
    #[must_use]
    pub fn reads_registers(&self) -> bool {
        matches!(self.name, "get_stackid" | "get_stack" | "get_func_arg" | "get_func_ret")
    }

    /// How many registers it may read, from `r1` on.
    #[must_use]
    pub fn arity(&self) -> usize {
        self.args.len()
    }
}

impl Arg {
    /// What the argument must be, in words.
    pub fn expected(self) -> &'static str {
        match self {
            Any | Optional | Length | LengthOrZero => "a number",
            Context => "the context",
            Map(_) => "a map",
            Key => "a pointer to a key of the map",
            Value => "a pointer to a value of the map",
            Read | Write => "a pointer to memory",
            WriteU64 => "a pointer to 8 bytes",
            RecordLength => "a constant length",
            Record => "a reserved record of a ring",
            Callback => "a function of the program",
            CallbackContext => "a pointer to the stack, or null",
            Text => "constant text in a read-only map",
        }
    }
}

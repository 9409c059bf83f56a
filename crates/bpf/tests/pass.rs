//! Passes between verifying and compiling: what becomes of programs, to the instruction.

mod cases;
mod run;

use cases::lines;
use run::{Buffer, interpret_at, listing};
use sidestep_bpf::map::{Map, MapKind};
use sidestep_bpf::pass::{Link, Values, filter};
use sidestep_bpf::program::LinkError;
use sidestep_bpf::verify::{Memory, Rules, Verified, verify};
use sidestep_bpf::{Imm64, Insn, assemble};

/// 0: 6 values of 24 bytes that threads share; 1: the same for each thread; 2: a hash.
fn maps() -> Vec<Map> {
    [MapKind::Array, MapKind::PercpuArray, MapKind::Hash]
        .into_iter()
        .map(|kind| Map {
            name: kind.name().to_owned(),
            kind,
            key_size: 4,
            value_size: 24,
            max_entries: 6,
            flags: 0,
            readonly: false,
            initial: Vec::new(),
        })
        .collect()
}

fn verified(text: &str) -> Verified {
    let maps = maps();
    let rules = Rules { maps: &maps, ..Rules::default() };
    verify(&assemble(&lines(text)).unwrap(), &rules).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn links(base: u64) -> Vec<Link> {
    let values = |base| Some(Values { base, stride: 24, entries: 6 });
    vec![
        Link { map: 100, values: values(Imm64::Value(base)) },
        Link { map: 101, values: values(Imm64::Thread(48)) },
        Link { map: 102, values: None },
    ]
}

fn linked(text: &str) -> Verified {
    verified(text).link(&links(0x1000)).unwrap()
}

fn text(verified: &Verified) -> Vec<String> {
    verified.program.iter().map(|i| i.unwrap().1.to_string()).collect()
}

/// Looks the entry up whose number is in `r6`, in map `M`.
const LOOKUP: &str = "*(u32 *)(r10 - 4) = r6; r1 = map(M) ll; r2 = r10; r2 += -4; call 1;";

fn lookup(map: u32, before: &str, after: &str) -> String {
    format!("r6 = *(u64 *)(r1 + 112); {before} {} {after}", LOOKUP.replace('M', &map.to_string()))
}

#[test]
fn lookups_are_arithmetic() {
    let found = linked(&lookup(1, "", "if r0 == 0 goto out; *(u64 *)(r0 + 8) = 5; out: r0 = 0; exit"));
    let want = [
        "r6 = *(u64 *)(r1 + 112)",
        "w0 = w6",
        "if r0 > 5 goto +5",
        "r0 *= 24",
        "r1 = thread(48) ll",
        "r0 += r1",
        "*(u64 *)(r0 + 8) = 5",
        "r0 = 0",
        "exit",
    ];
    assert_eq!(text(&found)[..2], want[..2]);
    assert_eq!(text(&found)[3..], want[3..], "{:#?}", text(&found));
    assert!(found.facts.helpers.is_empty() && found.facts.lookups.is_empty());
    assert!(found.facts.accesses.values().any(|m| *m == Memory::ThreadMap(1)));
}

#[test]
fn keys_that_are_constant_are_addresses() {
    let found = linked(&lookup(0, "r6 = 2;", "if r0 == 0 goto out; *(u64 *)(r0 + 8) = 5; out: r0 = 0; exit"));
    assert_eq!(text(&found), ["r0 = 4144 ll", "*(u64 *)(r0 + 8) = 5", "r0 = 0", "exit"].map(|t| t.replace(" ll", "")));
    let found =
        linked(&lookup(0, "r6 = 6;", "if r0 != 0 goto use; r0 = 9; exit; use: *(u64 *)(r0 + 8) = 5; r0 = 0; exit"));
    assert_eq!(text(&found), ["r0 = 9", "exit"]);
}

#[test]
fn other_lookups_stay_calls() {
    let found = linked(&lookup(2, "", "if r0 == 0 goto out; r1 = 1; lock *(u64 *)(r0 + 8) += r1; out: r0 = 0; exit"));
    assert!(text(&found).contains(&"r1 = 102".to_owned()) || text(&found).contains(&"r1 = 102 ll".to_owned()));
    assert_eq!(found.facts.helpers.iter().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn instructions_say_where_they_come_from() {
    let before = verified(&lookup(1, "", "if r0 == 0 goto out; *(u64 *)(r0 + 8) = 5; out: r0 = 0; exit"));
    let after = before.link(&links(0)).unwrap();
    assert_eq!(after.origin.len(), after.program.slots.len());
    let store = |v: &Verified| {
        let mut stores =
            v.program.iter().flatten().filter(|(_, i)| matches!(i, Insn::Store { size: sidestep_bpf::Size::Dw, .. }));
        stores.next().unwrap().0
    };
    assert_eq!(after.origin[store(&after)], store(&before));
}

#[test]
fn functions_and_callbacks_are_found_again() {
    let text =
        "r6 = 3; *(u32 *)(r10 - 4) = r6; r1 = map(0) ll; r2 = r10; r2 += -4; call 1; r1 = 10; r2 = func(each) ll;
        r3 = 0; r4 = 0; call 181; r1 = r0; call double; exit; each: r0 = 0; exit; double: r0 = r1; r0 += r1; exit";
    let found = linked(text);
    let starts: Vec<usize> = found.program.functions.iter().map(|f| f.start).collect();
    assert_eq!(starts.len(), 3);
    for (at, insn) in found.program.iter().flatten() {
        if let Some(target) = sidestep_bpf::program::target(at, &insn) {
            assert!(starts.contains(&target), "{}", listing(&found.program));
        }
    }
}

#[test]
fn additions_in_memory_of_the_thread_are_one_instruction() {
    let one = |change: &str| {
        let text = format!(
            "r4 = *(u64 *)(r1 + 112); r2 = map_value(1, 24) ll; r3 = *(u64 *)(r2 + 8); {change};
            *(u64 *)(r2 + 8) = r3; r0 = 0; exit"
        );
        linked(&text)
    };
    for (change, want) in [
        ("r3 += 1", "lock *(u64 *)(r2 + 8) += r3"),
        ("r3 -= r4", "lock *(u64 *)(r2 + 8) += r3"),
        ("r3 |= r4", "lock *(u64 *)(r2 + 8) |= r3"),
        ("r3 ^= 5", "lock *(u64 *)(r2 + 8) ^= r3"),
        ("r3 += r4", "lock *(u64 *)(r2 + 8) += r4"),
    ] {
        let found = one(change);
        assert!(text(&found).contains(&want.to_owned()), "{change}: {:#?}", text(&found));
        assert!(found.facts.reentrant, "{change}");
    }
    for change in ["r3 *= 3", "w3 += 1", "r3 += r3", "r3 += 1; r5 = r3; r3 += r5"] {
        assert!(!one(change).facts.reentrant, "{change}");
    }
    // Others see it, it is read again, or it is not aligned.
    for text in [
        "r2 = map_value(0, 24) ll; r3 = *(u64 *)(r2 + 8); r3 += 1; *(u64 *)(r2 + 8) = r3; r0 = 0; exit",
        "r2 = map_value(1, 24) ll; r3 = *(u64 *)(r2 + 8); r3 += 1; *(u64 *)(r2 + 8) = r3; r0 = r3; exit",
        "r2 = map_value(1, 24) ll; r3 = *(u64 *)(r2 + 4); r3 += 1; *(u64 *)(r2 + 4) = r3; r0 = 0; exit",
    ] {
        assert!(!linked(text).facts.reentrant, "{text}");
    }
}

#[test]
fn linking_needs_all_maps() {
    let program = verified("r1 = map_value(0, 8) ll; r0 = *(u64 *)(r1 + 0); exit");
    assert!(matches!(program.link(&[]), Err(LinkError::Unknown { imm: Imm64::MapValue { map: 0, offset: 8 }, .. })));
}

/// Programs whose branches would become too long are linked all the same.
#[test]
fn branches_that_would_not_reach_stay_as_they_are() {
    let block = "r1 = map(0) ll; r2 = r6; call 1; if r0 == 0 goto +1; *(u64 *)(r0 + 0) = 1;";
    let text = format!(
        "r7 = *(u64 *)(r1 + 112); r6 = map_value(0, 0) ll; if r7 == 7 goto out; {} out: r0 = 0; exit",
        block.repeat(5400)
    );
    let before = verified(&text);
    let after = before.link(&links(0x7fff_1234_5678)).unwrap();
    assert_eq!(after.program.slots.len(), before.program.slots.len());
    assert_eq!(after.facts.helpers.len(), 1);
}

#[test]
fn filters_say_what_programs_do_first() {
    let program =
        "r2 = *(u64 *)(r1 + 112); r6 = *(u64 *)(r1 + 104); if r2 > r6 goto big; if r2 == 3 goto out; goto work;
        big: r6 &= 7; if r6 != 2 goto out; work: call 5; out: r0 = 0; exit";
    let filter = filter(&linked(program)).unwrap();
    for (a, b) in (0..12).flat_map(|a| (0..12).map(move |b| (a, b))) {
        let mut context = [0u64; 22];
        (context[14], context[13]) = (a, b);
        let mut buffer: Buffer = [0; 32];
        let goes = interpret_at(&filter.program, context.as_ptr() as u64, &mut buffer, 100).unwrap();
        let want = if a > b { b & 7 == 2 } else { a != 3 };
        assert_eq!(goes, u64::from(want), "{a} {b}\n{}", listing(&filter.program));
    }
}

/// Its arguments behind the text were taken for dead.
#[test]
fn what_trace_printk_prints_is_alive() {
    let program = "r6 = r1; *(u64 *)(r10 - 8) = 0; r1 = r10; r1 += -8; r2 = 8; r3 = *(u64 *)(r6 + 112);
                   r4 = *(u64 *)(r6 + 104); r5 = 7; call 6; r0 = 0; exit";
    let left = text(&linked(program));
    for insn in ["r3 = *(u64 *)(r6 + 112)", "r4 = *(u64 *)(r6 + 104)", "r5 = 7"] {
        assert!(left.iter().any(|l| l == insn), "{insn}: {left:?}");
    }
}

/// Arguments of static probes become loads of what the site has.
mod arguments {
    use sidestep_bpf::pass::arguments::{Address, Argument, Source, asked, complete};
    use sidestep_bpf::verify::{Rules, Verified, verify};
    use sidestep_bpf::{Insn, Size, assemble};

    const ASK: &str = "r6 = r1\n r2 = 1\n r3 = r10\n r3 += -8\n call 264\n r7 = r0\n
        r1 = r6\n r2 = 3\n r3 = r10\n r3 += -8\n call 264\n r0 += r7\n exit";

    fn verified(text: &str) -> Verified {
        verify(&assemble(text).unwrap(), &Rules::default()).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn listing(verified: &Verified) -> Vec<String> {
        verified.program.iter().map(|insn| insn.unwrap().1.to_string()).collect()
    }

    #[test]
    fn registers_and_constants_are_no_calls() {
        let program = verified(ASK);
        assert_eq!(asked(&program), Ok(vec![1, 3]));
        let find = |number| {
            let source = if number == 1 { Source::Context(8) } else { Source::Constant(0x1_ffff_fffe) };
            Some(Argument { size: Size::W, signed: true, source })
        };
        let made = complete(&program, find).unwrap();
        assert!(made.facts.helpers.is_empty() && made.facts.context == 1 << 1, "{:?}", listing(&made));
        let loads = made.program.iter().filter(|insn| matches!(insn, Ok((_, Insn::Load { .. }))));
        assert_eq!(loads.count(), 1, "{:?}", listing(&made));
        assert!(listing(&made).iter().any(|insn| insn.contains("-2")), "{:?}", listing(&made));
        assert_eq!(asked(&made), Ok(vec![]));
    }

    #[test]
    fn memory_is_one_checked_read() {
        let address = Address { base: Some(32), index: Some((88, 3)), displacement: 16, short: false };
        let argument = Argument { size: Size::H, signed: false, source: Source::Memory(address) };
        let made = complete(&verified(ASK), |number| (number == 3).then_some(argument)).unwrap();
        assert_eq!(made.facts.helpers.iter().copied().collect::<Vec<_>>(), [112]);
        assert_eq!(made.facts.context, 1 << 4 | 1 << 11);
    }

    #[test]
    fn memory_that_is_mapped_is_a_load() {
        let address = Address { base: Some(152), index: None, displacement: 16, short: false };
        let argument = Argument { size: Size::W, signed: true, source: Source::Mapped(address) };
        let made = complete(&verified(ASK), |_| Some(argument)).unwrap();
        assert!(made.facts.helpers.is_empty(), "{:?}", listing(&made));
        assert_eq!(made.facts.context, 1 << 19);
        let loads = made.program.iter().filter(|insn| matches!(insn, Ok((_, Insn::Load { signed: true, .. }))));
        assert_eq!(loads.count(), 2, "{:?}", listing(&made));
    }

    #[test]
    fn what_a_site_does_not_have_is_0() {
        let made = complete(&verified(ASK), |_| None).unwrap();
        assert_eq!(listing(&made), ["r0 = 0", "exit"]);
    }

    #[test]
    fn the_number_is_a_constant() {
        let text = "r2 = *(u64 *)(r1 + 0)\n r3 = r10\n r3 += -8\n call 264\n exit";
        assert_eq!(asked(&verified(text)), Err(3));
        assert!(complete(&verified(text), |_| None).is_none());
    }
}
